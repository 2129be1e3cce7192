"""What the page tells of claims, as texts and places for the template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from simgpu.papers.page.scales import COMMON, Band, Place, Scale, scale_of
from simgpu.papers.tables import here_text, published_text, ratio_text, said, verdict_text
from simgpu.papers.verdicts import Verdict, worst

if TYPE_CHECKING:
    from simgpu.papers.claims import Paper
    from simgpu.papers.claims_file import PartSection
    from simgpu.papers.outcome import ClaimOutcome, Experiment, PartOutcome, Reproduction

#: What a reader has to know of each verdict.
MEANINGS = {
    Verdict.HOLDS: "a rule, an order or a bound that is kept exactly",
    Verdict.CLOSE: "the simulated number is at most 10% away from the published one",
    Verdict.NEAR: "more than 10%, at most 25% away",
    Verdict.OFF: "more than 25% away; by how much stands beside it",
    Verdict.BROKEN: "a rule, an order or a bound that is not kept",
    Verdict.FAILED: "it could not be run, which says nothing of the paper",
    Verdict.CANNOT: "nothing in a simulator can tell it; the reason stands beside it",
}


class PartTold(NamedTuple):
    """A part of a claim. look: of its verdict; place: of its ratio on the scale of all; wide: its values are sets;
    rule: it has none."""

    name: str
    published: str
    here: str
    ratio: str
    place: Place | None
    look: str
    verdict: str
    said: str
    note: str
    timed: bool
    wide: bool
    rule: bool


class MovedTold(NamedTuple):
    """A part of a claim at a step of an experiment."""

    here: str
    ratio: str
    place: Place | None
    look: str


class StepTold(NamedTuple):
    """A step of an experiment: the parts, and the verdict of the worst."""

    label: str
    parts: tuple[MovedTold, ...]
    look: str
    verdict: str


class CauseTold(NamedTuple):
    """An assumption, and what it does.

    parts: their names and published values. bands: of each, what is within 25% and 10%; goals: where the published
    number is.
    """

    name: str
    says: str
    parts: tuple[tuple[str, str], ...]
    bands: tuple[tuple[Band, Band] | None, ...]
    goals: tuple[Place | None, ...]
    steps: tuple[StepTold, ...]

    @property
    def published(self) -> bool:
        """Whether any of the parts has a published value."""
        return any(value for _, value in self.parts)


class ClaimTold(NamedTuple):
    """A claim; open: it is off, and no experiment of the file moves it."""

    id: str
    where: str
    states: str
    sources: str
    kind: str
    fit: str
    inferred: bool
    quick: bool
    look: str
    verdict: str
    parts: tuple[PartTold, ...]
    causes: tuple[CauseTold, ...]
    open: bool


class PaperTold(NamedTuple):
    """A paper and its claims."""

    key: str
    name: str
    source: str
    claims: tuple[ClaimTold, ...]


class BarTold(NamedTuple):
    """Claims of one sort by verdict: (look, verdict, how many, width in percent of the longest bar)."""

    name: str
    sort: str
    claims: int
    parts: tuple[tuple[str, str, int, float], ...]


def look(verdict: Verdict) -> str:
    """The class of a verdict's colour.

    >>> look(Verdict.CLOSE)
    'close'
    """
    return verdict.name.lower()


def papers_told(found: Reproduction) -> list[PaperTold]:
    """Every paper, in the order of its claims."""
    papers: dict[Paper, list[ClaimTold]] = {}
    for outcome in found.claims:
        papers.setdefault(outcome.claim.paper, []).append(_claim(outcome))
    return [PaperTold(paper.key, paper.name, paper.source, tuple(claims)) for paper, claims in papers.items()]


def bars_told(found: Reproduction) -> list[BarTold]:
    """A bar a paper of its predictions, one of what was fitted, and the same of all papers where there are several."""
    papers = dict.fromkeys(outcome.claim.paper for outcome in found.claims)
    rows = [(paper.key, paper.name) for paper in papers]
    longest = max((sum(found.counts(key, fitted=fit).values()) for key, _ in rows for fit in (False, True)), default=0)
    bars = [bar for key, name in rows for bar in _bars(found, key, name, longest)]
    return bars + (_bars(found, "", "all papers", 0) if len(rows) > 1 else [])


def _bars(found: Reproduction, key: str, name: str, longest: int) -> list[BarTold]:
    """longest: the claims of a bar as wide as there is room; 0: of the longest of these bars."""
    counted = {
        sort: {verdict: count for verdict, count in found.counts(key, fitted=fitted).items() if count}
        for sort, fitted in (("predictions", False), ("fitted", True))
    }
    most = longest or max(sum(counts.values()) for counts in counted.values())
    return [
        BarTold(
            name,
            sort,
            sum(counts.values()),
            tuple(
                (look(verdict), str(verdict), count, round(100 * count / most, 3)) for verdict, count in counts.items()
            ),
        )
        for sort, counts in counted.items()
        if counts
    ]


def _claim(outcome: ClaimOutcome) -> ClaimTold:
    claim, section = outcome.claim, outcome.claim.section
    return ClaimTold(
        id=claim.id,
        where=section.where,
        states=section.states,
        sources="; ".join(outcome.sources),
        kind=section.kind,
        fit=section.fit,
        inferred=section.inferred,
        quick=section.quick,
        look=look(outcome.verdict),
        verdict=str(outcome.verdict),
        parts=_once(_part(part, section.unit) for part in outcome.parts),
        causes=tuple(_cause(outcome, experiment) for experiment in outcome.experiments),
        open=outcome.verdict in (Verdict.OFF, Verdict.BROKEN) and not section.causes,
    )


def _once(parts: Iterable[PartTold]) -> tuple[PartTold, ...]:
    """The parts, of which those that follow each other with one note have it at the last alone."""
    told = tuple(parts)
    return (
        tuple(
            part._replace(note="", timed=False) if (part.note, part.timed) == (after.note, after.timed) else part
            for part, after in pairwise(told)
        )
        + told[-1:]
    )


def _part(outcome: PartOutcome, unit: str) -> PartTold:
    part, judged = outcome.part, outcome.judged
    return PartTold(
        name=part.name,
        published=_published(part, unit),
        here="" if outcome.simulated is None else here_text(outcome.simulated, unit),
        ratio="" if judged.ratio is None else ratio_text(judged),
        place=COMMON.place(judged.ratio),
        look=look(judged.verdict),
        verdict=verdict_text(outcome),
        said=said(outcome),
        note=part.note,
        timed=part.timed,
        wide=isinstance(part.value, list),
        rule=part.value is None,
    )


def _published(part: PartSection, unit: str) -> str:
    return published_text(part, unit).replace("<=", "≤").replace(">=", "≥")


def _cause(outcome: ClaimOutcome, experiment: Experiment) -> CauseTold:
    names = {name for step in experiment.steps for name in step.parts}
    before = [part for part in outcome.parts if part.part.name in names]
    rows = [("as it is", before), *((step.label, list(step.parts.values())) for step in experiment.steps)]
    scales = [scale_of(parts[at].judged.ratio for _, parts in rows) for at in range(len(before))]
    unit = outcome.claim.section.unit
    return CauseTold(
        name=experiment.name,
        says=experiment.assumption.says,
        parts=tuple((part.part.name, _published(part.part, unit)) for part in before),
        bands=tuple(scale and (scale.band(0.25), scale.band(0.10)) for scale in scales),
        goals=tuple(scale and scale.place(1.0) for scale in scales),
        steps=tuple(_step(label, parts, scales, unit) for label, parts in rows),
    )


def _step(label: str, parts: Sequence[PartOutcome], scales: Sequence[Scale | None], unit: str) -> StepTold:
    verdict = worst(part.judged.verdict for part in parts)
    moved = tuple(
        MovedTold(
            here_text(part.simulated, unit),
            "" if part.judged.ratio is None else ratio_text(part.judged),
            scale and scale.place(part.judged.ratio),
            look(part.judged.verdict),
        )
        for part, scale in zip(parts, scales, strict=True)
    )
    return StepTold(label, moved, look(verdict), str(verdict))
