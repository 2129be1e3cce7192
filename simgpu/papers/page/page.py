"""Writes a reproduction as one page: fills the template with style, script and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.io.atomic import atomic_file
from simgpu.papers.page.scales import COMMON
from simgpu.papers.page.views import MEANINGS, bar_views, look, paper_views
from simgpu.papers.recordings import HEADINGS, MANAGED_HEADINGS
from simgpu.papers.reproduction import parts_text, rules_text
from simgpu.papers.verdicts import Verdict
from simgpu.report.template import check_page, filled, in_one_function, resource
from simgpu.version import __version__

if TYPE_CHECKING:
    from simgpu.papers.page.figures import FigureView
    from simgpu.papers.recordings import Recordings
    from simgpu.papers.reproduce import Run
    from simgpu.papers.reproduction import Reproduction

#: Verdicts of claims that are not met, worded for the headline.
_REST = {
    Verdict.NEAR: "within 25%",
    Verdict.OFF: "off by more",
    Verdict.BROKEN: "broken",
    Verdict.CANNOT: "not simulated",
    Verdict.FAILED: "failed with an error",
}
_resource = partial(resource, "simgpu.papers.page")


def page(reproduction: Reproduction, figures: Mapping[str, Sequence[FigureView]]) -> str:
    """The page as HTML. figures: by the key of their paper. The same results give the same text."""
    counts = reproduction.counts() | {
        Verdict.INPUT: [each.verdict for each in reproduction.claims].count(Verdict.INPUT)
    }
    shown = [verdict for verdict in Verdict if counts[verdict]]
    patterns = {
        id_: pattern
        for drawn in figures.values()
        for figure in drawn
        if figure.drawing is not None
        for id_, pattern in figure.drawing.patterns.items()
    }
    return filled(
        _resource("page.html.j2"),
        style=_resource("style.css"),
        script=in_one_function([_resource("page.js")]),
        title="Claims of papers, simulated" if reproduction.papers else "Recordings, simulated",
        version=__version__,
        papers=paper_views(reproduction),
        headline=_headline(reproduction),
        parts_met=" ".join(filter(None, (parts_text(reproduction), rules_text(reproduction)))),
        bars=bar_views(reproduction),
        verdicts=[(look(verdict), str(verdict), counts[verdict], MEANINGS[verdict]) for verdict in shown],
        band=(COMMON.band(0.25), COMMON.band(0.10)),
        goal=COMMON.place(1.0),
        figures=figures,
        shows={
            id_: [figure for drawn in figures.values() for figure in drawn if id_ in figure.claims]
            for id_ in (outcome.claim.id for outcome in reproduction.claims)
        },
        patterns=sorted(patterns.values()),
        recordings=reproduction.recordings,
        recordings_tables=[] if reproduction.recordings is None else _recordings(reproduction.recordings),
    )


def _headline(reproduction: Reproduction) -> list[str]:
    """Two lines with the numbers of verdicts: of predictions, and of fitted claims."""
    lines = []
    for fitted, name in ((False, "Predictions"), (True, "Fitted")):
        counts = reproduction.counts(fitted=fitted)
        met = counts[Verdict.HOLDS] + counts[Verdict.CLOSE]
        parts = [(met, "met (holds, or within 10%)"), *((counts[verdict], words) for verdict, words in _REST.items())]
        if total := sum(counts.values()):
            lines.append(f"{name}, {total}: " + ", ".join(f"{count} {words}" for count, words in parts if count))
    return lines


def _recordings(recordings: Recordings) -> list[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Headings and rows of the tables that are not empty."""
    tables = [(HEADINGS, recordings.rows()), (MANAGED_HEADINGS, recordings.managed_rows())]
    return [(headings, rows) for headings, rows in tables if rows]


def write_page(run: Run, reproduction: Reproduction, path: str | Path) -> Path:
    """Write a reproduction with its figures as one self-contained page without network requests. Returns the path.

    run: the run of the reproduction, with figures. The write is atomic; the same results give the same bytes. Raises
    `InputError` if the file cannot be written.
    """
    from simgpu.papers.page.figures import figures_of

    target = Path(path)
    check_target(target)
    text = page(reproduction, figures_of(run))
    with atomic_file(target) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return target


def check_target(path: Path) -> None:
    """Raise `InputError` if a page cannot be written to `path`. Call it before a long run."""
    check_page(path, "reproduction.html")
