"""The page: the template filled, with its style, its script and its figures inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from simgpu.papers.page.scales import COMMON
from simgpu.papers.page.told import MEANINGS, bars_told, look, papers_told
from simgpu.papers.recordings import HEADINGS, MANAGED_HEADINGS
from simgpu.papers.tables import parts_text
from simgpu.papers.verdicts import Verdict
from simgpu.report.template import filled, in_one_function
from simgpu.version import __version__

if TYPE_CHECKING:
    from simgpu.papers.outcome import Reproduction
    from simgpu.papers.page.figures import FigureTold
    from simgpu.papers.recordings import Recordings

#: What becomes of claims that are not met, in the words of a sentence.
_REST = {
    Verdict.NEAR: "within 25%",
    Verdict.OFF: "off by more",
    Verdict.BROKEN: "broken",
    Verdict.CANNOT: "not simulated",
    Verdict.FAILED: "not run for an error",
}
_RESOURCES = files("simgpu.papers.page") / "resources"


def page(found: Reproduction, figures: Mapping[str, Sequence[FigureTold]]) -> str:
    """The page as HTML; figures: by the key of their paper. The same results give the same text."""
    counts = found.counts()
    shown = [verdict for verdict in Verdict if counts[verdict]]
    patterns = {
        id_: pattern
        for told in figures.values()
        for figure in told
        if figure.drawing is not None
        for id_, pattern in figure.drawing.patterns.items()
    }
    return filled(
        _resource("page.html.j2"),
        style=_resource("style.css"),
        script=in_one_function([_resource("page.js")]),
        title="What papers claim, simulated" if found.claims else "Recordings, simulated",
        version=__version__,
        papers=papers_told(found),
        headline=_headline(found),
        parts_met=parts_text(found),
        bars=bars_told(found),
        verdicts=[(look(verdict), str(verdict), counts[verdict], MEANINGS[verdict]) for verdict in shown],
        band=(COMMON.band(0.25), COMMON.band(0.10)),
        goal=COMMON.place(1.0),
        figures=figures,
        shows={
            id_: [figure for told in figures.values() for figure in told if id_ in figure.claims]
            for id_ in (outcome.claim.id for outcome in found.claims)
        },
        patterns=sorted(patterns.values()),
        recordings=found.recordings,
        recordings_tables=[] if found.recordings is None else _recordings(found.recordings),
    )


def _headline(found: Reproduction) -> list[str]:
    """What came of predictions and of what was fitted, a line each."""
    told = []
    for fitted, name in ((False, "Predictions"), (True, "Fitted")):
        counts = found.counts(fitted=fitted)
        met = counts[Verdict.HOLDS] + counts[Verdict.CLOSE]
        parts = [(met, "met (holds, or within 10%)"), *((counts[verdict], words) for verdict, words in _REST.items())]
        if total := sum(counts.values()):
            told.append(f"{name}, {total}: " + ", ".join(f"{count} {words}" for count, words in parts if count))
    return told


def _recordings(recordings: Recordings) -> list[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Headings and rows of each table that has any."""
    tables = [(HEADINGS, recordings.rows()), (MANAGED_HEADINGS, recordings.managed_rows())]
    return [(headings, rows) for headings, rows in tables if rows]


def _resource(name: str) -> str:
    return (_RESOURCES / name).read_text(encoding="utf-8")
