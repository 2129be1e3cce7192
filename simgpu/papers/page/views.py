"""Converts claims to the texts and scale positions that the page's template shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from simgpu.papers.page.scales import COMMON, Band, Place, Scale, scale_of
from simgpu.papers.verdicts import Verdict, here_text, published_text, ratio_text, worst

if TYPE_CHECKING:
    from simgpu.papers.claims import Claim
    from simgpu.papers.claims_file import PartSection
    from simgpu.papers.outcome import ClaimOutcome, Experiment, PartOutcome
    from simgpu.papers.reproduction import Reproduction

#: The meaning of each verdict, shown in the legend.
MEANINGS = {
    Verdict.HOLDS: "an order or a bound that holds exactly",
    Verdict.CLOSE: "the simulated number is at most 10% away from the published one",
    Verdict.NEAR: "more than 10%, at most 25% away",
    Verdict.OFF: "more than 25% away; the distance is given next to it",
    Verdict.BROKEN: "an order or a bound that does not hold",
    Verdict.FAILED: "its simulation failed, which is no evidence about the paper",
    Verdict.CANNOT: "simulation cannot check it; the reason is given below it",
    Verdict.INPUT: "read back from a file, or arithmetic: it cannot fail, and counts nowhere",
}


class PartView(NamedTuple):
    """A part of a claim.

    place: position of its ratio on the common scale.
    look: CSS class of its verdict.
    timed: it is a time measured on this machine.
    wide: its values are sets.
    order: it has no published value.
    """

    name: str
    published: str
    here: str
    ratio: str
    place: Place | None
    look: str
    verdict: str
    explanation: str
    input: str
    note: str
    timed: bool
    wide: bool
    order: bool


class MovedView(NamedTuple):
    """A part of a claim at a step of an experiment."""

    here: str
    ratio: str
    place: Place | None
    look: str


class StepView(NamedTuple):
    """A step of an experiment: its parts, and the worst part's verdict."""

    label: str
    parts: tuple[MovedView, ...]
    look: str
    verdict: str


class CauseView(NamedTuple):
    """An assumption and its effect.

    parts: name and published value of each part.
    bands: the 25% and 10% bands of each part's scale; None without ratios.
    goals: position of the published number on each part's scale; None without ratios.
    """

    name: str
    says: str
    parts: tuple[tuple[str, str], ...]
    bands: tuple[tuple[Band, Band] | None, ...]
    goals: tuple[Place | None, ...]
    steps: tuple[StepView, ...]

    @property
    def published(self) -> bool:
        """Whether any part has a published value."""
        return any(value for _, value in self.parts)


class ClaimView(NamedTuple):
    """A claim. look: CSS class of its verdict. open: it is off or broken and has no experiment."""

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
    parts: tuple[PartView, ...]
    causes: tuple[CauseView, ...]
    open: bool


class RuleView(NamedTuple):
    """A rule. parts: name, published value, test, why it is broken, why it cannot fail, and note of each."""

    id: str
    where: str
    states: str
    fit: str
    parts: tuple[tuple[str, str, str, str, str, str], ...]


class PaperView(NamedTuple):
    """A paper, its compared claims and its rules."""

    key: str
    name: str
    source: str
    claims: tuple[ClaimView, ...]
    rules: tuple[RuleView, ...]


class BarView(NamedTuple):
    """The claims of a paper that are predictions, or that are fitted, as a bar.

    name: of the paper. sort: ``predictions`` or ``fitted``. claims: their number.
    parts: for each verdict (CSS class, verdict, number, width in percent of the longest bar).
    """

    name: str
    sort: str
    claims: int
    parts: tuple[tuple[str, str, int, float], ...]


def look(verdict: Verdict) -> str:
    """The CSS class of a verdict, which sets its colour.

    >>> look(Verdict.CLOSE)
    'close'
    """
    return verdict.name.lower()


def paper_views(reproduction: Reproduction) -> list[PaperView]:
    """All papers, in the order of their claims."""
    return [
        PaperView(
            paper.key,
            paper.name,
            paper.source,
            tuple(_claim(outcome) for outcome in reproduction.claims if outcome.claim.paper is paper),
            tuple(_rule(rule) for rule in reproduction.rules if rule.paper is paper),
        )
        for paper in reproduction.papers
    ]


