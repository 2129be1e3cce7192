"""The published figures: durations or rates with a known source, fitted or held out by network."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.workloads.calibration.published import PUBLISHED, load_published
from simgpu.workloads.calibration.published_samples import published_samples
from simgpu.workloads.calibration.samples import Sample, SampleUse
from simgpu.workloads.timemodel.operation import Direction


def damaged(tmp_path: Path, old: str, new: str) -> Path:
    text = PUBLISHED.read_text()
    assert text.count(old) == 1
    path = tmp_path / PUBLISHED.name
    path.write_text(text.replace(old, new))
    return path


def test_published_figures_are_durations_or_rates_with_a_known_source() -> None:
    published = load_published()
    assert {figure.source for figure in published.figures} == set(published.sources)
    by_value = {figure.value: figure.duration_ns for figure in published.figures}
    assert by_value["41.59 ms"] == 41_590_000
    assert by_value["219 samples/s"] == 292_237_443


@pytest.mark.slow
def test_figures_are_held_out_by_network() -> None:
    published = load_published()
    networks = {figure.network for figure in published.figures}
    assert set(published.fitted_networks) < networks
    assert len(networks - set(published.fitted_networks)) >= 5
    samples = [sample for sample in published_samples(published) if isinstance(sample, Sample)]
    assert {sample.network for sample in samples if sample.fitted} == set(published.fitted_networks)
    assert {sample.use for sample in samples} == {SampleUse.FIT, SampleUse.HELD_OUT}


@pytest.mark.parametrize("source", ["johnson", "johnson-k40", "cloud", "sako", "nvidia", "lambda", "tensorflow"])
def test_figures_are_compared_with_the_measured_variant_of_the_network(source: str) -> None:
    """PyTorch and fb.resnet.torch stride in the 3 x 3 of a bottleneck, TensorFlow's benchmarks in the 1 x 1."""
    deep = {"resnet50", "resnet101", "resnet152"}
    figures = [figure for figure in load_published().figures if figure.source == source and figure.network in deep]
    assert figures
    assert {figure.variant.get("stride_in_3x3", False) for figure in figures} == {
        source not in ("lambda", "tensorflow")
    }


def test_a_benchmark_with_image_gradients_has_one_more_kernel() -> None:
    published = load_published()
    figure = next(each for each in published.figures if each.input_gradient and each.measures == "both")
    without = figure.model_copy(update={"input_gradient": False})
    more, usual = (
        next(iter(published_samples(published.model_copy(update={"figures": [each]})))) for each in (figure, without)
    )
    assert isinstance(more, Sample)
    assert isinstance(usual, Sample)
    (added,) = set(more.operations) - set(usual.operations)
    assert added[0].direction is Direction.BACKWARD_DATA
    assert added[0].convolution is not None
    assert added[0].convolution.in_channels == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"219 samples/s"', '"219"', "'219' is not a duration or rate"),
        ('"219 samples/s", source: tensorflow', '"219 samples/s", source: tensorflo', "did you mean 'tensorflow'"),
    ],
)
def test_a_damaged_figure_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_published(damaged(tmp_path, old, new))
