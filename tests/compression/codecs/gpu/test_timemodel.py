"""The time model: linear regressions by range of sparsity, their training samples, and extrapolation."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from simgpu import load_node
from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.samples import CodecSample, draw_samples
from simgpu.compression.codecs.gpu.setting import LaunchSetting
from simgpu.compression.codecs.gpu.tensors import synthetic_tensors
from simgpu.compression.codecs.gpu.timemodel import CodecTimeModel, sparsity_ranges
from simgpu.errors import InputError, MissingExtraError

V100 = response_of(load_node("v100").gpu)


def samples_of(codec: str, count: int = 600, noise: float = 0.02) -> tuple[CodecSample, ...]:
    generator = np.random.default_rng(5)
    return draw_samples(V100, codec, synthetic_tensors(count, generator), LaunchSetting(199, 64), generator, noise)


def plane(size: int, sparsity: float) -> int:
    """Times that are linear in bytes and sparsity within each of three ranges."""
    slope = 3 if sparsity < 0.4 else 2 if sparsity < 0.6 else 1
    return round(1_000_000 + size / 10 * slope - 200_000 * slope * sparsity)


def of_plane(sparsities: list[float]) -> list[CodecSample]:
    return [
        CodecSample("zvc", size, each, 80, 64, plane(size, each), 2 * plane(size, each))
        for each in sparsities
        for size in (20_000_000, 500_000_000, 2_000_000_000)
    ]


def test_ranges_divide_the_trained_sparsities_equally() -> None:
    assert sparsity_ranges(6) == ((0.2, 0.3), (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.8))
    assert sparsity_ranges(1, (0.1, 0.5)) == ((0.1, 0.5),)


def test_each_sub_model_fits_linear_times_in_its_range_exactly() -> None:
    model = CodecTimeModel.fit(of_plane([0.21, 0.3, 0.39, 0.41, 0.5, 0.59, 0.61, 0.7, 0.79]), pieces=3)
    assert [(each.low, each.high) for each in model.encode["zvc"]] == [(0.2, 0.4), (0.4, 0.6), (0.6, 0.8)]
    for sparsity in (0.2, 0.35, 0.4, 0.55, 0.6, 0.75):
        encode, decode = model.predict_ns("zvc", 10**9, sparsity)
        assert encode == pytest.approx(plane(10**9, sparsity), abs=2)
        assert decode == pytest.approx(2 * plane(10**9, sparsity), abs=4)


def test_outside_the_trained_sparsities_the_nearest_sub_model_extrapolates() -> None:
    model = CodecTimeModel.fit(of_plane([0.21, 0.3, 0.39, 0.41, 0.5, 0.59, 0.61, 0.7, 0.79]), pieces=3)
    for sparsity in (0.0, 0.1, 0.9, 1.0):
        assert model.predict_ns("zvc", 10**9, sparsity)[0] == pytest.approx(plane(10**9, sparsity), abs=2)


def test_samples_outside_the_range_do_not_affect_the_fit() -> None:
    inside = of_plane([0.3, 0.5, 0.7])
    outside = [replace(sample, sparsity=share, encode_ns=1) for sample in inside for share in (0.1, 0.85)]
    assert CodecTimeModel.fit([*inside, *outside], pieces=1) == CodecTimeModel.fit(inside, pieces=1)


def test_a_sample_on_a_boundary_affects_both_sub_models() -> None:
    on_bounds = of_plane([0.2, 0.5, 0.8])
    slower = [replace(each, encode_ns=each.encode_ns * 2) if each.sparsity == 0.5 else each for each in on_bounds]
    before, after = (CodecTimeModel.fit(samples, pieces=2).encode["zvc"] for samples in (on_bounds, slower))
    assert before[0] != after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize("codec", ["zvc", "lz4"])
def test_a_sub_model_equals_the_regression_of_scikit_learn(codec: str) -> None:
    from sklearn.linear_model import LinearRegression

    samples = samples_of(codec)
    [sub] = CodecTimeModel.fit(samples, pieces=1).decode[codec]
    given = [(sample.bytes / 1e6, sample.sparsity) for sample in samples]
    outcome = LinearRegression().fit(given, [sample.decode_ns for sample in samples])
    for sample in samples[:50]:
        expected = outcome.predict([(sample.bytes / 1e6, sample.sparsity)])[0]
        assert sub.ns(sample.bytes, sample.sparsity) == pytest.approx(max(0, expected), abs=1.5)


def test_each_codec_has_its_own_reproducible_model() -> None:
    both = [*samples_of("zvc"), *samples_of("rle")]
    model = CodecTimeModel.fit(both)
    assert model == CodecTimeModel.fit(both)
    assert model.encode["rle"] == CodecTimeModel.fit(samples_of("rle")).encode["rle"]
    assert model.predict_ns("rle", 10**9, 0.5) > model.predict_ns("zvc", 10**9, 0.5)


def test_predictions_are_never_negative() -> None:
    falling = [replace(sample, encode_ns=max(1, 10**9 - sample.bytes)) for sample in samples_of("zvc")]
    assert CodecTimeModel.fit(falling).predict_ns("zvc", 2 * 10**9, 0.5)[0] == 0


def test_sub_models_with_too_few_samples_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        CodecTimeModel.fit(of_plane([0.25, 0.5]), pieces=3)
    assert str(caught.value) == (
        "samples: only 0 samples of zvc have sparsities from 0.6 to 0.8; give at least 3, or fewer sub-models"
    )


def test_impossible_fits_are_refused() -> None:
    with pytest.raises(InputError, match="samples: are empty"):
        CodecTimeModel.fit([])
    with pytest.raises(InputError, match="have 2 launch settings"):
        CodecTimeModel.fit([*of_plane([0.5]), replace(of_plane([0.5])[0], grid=81)])
    with pytest.raises(InputError) as caught:
        CodecTimeModel.fit(of_plane([0.5]), pieces=0, sparsity=(0.8, 0.2))
    assert [problem.place for problem in caught.value.problems] == ["pieces", "sparsity"]


def test_impossible_questions_are_refused() -> None:
    model = CodecTimeModel.fit(samples_of("zvc"))
    with pytest.raises(InputError) as caught:
        model.predict_ns("zvcc", -1, -0.1)
    assert [problem.place for problem in caught.value.problems] == ["codec", "bytes", "sparsity"]
    assert "did you mean 'zvc'" in str(caught.value)


def test_without_scikit_learn_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"predicting codec times needs scikit-learn.*its extra 'cswap'"):
        CodecTimeModel.fit(samples_of("zvc"))
