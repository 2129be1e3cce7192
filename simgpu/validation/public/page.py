"""The scoreboard as one HTML page: every compared row with its source, the rest with reasons, and the figure.

Imports matplotlib, so import it only to write a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from simgpu.io.atomic import atomic_file
from simgpu.papers.page.svg import inline_svg
from simgpu.report.template import filled, resource
from simgpu.validation.public import tables
from simgpu.validation.public.coverage import Coverage, coverage
from simgpu.validation.public.figure import plot_scoreboard
from simgpu.validation.public.predicted import ComparedPeak
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.selection import Subject
from simgpu.validation.public.times import ComparedTime, slowdowns
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


def scoreboard_page(rows: Sequence[PublishedRow], peaks: Sequence[ComparedPeak], times: Sequence[ComparedTime]) -> str:
    """The page as HTML. The same values give the same text.

    rows: all published ones; peaks, times: those that are compared.
    """
    parts = [coverage(rows, subject) for subject in Subject]
    slower = slowdowns(times)
    return filled(
        resource(_PACKAGE, "page.html.j2"),
        style=resource(_PACKAGE, "style.css"),
        script="",
        version=__version__,
        count=len(rows),
        facts=_facts(peaks, times, parts),
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
                [_line(each.row, tables.slowdown_cells(each)) for each in slower],
            ),
        ],
        causes=tables.causes(peaks, times),
        reasons=[
            (f"{part.subject.value}: {title}", numbers.items())
            for part in parts
            for title, numbers in tables.counts(part)
        ],
        every=_Table("", ("row", "source", "model", *(subject.value for subject in Subject)), list(_every(rows))),
    )


def _facts(
    peaks: Sequence[ComparedPeak], times: Sequence[ComparedTime], parts: Sequence[Coverage]
) -> list[tuple[str, str]]:
    """The summary: names and texts."""
    (_, error, number), *_, (_, right, verdicts) = tables.peak_medians(peaks)
    facts = [("peak memory", f"median error {error} over {number} peaks; {right} of {verdicts} OOM verdicts are right")]
    for name, error, number in tables.time_medians(times, slowdowns(times)):
        facts.append((name, f"median error {error} over {number} rows"))
    order = "; ".join(f"{subject} {right}" for subject, right in tables.order_rows(times, peaks))
    facts.append(("pairs of a group in the measured order", order))
    return [*facts, *((f"coverage, {part.subject.value}", tables.covered_text(part)) for part in parts)]


def _line(row: PublishedRow, cells: Iterable[str]) -> list[_Cell]:
    """A compared row: what it is about, and its values."""
    about = (row.project, row.model, row.gpu, row.sequences, row.tokens, row.options)
    texts = ["" if value in (None, 0) else str(value) for value in about]
    return [_Cell(row.id, source_url(row.source)), *map(_Cell, (*texts, *cells))]


def _every(rows: Iterable[PublishedRow]) -> Iterator[list[_Cell]]:
    for row in rows:
        source = _Cell(row.source, source_url(row.source))
        yield [_Cell(row.id), source, *map(_Cell, (row.model, *tables.verdicts_of(row)))]


def write_scoreboard(
    path: Path, rows: Sequence[PublishedRow], peaks: Sequence[ComparedPeak], times: Sequence[ComparedTime]
) -> None:
    """Writes the page, or nothing. Raises `InputError` if the file cannot be written."""
    text = scoreboard_page(rows, peaks, times)
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
