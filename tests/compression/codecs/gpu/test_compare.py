"""Errors of several regressions, as in CSWAP's figure 10.

The errors are those of samples of the fitted surface with 2% noise, which is assumed; the paper's are of its GPU.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from simgpu import load_node
from simgpu.compression.codecs.gpu.compare import ModelError, compare_models, mean_errors, relative_absolute_error
from simgpu.compression.codecs.gpu.response import response_of
from simgpu.errors import MissingExtraError

pytestmark = pytest.mark.slow

V100 = response_of(load_node("v100").gpu)


@pytest.fixture(scope="module")
def figure_10() -> tuple[ModelError, ...]:
    return compare_models(V100)


def test_the_error_measure_is_that_of_the_paper() -> None:
    measured = np.array([1.0, 3.0, 8.0])
    assert relative_absolute_error(measured, measured) == 0
    assert relative_absolute_error(np.full(3, 4.0), measured) == 1
    assert relative_absolute_error(np.array([2.0, 3.0, 6.0]), measured) == 3 / 8


def test_every_codec_and_direction_has_every_model(figure_10: tuple[ModelError, ...]) -> None:
    models = {"linear", "linear_all", "bayesian_ridge", "svm", "decision_tree"}
    result = {(each.codec, each.direction, each.model) for each in figure_10}
    assert result == {(c, d, m) for c in ("zvc", "rle", "csr", "lz4") for d in ("encode", "decode") for m in models}
    assert len(figure_10) == len(result)


def test_the_time_model_has_the_smallest_mean_error(figure_10: tuple[ModelError, ...]) -> None:
    for position in range(2):
        means = {model: pair[position] for model, pair in mean_errors(figure_10).items()}
        assert min(means, key=lambda model: means[model]) == "linear"
        assert max(means, key=lambda model: means[model]) == "svm"


def test_mean_errors_are_close_to_those_of_the_paper(figure_10: tuple[ModelError, ...]) -> None:
    """The paper has 3%, 56% less than Bayesian ridge and 80% less than the support vector machine."""
    means = mean_errors(figure_10)
    linear, ridge, svm = means["linear"], means["bayesian_ridge"], means["svm"]
    assert linear == pytest.approx((0.037, 0.047), abs=0.001)
    assert 1 - linear[1] / ridge[1] == pytest.approx(0.64, abs=0.02)
    assert 1 - linear[1] / svm[1] == pytest.approx(0.81, abs=0.02)
    assert means["decision_tree"] == pytest.approx((0.048, 0.062), abs=0.003)


def test_without_sub_models_the_time_model_is_no_better_than_bayesian_ridge(figure_10: tuple[ModelError, ...]) -> None:
    """One linear model over all sparsities does as Bayesian ridge does: neither has the product of bytes and zeros."""
    means = mean_errors(figure_10)
    assert means["linear_all"] == pytest.approx(means["bayesian_ridge"], rel=0.01)
    errors = [
        mean_errors(compare_models(V100, ["zvc"], pieces=pieces, count=1500, noise=0))["linear"][0]
        for pieces in (1, 2, 3, 6)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 5 * errors[-1]


def test_errors_are_larger_outside_the_trained_sparsities(figure_10: tuple[ModelError, ...]) -> None:
    means = mean_errors(figure_10)
    assert all(near < far for near, far in means.values())


def test_equal_seeds_give_equal_errors() -> None:
    assert compare_models(V100, ["zvc"], seed=1, count=300) == compare_models(V100, ["zvc"], seed=1, count=300)
    assert compare_models(V100, ["zvc"], seed=1, count=300) != compare_models(V100, ["zvc"], seed=2, count=300)


def test_most_of_the_error_is_the_assumed_noise() -> None:
    quiet, noisy = (mean_errors(compare_models(V100, ["zvc"], noise=noise))["linear"][0] for noise in (0.0, 0.02))
    assert quiet < noisy / 2


def test_without_scikit_learn_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"comparing models of codec times needs scikit-learn"):
        compare_models(V100)
