"""Which runs, traces and published numbers of a study are in which panel of its figures."""

from __future__ import annotations

from functools import cache

import pytest

from simgpu.analysis.panels import Bar, BarPanel, LinePanel, TimePanel
from simgpu.errors import InputError
from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.study import StudyResult, run_study
from simgpu.experiments.study_charts import measure_panels

GB = 10**9
SMALL = {"zoo": "alexnet", "batch": 64, "framework": "fused", "optimizer": "plain-sgd"}
BUDGETS = ["0.3 GB", "1 GB"]


@cache
def swept() -> StudyResult:
    """Two traces, a sweep that is out of memory at its first budget, and a run outside the sweep."""
    changes: dict[str, object] = {
        "traces": {"AlexNet": SMALL, "half": {**SMALL, "batch": 32}},
        "runs": {
            "ideal": {"policy": "ideal"},
            "none": {"policy": "none", "budgets": BUDGETS},
            "shares": {"policy": "modnn", "oversubscription": ["0%", "50%"]},
        },
        "baseline": "ideal",
        "tables": ["time", "peak_memory"],
        "published": [
            {"run": "none 1 GB", "measure": "time", "aggregate": "AlexNet", "value": 1.5, "source": "here"},
            {"run": "none 1 GB", "measure": "time", "value": 1.25, "source": "here"},
            {"run": "none 1 GB", "measure": "time", "excluding": ["half"], "value": 7, "source": "of another mean"},
            {"run": "none", "measure": "time", "aggregate": "max", "value": 9, "source": "of the whole sweep"},
        ],
    }
    return run_study(load_study("modnn-17", changes))


@cache
def compressed() -> StudyResult:
    """Compressed memory over the links of two nodes, as bars, and its drift."""
    changes: dict[str, object] = {
        "node": "buddy-gpu",
        "traces": {"hpc-cg": "hpc-cg", "hpc-ep": "hpc-ep"},
        "runs": {
            "none": {"policy": "none"},
            "buddy": {"policy": "buddy"},
            "small": {"policy": "none", "per_trace": {"hpc-cg": {"budget": "1 MiB"}}},
        },
        "baseline": ["none", "small"],
        "tables": ["throughput", "overflow", "overflow_max"],
        "published": [
            {"run": "buddy", "vs": "none", "aggregate": "hpc-cg", "value": 0.98, "source": "figure 11"},
            {"run": "buddy", "vs": "small", "aggregate": "mean", "value": 0.9, "source": "figure 11"},
        ],
    }
    return run_study(load_study("modnn-17", changes))


def bars_of(result: StudyResult, section: int) -> BarPanel:
    (panel,) = measure_panels(result)[section]
    assert isinstance(panel, BarPanel)
    return panel


def lines_of(result: StudyResult, section: int) -> list[LinePanel]:
    panels = measure_panels(result)[section]
    return [panel for panel in panels if isinstance(panel, LinePanel)]


def test_bars_have_the_values_of_the_tables_with_the_mean_last() -> None:
    result, panel = compressed(), bars_of(compressed(), 0)
    assert list(panel.groups) == ["hpc-cg", "hpc-ep", "geomean (1 of 2)"]
    assert panel.measured.level == 1.0
    for trace in ("hpc-cg", "hpc-ep"):
        assert panel.groups[trace]["buddy"].value == result.value("throughput", trace, "buddy", "none")
    assert panel.groups["geomean (1 of 2)"]["buddy"].value == result.mean("buddy", "none")


def test_a_missing_number_has_a_reason() -> None:
    over_none, over_small = bars_of(compressed(), 0), bars_of(compressed(), 1)
    assert over_none.groups["hpc-cg"]["small"] == Bar(None, "OOM")
    assert over_small.groups["hpc-cg"]["buddy"] == Bar(None, "no baseline")


