"""The scoreboard as one HTML page: every compared row with its source, the rest with reasons, and the figure.

Imports matplotlib, so import it only to write a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from simgpu.io.atomic import atomic_file
from simgpu.papers.page.svg import inline_svg
from simgpu.report.template import filled, resource
from simgpu.validation.public import tables
from simgpu.validation.public.coverage import coverage
from simgpu.validation.public.figure import plot_scoreboard
from simgpu.validation.public.predicted import ComparedPeak
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.selection import Subject
from simgpu.validation.public.several import coverage_of_several
from simgpu.validation.public.times import ComparedTime, Slowdown, slowdowns
from simgpu.version import __version__

_PACKAGE = "simgpu.validation.public"
#: What a row is about: headings of the first columns of each table of compared rows.
_ABOUT = ("row", "project", "model", "GPU", "micro-batch", "length", "options")
#: A source on GitHub: the repository, and then a pull request, an issue, or a file of a commit.
_SOURCE = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+) "
    r"(?:(?P<kind>PR|issue) #(?P<number>\d+)|(?P<path>[\w./-]+) \((?:commit )?(?P<commit>[0-9a-f]{7,40})\)$)?"
)


class _Cell(NamedTuple):
    """A cell of a table. url: empty for a text without a link."""

    text: str
    url: str = ""


class _Table(NamedTuple):
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[_Cell]]


def source_url(source: str) -> str:
    """The address of a source on GitHub; empty for one that names no repository.

    >>> source_url("pytorch/torchtitan PR #2570 (commit fca8ab7be)")
    'https://github.com/pytorch/torchtitan/pull/2570'
    >>> source_url("Lightning-AI/litgpt tutorials/resource-tables.md (26857050)")
    'https://github.com/Lightning-AI/litgpt/blob/26857050/tutorials/resource-tables.md'
    >>> source_url("axolotl branch protrain, DESIGN.md")
    ''
    """
    match = _SOURCE.match(source)
    if match is None:
        return ""
    repository = f"https://github.com/{match['repository']}"
    if match["kind"] is not None:
        return f"{repository}/{'pull' if match['kind'] == 'PR' else 'issues'}/{match['number']}"
    return repository if match["path"] is None else f"{repository}/blob/{match['commit']}/{match['path']}"


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """What a page shows. rows: all published ones; peaks, times: those compared; several: slowdowns of several GPUs."""

    rows: Sequence[PublishedRow]
    peaks: Sequence[ComparedPeak]
    times: Sequence[ComparedTime]
    several: Sequence[Slowdown]


def scoreboard_page(board: Scoreboard) -> str:
    """The page as HTML. The same values give the same text."""
    peaks, times = board.peaks, board.times
    return filled(
        resource(_PACKAGE, "page.html.j2"),
        style=resource(_PACKAGE, "style.css"),
        script="",
        version=__version__,
        count=len(board.rows),
        facts=list(_facts(board)),
        medians=list(tables.peak_medians(peaks))[:-1],  # without the verdicts, which the summary has
        figure=Markup(inline_svg(plot_scoreboard(peaks, times), "board-").text),
        compared=[
            _Table(
                "Peak memory",
                (*_ABOUT, "published", "kind", "predicted", "error"),
                [_line(peak.row, tables.peak_cells(peak)) for peak in peaks],
            ),
            _Table(
                "Time of a sample",
                (*_ABOUT, "published", "predicted", "error", "waits for the host"),
                [_line(time.row, tables.time_cells(time)) for time in times],
            ),
            _Table(
                "Slowdown over the baseline",
                (*_ABOUT, "baseline", "published", "predicted", "error"),
                [_line(each.row, tables.slowdown_cells(each)) for each in slowdowns(times)],
            ),
            _Table(
                "Slowdown of several GPUs, from the step of one",
                (*_ABOUT, "differs in", "GPUs", "baseline", "published", "predicted", "error"),
                [_line(each.row, _of_several(each)) for each in board.several],
            ),
        ],
        causes=tables.causes(peaks, times),
        reasons=[(title, numbers.items()) for title, numbers in _reasons(board.rows)],
        every=_Table("", ("row", "source", "model", *(subject.value for subject in Subject)), list(_every(board.rows))),
    )


def _reasons(rows: Sequence[PublishedRow]) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Numbers of rows that are not compared."""
    for part in (coverage(rows, subject) for subject in Subject):
        for title, numbers in tables.counts(part):
            yield f"{part.subject.value}: {title}", numbers
    yield "several GPUs: why a slowdown is not compared", tables.by_reason(coverage_of_several(rows))


def _facts(board: Scoreboard) -> Iterator[tuple[str, str]]:
    """The summary: names and texts."""
    (_, error, number), *_, (_, right, verdicts) = tables.peak_medians(board.peaks)
    yield "peak memory", f"median error {error} over {number} peaks; {right} of {verdicts} OOM verdicts are right"
    for name, error, number in tables.time_medians(board.times, slowdowns(board.times)):
        yield name, f"median error {error} over {number} rows"
    order = "; ".join(f"{subject} {right}" for subject, right in tables.order_rows(board.times, board.peaks))
    yield "pairs of a group in the measured order", order
    for subject in Subject:
        yield f"coverage, {subject.value}", tables.covered_text(coverage(board.rows, subject))
    yield "coverage, slowdown of several GPUs", tables.covered_text(coverage_of_several(board.rows))


def _of_several(each: Slowdown) -> tuple[str, ...]:
    return tables.option_of(each), str(each.row.gpus), *tables.slowdown_cells(each)


def _line(row: PublishedRow, cells: Iterable[str]) -> list[_Cell]:
    """A compared row: what it is about, and its values."""
    about = (row.project, row.model, row.gpu, row.sequences, row.tokens, row.options)
    texts = ["" if value in (None, 0) else str(value) for value in about]
    return [_Cell(row.id, source_url(row.source)), *map(_Cell, (*texts, *cells))]


def _every(rows: Iterable[PublishedRow]) -> Iterator[list[_Cell]]:
    for row in rows:
        source = _Cell(row.source, source_url(row.source))
        yield [_Cell(row.id), source, *map(_Cell, (row.model, *tables.verdicts_of(row)))]


def write_scoreboard(path: Path, board: Scoreboard) -> None:
    """Writes the page, or nothing. Raises `InputError` if the file cannot be written."""
    text = scoreboard_page(board)
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
