"""Means of a study cover the traces that every run completes; traces out of memory are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.scenarios.study import Study
from simgpu.experiments.study import StudyResult
from simgpu.experiments.study_measures import StudyCell
from simgpu.experiments.study_tables import study_tables, table_notes
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace

FILE = """\
schema: simgpu.study/2
node: v100
traces: {small: chain, middle: chain, large: chain}
runs:
  base: {policy: ideal}
  A: {policy: vdnn}
  B: {policy: none}
baseline: base
tables: [time, time_saved, peak_memory]
published:
  - {run: A, measure: time, value: 2, source: table 1}
"""
OOM = StudyCell(None, out_of_memory="out of device memory")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    write_trace(chain([5, 7], [10, 14], [100, 200]), tmp_path / "chain")
    (tmp_path / "means.yaml").write_text(FILE, encoding="utf-8")
    return load_study(tmp_path / "means.yaml")


def cell(time: int, peak: int = 0) -> StudyCell:
    """A run that takes the given number of seconds per sample."""
    return StudyCell(1 / time, peak_bytes=peak, batch=1)


@pytest.fixture
def result(study: Study) -> StudyResult:
    """A is 2, 8 and 4 times as slow as the baseline; B 1, 4 times, and out of memory on the large trace."""
    times = {"base": (1, 1, 1), "A": (2, 8, 4), "B": (1, 4, None)}
    cells = {
        (trace, run): OOM if (time := each[at]) is None else cell(time, 10 * (at + 1))
        for run, each in times.items()
        for at, trace in enumerate(study.traces)
    }
    return StudyResult(study, cells)


def test_means_cover_the_traces_completed_by_every_run(result: StudyResult) -> None:
    means = result.means("time", "base")
    assert means.traces == ("small", "middle")
    assert means.values == pytest.approx({"base": 1, "A": 4, "B": 2}), "sqrt(2 * 8), sqrt(1 * 4)"
    assert means.out_of_memory == {"base": 0, "A": 0, "B": 1}
    assert result.mean("A", "base", "time") == means.values["A"]


def test_a_trace_lost_by_one_run_is_dropped_from_every_mean(result: StudyResult) -> None:
    """With a mean over each run's own completed traces, B fell from 2.5 to 1 when the middle trace did not fit."""
    less = StudyResult(result.study, {**result.cells, ("middle", "B"): OOM})
    before, after = result.means("time", "base"), less.means("time", "base")
    assert after.traces == ("small",)
    assert (after.values["A"], after.values["B"]) == pytest.approx((2, 1))
    assert before.values["A"] / before.values["B"] == after.values["A"] / after.values["B"] == pytest.approx(2)


def test_savings_are_averaged_as_ratios_and_bytes_arithmetically(result: StudyResult) -> None:
    saved, peak = result.means("time_saved", "A"), result.means("peak_memory")
    assert saved.values["base"] == pytest.approx(1 - 1 / 4), "of 1/2 and 1/8 of the time: 1 - sqrt(1/16)"
    assert not peak.geometric
    assert peak.values["A"] == 15, "of 10 and 20, on the traces that B completes too"


def test_tables_count_traces_in_a_mean_and_traces_out_of_memory(result: StudyResult) -> None:
    time, saved, peak = study_tables(result)
    assert time.rows[-2:] == [
        ("geomean (2 of 3)", "", "1.000", "4.000", "2.000"),
        ("OOM", "", "-", "-", "1 of 3"),
    ]
    assert saved.rows[-2][0] == "geomean (2 of 3)"
    assert peak.rows[-2][0] == "mean (2 of 3)"
    notes = table_notes(result)
    stated = "of the stated number of traces, those with a value for every run"
    assert notes[0] == f"geomean: geometric mean; mean: arithmetic mean {stated}"
    assert "OOM: number of traces on which a run is out of memory" in notes
    document = json.loads(json.dumps(result.to_dict()))
    assert document["means"][0]["traces"] == ["small", "middle"]
    assert document["means"][0]["out_of_memory"] == {"base": 0, "A": 0, "B": 1}


def test_comparisons_with_published_means_use_the_arithmetic_mean(result: StudyResult) -> None:
    (row,) = result.comparisons()
    assert row.simulated == pytest.approx((2 + 8 + 4) / 3)
    note = "means of published numbers, and simulated ones compared with them: arithmetic, as in the papers"
    assert note in table_notes(result)


def test_a_run_that_completes_no_trace_does_not_affect_other_means(result: StudyResult) -> None:
    none = StudyResult(result.study, {**result.cells, **{(trace, "B"): OOM for trace in result.study.traces}})
    means = none.means("time", "base")
    assert (means.label, means.values["B"], means.out_of_memory["B"]) == ("geomean", None, 3)
    assert means.values["A"] == pytest.approx(4), "the cube root of 2 * 8 * 4"


def test_there_is_no_mean_if_no_trace_is_completed_by_every_run(result: StudyResult) -> None:
    apart = {**result.cells, ("small", "B"): OOM, ("middle", "B"): OOM, ("large", "B"): cell(1), ("large", "A"): OOM}
    means = StudyResult(result.study, apart).means("time", "base")
    assert means.label == "geomean (0 of 3)"
    assert set(means.values.values()) == {None}


def test_a_budget_has_no_mean_if_a_trace_runs_out_of_memory(tmp_path: Path, study: Study) -> None:
    """A mean of the remaining traces would make less memory look faster."""
    swept = load_study(
        tmp_path / "means.yaml",
        {"runs.A.budgets": ["1 GB", "2 GB"], "runs.B": None, "tables": ["time"], "published": []},
    )
    times = {"base": (1, 1, 1), "A 1 GB": (2, 2, None), "A 2 GB": (1, 1, 64)}
    cells = {
        (trace, run): OOM if (time := each[at]) is None else cell(time)
        for run, each in times.items()
        for at, trace in enumerate(swept.traces)
    }
    (table,) = study_tables(StudyResult(swept, cells))
    assert table.headings == ("", "small", "middle", "large", "geomean", "OOM")
    assert table.rows[1:] == [
        ("A 1 GB", "2.000", "2.000", "-", "-", "1 of 3"),
        ("A 2 GB", "1.000", "1.000", "64.000", "4.000", "-"),
    ]
