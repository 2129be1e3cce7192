"""Charts of a sweep: lines of runs, the Pareto front, and the columns that can be drawn."""

from __future__ import annotations

import pandas as pd
import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.experiments.sweep.charts import pareto_front
from simgpu.experiments.sweep.run import SweepResult

GIB = 2**30


@pytest.fixture(scope="module")
def result() -> SweepResult:
    rates = ["1 GB/s", "4 GB/s"]
    changes = {
        "policies": ["none", "vdnn"],
        "iterations": 1,
        "sweep.grid.budget": ["32 MiB", "64 MiB"],
        "sweep.zip": [{"node.link.d2h_bandwidth": rates, "node.link.h2d_bandwidth": rates}],
    }
    return simgpu.run_sweep(simgpu.load_sweep("memory-sweep", changes))


def test_there_is_a_line_per_policy_and_combination_of_other_axes(result: SweepResult) -> None:
    (ax,) = result.plot("iteration_ns", "d2h_bytes_per_s", references={"ideal": 1.0}).axes
    frame = result.frame()
    ran = frame[frame["outcome"] == "ok"]
    assert len(ax.lines) == len(ran.groupby(["policy", "budget"])) + 1
    first = ran[(ran["policy"] == "none") & (ran["budget"] == "64 MiB")].sort_values("d2h_bytes_per_s")
    assert len(first) == 2
    assert any(list(line.get_ydata()) == pytest.approx(list(first["iteration_ns"] / 1e6)) for line in ax.lines)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("link, device to host (GB/s)", "step time (ms)")


def test_a_non_numeric_column_is_refused_with_a_suggestion(result: SweepResult) -> None:
    with pytest.raises(InputError, match=r"'samples' is not a numeric column of this sweep; .*samples_per_s"):
        result.plot("samples")
    with pytest.raises(InputError, match="argument x: 'policy' is not a numeric column"):
        result.plot(x="policy")


def test_the_front_contains_exactly_the_runs_that_are_not_dominated() -> None:
    rows = [
        (1, 10, "ok"),
        (1, 12, "ok"),
        (2, 11, "ok"),
        (2, 20, "ok"),
        (3, 20, "ok"),
        (4, 25, "ok"),
        (0, 99, "out of memory"),
    ]
    frame = pd.DataFrame(rows, columns=["device_peak_bytes", "samples_per_s", "outcome"])
    front = pareto_front(frame)
    assert [(row.device_peak_bytes, row.samples_per_s) for row in front.itertuples()] == [(1, 12), (2, 20), (4, 25)]
    ran = frame[frame["outcome"] == "ok"]
    for row in ran.itertuples():
        beaten = (ran["device_peak_bytes"] <= row.device_peak_bytes) & (ran["samples_per_s"] > row.samples_per_s)
        beaten |= (ran["device_peak_bytes"] < row.device_peak_bytes) & (ran["samples_per_s"] >= row.samples_per_s)
        assert beaten.any() == (row.Index not in front.index)


def test_the_front_is_drawn_as_steps_over_all_runs(result: SweepResult) -> None:
    (ax,) = result.plot_front().axes
    front = result.front()
    assert list(ax.lines[-1].get_xdata()) == pytest.approx(list(front["device_peak_bytes"].astype(float) / GIB))
    assert list(ax.lines[-1].get_ydata()) == pytest.approx(list(front["samples_per_s"].astype(float)))