def bar_views(reproduction: Reproduction) -> list[BarView]:
    """One bar for each paper's predictions and one for its fitted claims; the same for all papers if several."""
    rows = [(paper.key, paper.name) for paper in dict.fromkeys(outcome.claim.paper for outcome in reproduction.claims)]
    longest = max(
        (sum(reproduction.counts(key, fitted=fit).values()) for key, _ in rows for fit in (False, True)), default=0
    )
    bars = [bar for key, name in rows for bar in _bars(reproduction, key, name, longest)]
    return bars + (_bars(reproduction, "", "all papers", 0) if len(rows) > 1 else [])


def _bars(reproduction: Reproduction, key: str, name: str, longest: int) -> list[BarView]:
    """The bars of a paper. longest: number of claims of a full-width bar; 0 for the longest of these bars."""
    counted = {
        sort: {verdict: count for verdict, count in reproduction.counts(key, fitted=fitted).items() if count}
        for sort, fitted in (("predictions", False), ("fitted", True))
    }
    most = longest or max(sum(counts.values()) for counts in counted.values())
    return [
        BarView(
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


def _claim(outcome: ClaimOutcome) -> ClaimView:
    claim, section = outcome.claim, outcome.claim.section
    return ClaimView(
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


def _rule(rule: Claim) -> RuleView:
    section = rule.section
    parts = tuple(
        (part.name, published_text(part, section.unit), part.test or "", part.broken, part.input, part.note)
        for part in rule.parts
    )
    return RuleView(rule.id, section.where, section.states, section.fit, parts)


def _once(parts: Iterable[PartView]) -> tuple[PartView, ...]:
    """The parts, where only the last of consecutive parts with the same note has it."""
    views = tuple(parts)
    return (
        tuple(
            part._replace(note="", timed=False) if (part.note, part.timed) == (after.note, after.timed) else part
            for part, after in pairwise(views)
        )
        + views[-1:]
    )


def _part(outcome: PartOutcome, unit: str) -> PartView:
    part, judged = outcome.part, outcome.judged
    return PartView(
        name=part.name,
        published=_published(part, unit),
        here="" if outcome.simulated is None else here_text(outcome.simulated, unit),
        ratio="" if judged.ratio is None else ratio_text(judged),
        place=COMMON.place(judged.ratio),
        look=look(judged.verdict),
        verdict=outcome.verdict_text,
        explanation=outcome.explanation,
        input=part.input,
        note=part.note,
        timed=part.timed,
        wide=isinstance(part.value, list),
        order=part.value is None,
    )


def _published(part: PartSection, unit: str) -> str:
    return published_text(part, unit).replace("<=", "≤").replace(">=", "≥")


def _cause(outcome: ClaimOutcome, experiment: Experiment) -> CauseView:
    names = {name for step in experiment.steps for name in step.parts}
    before = [part for part in outcome.parts if part.part.name in names]
    rows = [("as it is", before), *((step.label, list(step.parts.values())) for step in experiment.steps)]
    scales = [scale_of(parts[at].judged.ratio for _, parts in rows) for at in range(len(before))]
    unit = outcome.claim.section.unit
    return CauseView(
        name=experiment.name,
        says=experiment.assumption.says,
        parts=tuple((part.part.name, _published(part.part, unit)) for part in before),
        bands=tuple(scale and (scale.band(0.25), scale.band(0.10)) for scale in scales),
        goals=tuple(scale and scale.place(1.0) for scale in scales),
        steps=tuple(_step(label, parts, scales, unit) for label, parts in rows),
    )


def _step(label: str, parts: Sequence[PartOutcome], scales: Sequence[Scale | None], unit: str) -> StepView:
    verdict = worst(part.judged.verdict for part in parts)
    moved = tuple(
        MovedView(
            here_text(part.simulated, unit),
            "" if part.judged.ratio is None else ratio_text(part.judged),
            scale and scale.place(part.judged.ratio),
            look(part.judged.verdict),
        )
        for part, scale in zip(parts, scales, strict=True)
    )
    return StepView(label, moved, look(verdict), str(verdict))
