"""The spread of a sweep's results over its seeds."""

from __future__ import annotations

from statistics import fmean, stdev

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.experiments.scenarios.load_sweep import make_sweep
from simgpu.experiments.sweep.run import SweepResult, run_sweep
from simgpu.experiments.sweep.spread import SPREAD_HEADINGS, seed_spreads, spread_rows

VALUES = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "iterations": 1}
HOME = {"home": {"particles": 4, "iterations": 2}}


@pytest.fixture(scope="module")
def result() -> SweepResult:
    grid = {"seed": [0, 1, 2], "budget": ["60%", "100%"]}
    return run_sweep(make_sweep({**VALUES, "policies": ["none", HOME], "sweep": {"grid": grid}}, "a test"))


def test_the_spread_over_the_seeds_is_that_of_the_rows(result: SweepResult) -> None:
    rows, spread = result.frame(), result.seed_spread()
    assert list(spread[["budget", "policy"]].itertuples(index=False, name=None)) == [
        (budget, policy) for budget in ("60%", "100%") for policy in rows.policy.unique()
    ]
    for row in spread.to_dict("records"):
        ran = rows[(rows.budget == row["budget"]) & (rows.policy == row["policy"]) & (rows.outcome == "ok")]
        assert (row["seeds"], row["ok"]) == (3, len(ran))
        for column in ("iteration_ns", "device_peak_bytes"):
            numbers = [int(each) for each in ran[column]]
            if numbers:
                assert row[f"{column}_mean"] == pytest.approx(fmean(numbers))
                assert row[f"{column}_std"] == pytest.approx(float(stdev(numbers)))
                assert (row[f"{column}_min"], row[f"{column}_max"]) == (min(numbers), max(numbers))


def test_a_policy_without_random_numbers_has_no_spread_and_oom_has_no_numbers(result: SweepResult) -> None:
    rows = spread_rows(seed_spreads(result.sweep, result.rows()), "iteration_ns")
    by_name = {(values, policy): dict(zip(SPREAD_HEADINGS[1:], cells, strict=True)) for values, policy, *cells in rows}
    assert by_name["60%", "none"] == {"seeds": "0 of 3", "mean": "OOM", "std. dev.": "-", "min": "-", "max": "-"}
    whole = by_name["100%", "none"]
    assert whole == {**whole, "seeds": "3", "mean": "110.1 ms", "std. dev.": "0 ns", "min": "110.1 ms"}


def test_a_single_seed_has_no_standard_deviation() -> None:
    sweep = make_sweep({**VALUES, "policies": "none", "sweep": {"grid": {"seed": [5]}}}, "a test")
    ((_, policy, seeds, _, std, *_),) = spread_rows(seed_spreads(sweep, run_sweep(sweep).rows()), "device_peak_bytes")
    assert (policy, seeds, std) == ("none", "1", "-")


def test_values_that_vary_with_the_seed_are_separate_groups() -> None:
    points = [{"seed": 0, "budget": "1 GiB"}, {"seed": 1, "budget": "1 GiB"}, {"seed": 1, "budget": "2 GiB"}]
    spread = run_sweep(make_sweep({**VALUES, "policies": "none", "sweep": {"points": points}}, "a test")).seed_spread()
    assert list(spread[["budget", "seeds"]].itertuples(index=False, name=None)) == [("1 GiB", 2), ("2 GiB", 1)]


def test_a_sweep_without_seeds_has_no_spread() -> None:
    result = simgpu.run_sweep(
        make_sweep({**VALUES, "policies": "none", "sweep": {"grid": {"budget": ["1 GiB"]}}}, "a test")
    )
    with pytest.raises(InputError, match=r"sweep: does not vary the seed; vary it: simgpu sweep .*sweep\.grid\.seed="):
        result.seed_spread()