def test_published_numbers_are_only_on_their_bars() -> None:
    over_none, over_small = bars_of(compressed(), 0), bars_of(compressed(), 1)
    result = {
        (panel.measured.title.split(",")[0], trace, run): bar.published
        for panel in (over_none, over_small)
        for trace, runs in panel.groups.items()
        for run, bar in runs.items()
        if bar.published
    }
    assert result == {
        ("throughput over none", "hpc-cg", "buddy"): (0.98,),
        ("throughput over small", "arithmetic mean", "buddy"): (0.9,),
    }
    simulated = over_small.groups["arithmetic mean"]["buddy"].value
    assert simulated == compressed().ratio("hpc-ep", "buddy", "small")


def test_runs_without_compression_are_not_in_the_overflow_panel() -> None:
    panel = bars_of(compressed(), 2)
    assert "none" not in panel.groups["hpc-ep"]
    assert panel.groups["hpc-ep"]["buddy"].value == compressed().cells["hpc-ep", "buddy"].overflow


def test_drift_has_one_line_per_trace_if_its_runs_are_equal() -> None:
    (panel,) = measure_panels(compressed())[-1]
    assert isinstance(panel, TimePanel)
    cells = compressed().cells
    assert panel.lines == {trace: cells[trace, "buddy"].drift for trace in ("hpc-cg", "hpc-ep")}


def test_each_sweep_has_a_panel_per_trace_and_one_for_the_mean() -> None:
    names = ["AlexNet", "half", "geomean"]
    panels = lines_of(swept(), 0)
    assert [(panel.along.title, panel.name) for panel in panels] == [
        *(("budget", name) for name in (*names, "arithmetic mean")),
        *(("oversubscription", name) for name in names),
    ]
    budget, oversubscribed = panels[0], panels[4]
    assert [curve.label for curve in budget.curves] == ["ideal", "none"]
    assert [curve.label for curve in oversubscribed.curves] == ["ideal", "shares"]
    assert [point.at for point in budget.curves[1].points] == [0.3 * GB, GB]
    assert [point.at for point in oversubscribed.curves[1].points] == [0, 0.5]
    assert budget.curves[0].level == Bar(1.0)
    (lost, _), (_, fits) = budget.curves[1].points
    assert lost == 0.3 * GB
    assert budget.curves[1].points[0].bar == Bar(None, "OOM")
    assert fits.value == swept().value("time", "AlexNet", "none 1 GB", "ideal")


def test_published_numbers_of_a_sweep_are_drawn_at_their_budget() -> None:
    panels = lines_of(swept(), 0)
    message = [[point.bar.published for point in panel.curves[1].points] for panel in panels[:4]]
    assert message == [[(), (1.5,)], [(), ()], [(), ()], [(), (1.25,)]]


def test_a_mean_along_a_sweep_needs_all_traces() -> None:
    none = lines_of(swept(), 0)[2].curves[1]
    values = [swept().value("time", trace, "none 0.3 GB", "ideal") for trace in ("AlexNet", "half")]
    assert None in values
    assert none.points[0].bar.value is None
    assert none.points[1].bar.value == swept().mean("none 1 GB", "ideal", "time")


@pytest.mark.slow
def test_a_batch_sweep_has_a_panel_per_network_and_bars_for_all_batches() -> None:
    model = {key: value for key, value in SMALL.items() if key != "batch"}
    changes: dict[str, object] = {
        "traces": {"AlexNet": {**model, "batches": [32, 64]}, "one": SMALL},
        "tables": ["peak_memory", "largest_batch"],
        "published": [],
    }
    result = run_study(load_study("modnn-17", changes))
    alexnet, one = lines_of(result, 0)
    assert (alexnet.name, one.name, alexnet.along.title) == ("AlexNet", "one", "batch")
    points = {point.at: point.bar.value for point in alexnet.curves[0].points}
    assert points == {batch: result.cells[f"AlexNet {batch}", "1 GPU"].peak_bytes for batch in (32, 64)}
    assert bars_of(result, 1).groups["AlexNet"]["1 GPU"].value == 64


def test_a_study_with_only_breakdowns_has_no_figure_of_measures() -> None:
    study = load_study("modnn-17", {"traces": {"AlexNet": SMALL}, "tables": ["breakdown"], "published": []})
    with pytest.raises(InputError, match="modnn-17: tables: has no measure, only breakdown; name a measure too"):
        run_study(study).plot("measures")
