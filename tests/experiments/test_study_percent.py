"""A study's budgets in percent: in its tables and its CSV, and the messages of runs that do not fit."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.study import StudyResult, run_study
from simgpu.experiments.study_tables import failures, study_tables
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace
from tests.cli.cli_helpers import simgpu

#: The peaks of the two chains are 300 and 600 bytes.
FILE = """\
schema: simgpu.study/2
node: v100
traces: {short: short, long: long}
runs:
  none: {policy: none}
  fixed: {policy: none, budget: 1 kB}
  parts: {policy: none, budgets: [50%, 100%, 9%]}
  own: {policy: none, budget: 1 kB, per_trace: {long: {budget: 12.5%}}}
baseline: none
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for name, sizes in (("short", [100, 200]), ("long", [200, 400])):
        write_trace(chain([5, 7], [10, 14], sizes), tmp_path / name)
    file = tmp_path / "try.yaml"
    file.write_text(FILE, encoding="utf-8")
    return file


@pytest.fixture
def result(path: Path) -> StudyResult:
    return run_study(load_study(path))


def test_a_table_shows_the_budgets_of_runs_with_percentages(result: StudyResult) -> None:
    _, budgets = study_tables(result)
    assert budgets.title == "budgets, as parts of the peak without offloading"
    assert budgets.headings == ("", "short", "long")
    assert budgets.rows == [
        ("parts 50%", "150 B (50%)", "300 B (50%)"),
        ("parts 100%", "300 B (100%)", "600 B (100%)"),
        ("parts 9%", "27 B (9%)", "54 B (9%)"),
        ("own", "1000 B", "75 B (12.5%)"),
        ("peak", "300 B", "600 B"),
    ]
    assert "(12.5%)" in repr(result)


def test_the_csv_has_the_parts_and_the_peaks(path: Path, tmp_path: Path) -> None:
    done = simgpu("study", path, "-q", "-j", 1, "-o", tmp_path / "out")
    assert "budgets, as parts of the peak without offloading" in done.stdout
    with (tmp_path / "out" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["trace"], row["run"]): row for row in csv.DictReader(file)}
    shown = {key: (row["budget_bytes"], row["budget_part"], row["plain_peak_bytes"]) for key, row in rows.items()}
    assert shown["long", "parts 50%"] == ("300", "50%", "600")
    assert shown["long", "own"] == ("75", "12.5%", "600")
    assert shown["short", "own"] == shown["short", "fixed"] == ("1000", "", "")


def test_without_percentages_there_is_neither_a_table_nor_a_column(path: Path) -> None:
    sizes = {"runs": {"none": {"policy": "none"}, "fixed": {"policy": "none", "budget": "1 kB"}}}
    plain = run_study(load_study(path, sizes))
    assert [table.title for table in study_tables(plain)] == ["throughput over none"]
    assert not {"budget_part", "plain_peak_bytes"} & set(plain.frame())


def test_the_largest_percentage_that_does_not_fit_is_explained(result: StudyResult) -> None:
    runs = [text.split(": ")[0] for text in failures(result)]
    assert runs == ["short, parts 50%", "long, parts 50%", "long, own"]


@pytest.mark.parametrize("columns", ["80", "50"])
def test_messages_about_memory_have_the_width_of_the_terminal(
    path: Path, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = simgpu("study", path, "-q", "-j", 1)
    lines = done.stderr.splitlines()
    starts = [line for line in lines if line and not line.startswith(" ")]
    assert [line.split(": ")[0] for line in starts] == ["short, parts 50%", "long, parts 50%", "long, own"]
    assert max(map(len, lines)) <= int(columns) and len(lines) > 2 * len(starts), lines
