"""The launch tuner: four ways to choose a grid and block size for VGG-16, as in CSWAP's figure 12."""

from __future__ import annotations

import importlib.util

import pytest

from simgpu import load_node
from simgpu.compression.codecs.gpu.paper import FIGURE_12
from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.setting import LARGEST_GRID, THREADS, LaunchSetting, all_settings
from simgpu.compression.codecs.gpu.surface import network_ns, network_times
from simgpu.compression.codecs.gpu.tensors import SparseTensor
from simgpu.compression.codecs.gpu.tuner import LaunchTuner, Tuned, expert_setting, tune_all
from simgpu.errors import InputError, MissingExtraError
from simgpu.hardware.spec import GpuSpec

pytestmark = pytest.mark.slow

GPU = load_node("v100").gpu
TUNER = LaunchTuner(response_of(GPU), "zvc", FIGURE_12)


@pytest.fixture(scope="module")
def figure_12() -> dict[str, Tuned]:
    return {each.method: each for each in tune_all(TUNER.surface, GPU, "zvc", FIGURE_12)}


def test_grid_search_tries_every_setting_and_returns_the_minimum(figure_12: dict[str, Tuned]) -> None:
    result = figure_12["grid_search"]
    grids, threads = all_settings()
    assert result.evaluations == len(grids) == LARGEST_GRID * len(THREADS) == 8192
    times = network_times(TUNER.surface, "zvc", FIGURE_12)
    assert result.total_ns == times.min() == TUNER.at(result.setting)
    assert result.search_ns == times.sum()
    for index in range(0, 8192, 97):
        assert times[index] == TUNER.at(LaunchSetting(int(grids[index]), int(threads[index])))


def test_the_time_of_a_network_is_the_sum_over_its_tensors() -> None:
    tensors, setting = (SparseTensor(10**8, 0.3), SparseTensor(10**9, 0.7)), LaunchSetting(80, 128)
    assert network_ns(TUNER.surface, "csr", tensors, setting) == sum(
        timed("csr", each.bytes, each.sparsity, 80, 128)
        for each in tensors
        for timed in (TUNER.surface.encode_ns, TUNER.surface.decode_ns)
    )


def test_bayesian_search_evaluates_10_initial_and_25_chosen_settings(figure_12: dict[str, Tuned]) -> None:
    result = figure_12["bayesian"]
    assert result.evaluations == 35
    assert TUNER.bayesian(initial=3, steps=2).evaluations == 5
    assert result.total_ns == TUNER.at(result.setting)


def test_equal_seeds_give_equal_choices() -> None:
    assert TUNER.bayesian(seed=4, steps=2) == TUNER.bayesian(seed=4, steps=2)
    assert TUNER.bayesian(seed=4, steps=2) != TUNER.bayesian(seed=5, steps=2)
    assert TUNER.random(seed=4) == TUNER.random(seed=4)
    assert len({TUNER.random(seed=seed).setting for seed in range(20)}) > 15


def test_the_four_search_methods_rank_as_in_the_paper(figure_12: dict[str, Tuned]) -> None:
    """547 ms at random, 178 by the expert, 66 by Bayesian search, 56 by grid search."""
    random, expert, bayesian, grid = (
        figure_12[name].total_ns for name in ("random", "expert", "bayesian", "grid_search")
    )
    assert random > expert > bayesian > grid
    # The paper's search ends 18% above the best of all settings, this one with seed 0 34%.
    assert bayesian == pytest.approx(1.34 * grid, rel=0.01)
    assert bayesian < 0.4 * expert


def test_the_result_of_bayesian_search_depends_on_its_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The library's defaults explore all settings, and most settings are slow."""
    best, expert = TUNER.grid_search().total_ns, TUNER.expert(GPU).total_ns
    unlucky, lucky = TUNER.bayesian(seed=4), TUNER.bayesian(seed=3)
    assert lucky.total_ns < 1.3 * best
    assert 2 * best < unlucky.total_ns < expert
    # The search proposes some settings twice, and the library prints a warning about it.
    assert capsys.readouterr() == ("", "")


def test_grid_search_needs_the_papers_number_of_evaluations(figure_12: dict[str, Tuned]) -> None:
    """224 times; the number of settings gives 8192 / 35, codec run time gives more, as large grids are slow."""
    grid, bayesian = figure_12["grid_search"], figure_12["bayesian"]
    assert grid.evaluations / bayesian.evaluations == pytest.approx(224, rel=0.05)
    assert grid.search_ns > 224 * bayesian.search_ns


def test_the_expert_setting_has_1024_threads_per_multiprocessor() -> None:
    assert expert_setting(GPU) == LaunchSetting(640, 128)
    assert expert_setting(load_node("2080ti").gpu) == LaunchSetting(544, 128)
    assert expert_setting(GpuSpec("vast", 1, multiprocessors=1000)) == LaunchSetting(4096, 128)
    with pytest.raises(InputError, match=r"gpu\.multiprocessors: missing in the description of GPU 'card'"):
        expert_setting(GpuSpec("card", 1))


def test_impossible_searches_are_refused() -> None:
    with pytest.raises(InputError, match="tensors: are empty"):
        LaunchTuner(TUNER.surface, "zvc", ())
    with pytest.raises(InputError, match="0 initial settings and -1 steps"):
        TUNER.bayesian(initial=0, steps=-1)
    with pytest.raises(InputError, match="did you mean 'zvc'"):
        LaunchTuner(TUNER.surface, "zcv", FIGURE_12).bayesian()


def test_without_the_library_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs bayesian-optimization.*simgpu with its extra 'cswap'"):
        TUNER.bayesian()
