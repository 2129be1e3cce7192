"""The scoreboard as a page: every row once with its source, the numbers of the tables, and texts that are escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

from simgpu.cli.validate_public import public
from simgpu.validation.public import tables
from simgpu.validation.public.page import Scoreboard, scoreboard_page, source_url
from simgpu.validation.public.predicted import compared, covered_rows, stored_predictions
from simgpu.validation.public.rows import published_rows
from simgpu.validation.public.several_times import compared_slowdowns, stored_times_of_several
from simgpu.validation.public.times import compared_times, stored_times, timed_rows

ROWS = published_rows()
PEAKS = compared(covered_rows(), stored_predictions())
TIMES = compared_times(timed_rows(), stored_times())
SEVERAL = compared_slowdowns(stored_times_of_several())
BOARD = Scoreboard(ROWS, PEAKS, TIMES, SEVERAL)


@pytest.fixture(scope="module")
def page() -> str:
    return scoreboard_page(BOARD)


def rows_of(page: str, title: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    part = page[page.index(f"<h2>{title}</h2>") :]
    body = part[part.index("<tbody>") : part.index("</tbody>")]
    cell = re.compile(r"<td[^>]*>(?:<a[^>]*>)?(.*?)(?:</a>)?</td>")
    return [list(map(unescape, cell.findall(line))) for line in re.findall(r"<tr>.*</tr>", body)]


def test_every_compared_value_is_in_its_table(page: str) -> None:
    peaks, times = rows_of(page, "Peak memory"), rows_of(page, "Time of a sample")
    assert [(row[0], *row[-4:]) for row in peaks] == [(peak.row.id, *tables.peak_cells(peak)) for peak in PEAKS]
    assert [(row[0], *row[-4:]) for row in times] == [(time.row.id, *tables.time_cells(time)) for time in TIMES]
    several = rows_of(page, "Slowdown of several GPUs, from the step of one")
    assert [(row[0], *row[-4:]) for row in several] == [(each.row.id, *tables.slowdown_cells(each)) for each in SEVERAL]


def test_every_row_is_listed_once_with_its_verdicts(page: str) -> None:
    listed = rows_of(page, "All rows, with the first reason against each")
    assert [(row[0], *row[-2:]) for row in listed] == [(row.id, *tables.verdicts_of(row)) for row in ROWS]


def test_hostile_texts_are_escaped(page: str) -> None:
    text = '<script>alert("1")</script>'
    rows = [replace(ROWS[0], model=text, source=f"{text} PR #1"), *ROWS[1:]]
    peaks = [replace(PEAKS[0], row=replace(PEAKS[0].row, options=text), cause=text), *PEAKS[1:]]
    hostile = scoreboard_page(replace(BOARD, rows=rows, peaks=peaks))
    assert hostile.count("<script") == page.count("<script") and "&lt;script&gt;" in hostile


def test_addresses_lead_to_the_repository_of_the_source() -> None:
    for row in ROWS:
        repository, url = row.source.split()[0], source_url(row.source)
        assert url.startswith(f"https://github.com/{repository}") if "/" in repository else not url


def test_the_command_writes_the_same_page(page: str, tmp_path: Path) -> None:
    target = tmp_path / "board.html"
    result = CliRunner().invoke(public, ["--page", str(target)])
    assert result.exit_code == 0 and target.read_text(encoding="utf-8") == page
    assert [each.name for each in tmp_path.iterdir()] == ["board.html"]


def test_another_kind_of_file_is_refused_and_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "board.csv"
    target.write_text("mine")
    result = CliRunner().invoke(public, ["--page", str(target)])
    assert result.exit_code != 0 and target.read_text() == "mine"
