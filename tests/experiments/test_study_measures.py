"""Measures of studies other than throughput: budgets, several GPUs, bytes, power, memory by technique."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.study import StudyResult, run_study
from simgpu.experiments.study_measures import AMOUNTS, MEASURES, StudyCell, memory_of
from simgpu.experiments.study_tables import failures, published_rows, study_tables, table_notes
from simgpu.graph.bounds import lower_bound, memory_bounds
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.simulation.run import Result, simulate

README = Path(__file__).parents[2] / "scenarios" / "README.md"

GB = 10**9
SMALL = {"zoo": "alexnet", "batch": 64, "framework": "fused", "optimizer": "plain-sgd"}
RUNS = {
    "ideal": {"policy": "ideal"},
    "moDNN": {"policy": "modnn", "budgets": ["0.6 GB", "1 GB"]},
    "vDNN+": {"policy": "vdnn+", "budgets": ["1 GB", "0.6 GB", "0.1 GB"]},
    "four": {
        "policy": "none",
        "data_parallel": {"gpus": 4, "exchange": "gather"},
        "per_trace": {"AlexNet": {"policy": {"modnn": {"sub_batch": 8}}, "budget": "0.7 GB"}},
    },
}
PUBLISHED = [
    {"run": "moDNN", "vs": "vDNN+", "value": 1.26, "source": "figure 12"},
    {"run": "vDNN+", "vs": "ideal", "measure": "time", "aggregate": "max", "value": 2, "source": "figure 12"},
    {"run": "moDNN", "measure": "time_increase", "aggregate": "AlexNet", "value": 0.03, "source": "figure 10"},
    {
        "run": "moDNN",
        "vs": "vDNN+",
        "measure": "traffic_reduction",
        "aggregate": "min",
        "value": 3,
        "source": "figure 11",
    },
    {"run": "moDNN", "measure": "power_increase", "aggregate": "max", "value": 0.03, "source": "figure 15"},
    {"run": "four", "measure": "peak_power", "value": 0.5, "source": "figure 15"},
    {"memory": "bound", "value": 59, "source": "figure 9"},
    {"memory": "algorithms", "measure": "memory_saved", "aggregate": "AlexNet", "value": 0.15, "source": "figure 13"},
]
CHANGES: dict[str, object] = {
    "traces": {"AlexNet": SMALL, "half": {**SMALL, "batch": 32}},
    "runs": RUNS,
    "baseline": "ideal",
    "tables": ["time", "traffic"],
    "published": PUBLISHED,
}


@cache
def small() -> StudyResult:
    return run_study(load_study("modnn-17", CHANGES))


@cache
def simulated(trace: str, policy: str, budget: int | None = None, **settings: Any) -> Result:
    study = small().study
    return simulate(study.traces[trace], study.runs[0].node, policy, budget=budget, **settings)


@pytest.mark.slow
def test_every_run_of_a_sweep_has_its_budget() -> None:
    for trace in ("AlexNet", "half"):
        for label, budget in (("moDNN 0.6 GB", 6 * GB // 10), ("moDNN 1 GB", GB)):
            assert small().cells[trace, label].iteration_ns == (simulated(trace, "modnn", budget).iteration_ns,)
    assert small().cells["AlexNet", "vDNN+ 0.1 GB"].out_of_memory.startswith("out of device memory")


@pytest.mark.slow
def test_runs_may_use_several_gpus_and_settings_per_trace() -> None:
    study = small().study
    together = simulate(study.traces["half"], study.runs[0].node, "none", gpus=4, exchange="gather")
    assert small().cells["half", "four"].iteration_ns == (together.iteration_ns,)
    assert small().ratio("half", "four", "ideal") == pytest.approx(together.metrics.speedup)
    settings: dict[str, Any] = {"gpus": 4, "exchange": "gather", "budget": 7 * GB // 10}
    changed = simulate(study.traces["AlexNet"], study.runs[0].node, "modnn", parameters={"sub_batch": 8}, **settings)
    assert small().cells["AlexNet", "four"].iteration_ns == (changed.iteration_ns,)


def test_measures_equal_those_of_the_runs() -> None:
    label, outcome, ideal = "moDNN 0.6 GB", simulated("AlexNet", "modnn", 6 * GB // 10), simulated("AlexNet", "ideal")
    time = outcome.iteration_ns / ideal.iteration_ns

    def value(measure: str, over: str = "ideal") -> float | None:
        return small().value(measure, "AlexNet", label, over)

    assert value("time") == pytest.approx(time)
    assert value("time_increase") == pytest.approx(time - 1)
    assert value("time_saved") == pytest.approx(1 - time)
    assert time > 1
    moved = outcome.metrics.link_bytes
    assert small().value("traffic", "AlexNet", label) == moved > 0
    other = simulated("AlexNet", "vdnn+", 6 * GB // 10).metrics
    assert value("traffic_reduction", "vDNN+ 0.6 GB") == pytest.approx(other.link_bytes / moved)
    power, base = outcome.metrics.power, ideal.metrics.power
    assert power is not None
    assert base is not None
    assert value("energy") == pytest.approx(power.energy_nj / base.energy_nj)
    assert value("power_increase") == pytest.approx(power.average_w / base.average_w - 1)
    assert small().value("average_power", "AlexNet", label) == pytest.approx(power.average_w / 235)
    assert small().value("peak_power", "AlexNet", label) == pytest.approx(power.largest_w / 235)


def test_measures_without_data_have_no_value() -> None:
    still, moving, lost = StudyCell(1.0, traffic_bytes=0), StudyCell(1.0, traffic_bytes=8), StudyCell(None)
    assert MEASURES["traffic_reduction"].of(still, moving) is None
    assert MEASURES["traffic_reduction"].of(moving, still) == 0
    assert MEASURES["energy"].of(still, moving) is None
    assert MEASURES["time"].of(lost, still) is None
    assert MEASURES["time_increase"].of(still, lost) is None


def test_values_of_1000_and_more_have_no_decimals() -> None:
    rate = MEASURES["samples_per_s"]
    assert [rate.text(value) for value in (None, 78.84, 999.4, 1000.4)] == ["-", "78.8", "999.4", "1000"]
    assert [rate.difference(of[0], of[1]) for of in ((None, 280), (-98.84, 280), (641.3, 2368))] == [
        "-",
        "-98.8",
        "+641",
    ]
    assert MEASURES["swapping"].difference(-0.479, 0.75) == "-47.9 points"


def test_each_point_of_a_sweep_is_compared_with_the_run_at_its_budget() -> None:
    compared, slowest, added, fewer, power, alone, *_ = small().comparisons()
    pairs = {
        (trace, budget): small().ratio(trace, f"moDNN {budget}", f"vDNN+ {budget}")
        for trace in ("AlexNet", "half")
        for budget in ("0.6 GB", "1 GB")
    }
    ratios = [ratio for ratio in pairs.values() if ratio is not None]
    assert compared.simulated == pytest.approx(sum(ratios) / 4)
    assert (compared.traces, compared.values, compared.points) == (2, 4, 4)
    assert (slowest.traces, slowest.values, slowest.points) == (2, 4, 6)
    times = [small().value("time", "AlexNet", f"moDNN {budget}", "ideal") or 0 for budget in ("0.6 GB", "1 GB")]
    assert added.simulated == pytest.approx(sum(times) / 2 - 1)
    assert (added.values, added.points) == (2, 2)
    assert fewer.simulated is not None
    assert power.simulated is not None
    shares = [small().cells[trace, "four"].peak_power or 0 for trace in ("AlexNet", "half")]
    assert alone.simulated == pytest.approx(sum(shares) / 2)


def test_memory_by_technique_equals_the_memory_bounds() -> None:
    study = small().study
    for label, trace in study.traces.items():
        graph = TaskGraph.of(trace)
        bounds, result = memory_bounds(graph), small().memory[label]
        assert result == memory_of(trace)
        assert list(result) == list(AMOUNTS)
        assert (result["all_at_once"], result["bound"]) == (bounds.all_at_once.bytes, bounds.bound.bytes)
        assert result["weights_offloaded"] == bounds.without_updates.bytes
        assert result["bound"] < result["sub_batch"] < result["all_at_once"]
        assert lower_bound(Tdfg.of(graph)).bytes <= result["transfers"] < result["algorithms"] < result["all_at_once"]
    *_, bound, saved = small().comparisons()
    ratios = [small().memory[label]["all_at_once"] / small().memory[label]["bound"] for label in study.traces]
    assert bound.simulated == pytest.approx(sum(ratios) / 2)
    first = small().memory["AlexNet"]
    assert saved.simulated == pytest.approx(1 - first["algorithms"] / first["all_at_once"])


def test_a_sweep_has_one_row_per_run() -> None:
    time, moved, memory = study_tables(small())
    assert time.title == "step time over ideal"
    assert time.headings == ("", "AlexNet", "half", "geomean", "OOM")
    assert [row[0] for row in time.rows] == [run.label for run in small().study.runs]
    assert time.rows[0][1:] == ("1.000", "1.000", "1.000", "-")
    assert ("vDNN+ 0.1 GB", "-", "-", "-", "2 of 2") in time.rows
    assert "-: OOM, or no baseline run" in table_notes(small())
    assert moved.title == "traffic, D2H and H2D"
    assert moved.rows[0][1:] == ("0 B", "0 B", "0 B", "-")
    assert memory.headings[1:] == tuple(AMOUNTS.values())
    assert [row[0] for row in memory.rows] == ["AlexNet", "half", "geomean"]


def test_only_the_largest_budget_of_a_sweep_that_does_not_fit_is_explained() -> None:
    runs = {"ideal": RUNS["ideal"], "moDNN": {"policy": "modnn", "budgets": ["1 MB", "1 GB", "10 MB"]}}
    result = run_study(load_study("modnn-17", {**CHANGES, "runs": runs, "published": []}))
    assert [text.split(": ")[0] for text in failures(result)] == ["AlexNet, moDNN 10 MB", "half, moDNN 10 MB"]


def test_a_sweep_on_one_network_is_one_table_with_a_column_per_measure() -> None:
    only = {
        "traces": {"AlexNet": SMALL},
        "runs": {"ideal": RUNS["ideal"], "moDNN": RUNS["moDNN"]},
        "baseline": "ideal",
        "tables": ["time", "average_power"],
        "published": [],
    }
    (table,) = study_tables(run_study(load_study("modnn-17", only)))
    assert table.title == "AlexNet, over ideal"
    assert table.headings == ("", "step time", "average power")
    assert table.rows[0][:2] == ("ideal", "1.000")
    assert all(row[2].endswith("%") for row in table.rows)


def test_published_numbers_name_their_source() -> None:
    rows = published_rows(small())
    assert [row[0] for row in rows] == [
        "moDNN over vDNN+, mean",
        "vDNN+ over ideal, max, step time (4 of 6)",
        "moDNN over ideal, AlexNet, overhead",
        "moDNN over vDNN+, min, traffic reduction",
        "moDNN over ideal, max, average power increase",
        "four, mean, peak power",
        "lower bound, mean, memory reduction",
        "algorithms, AlexNet, memory saved",
    ]
    assert rows[2][2] == "3.0%"
    assert rows[2][3].endswith(" points")
    assert rows[6][2] == "59.000"


def test_frame_and_plain_values_contain_all_measures() -> None:
    frame, document = small().frame(), json.loads(json.dumps(small().to_dict(), allow_nan=False))
    row = frame.loc[("half", "moDNN 1 GB")]
    assert (row["budget_bytes"], row["gpus"]) == (GB, 1)
    assert row["traffic_bytes"] == small().cells["half", "moDNN 1 GB"].traffic_bytes
    assert frame.loc[("AlexNet", "four"), "budget_bytes"] == 7 * GB // 10
    assert frame.loc[("AlexNet", "four"), "policy"] == "modnn(sub_batch=8)"
    run = document["runs"]["four"]
    assert run["data_parallel"] == {"gpus": 4, "exchange": "gather", "cores": 1}
    assert run["per_trace"]["AlexNet"]["parameters"] == {"sub_batch": 8}
    assert document["runs"]["vDNN+ 0.6 GB"]["sweep"] == "vDNN+"
    assert document["memory"]["half"] == small().memory["half"]
    assert [each["values"] for each in document["published"]] == [each.values for each in small().comparisons()]


def test_the_readme_of_scenarios_describes_every_measure_and_amount() -> None:
    text = README.read_text(encoding="utf-8")
    assert not [name for name in (*MEASURES, *AMOUNTS) if f"`{name}`" not in text]
