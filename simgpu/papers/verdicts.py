"""Whether a simulated value is what a paper has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simgpu.papers.claims_file import PartSection

CLOSE, NEAR = 0.10, 0.25
#: What a study or a check gives; a rule gives a mapping with holds (bool) and told (what was compared).
Simulated = float | int | str | list[str] | Mapping[str, object]


class Verdict(StrEnum):
    """What became of a claim, best first."""

    HOLDS = "holds"
    CLOSE = "within 10%"
    NEAR = "within 25%"
    OFF = "off"
    BROKEN = "broken"
    FAILED = "failed"
    CANNOT = "not simulated"


#: From best to worst. What is not simulated says nothing of a claim whose other parts are.
_RANK = (Verdict.CANNOT, Verdict.HOLDS, Verdict.CLOSE, Verdict.NEAR, Verdict.OFF, Verdict.BROKEN, Verdict.FAILED)


@dataclass(frozen=True, slots=True)
class Judgement:
    """ratio: the simulated over the published number; of sets, the share of all members that both have. None where
    there is none. told: by how much it is off, or what a rule was held to.
    """

    verdict: Verdict
    ratio: float | None = None
    told: str = ""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a claim from those of its parts.

    >>> worst([Verdict.CLOSE, Verdict.OFF, Verdict.CANNOT]), worst([Verdict.CANNOT])
    (<Verdict.OFF: 'off'>, <Verdict.CANNOT: 'not simulated'>)
    """
    return max(verdicts, key=_RANK.index)


def judge(part: PartSection, simulated: Simulated | None) -> Judgement:
    """The verdict on one part of a claim; simulated: None where no run has a value."""
    if part.cannot:
        return Judgement(Verdict.CANNOT, told=part.cannot)
    if simulated is None:
        graded = part.value is not None and part.held in (None, "near")
        return Judgement(Verdict.OFF if graded else Verdict.BROKEN, told="no run has a value")
    if isinstance(simulated, Mapping):
        return Judgement(Verdict.HOLDS if simulated["holds"] else Verdict.BROKEN, told=str(simulated.get("told", "")))
    if isinstance(part.value, list):
        return _of_sets(part, part.value, simulated)
    if part.value is None or isinstance(simulated, str | list):
        raise TypeError(f"{simulated!r} cannot be held to {part.value!r}")
    return _of_numbers(part, part.value, simulated)


def _of_sets(part: PartSection, published: list[str], simulated: object) -> Judgement:
    if not isinstance(simulated, list):
        raise TypeError(f"{simulated!r} cannot be held to a list")
    if part.held == "exactly":
        return Judgement(Verdict.HOLDS if simulated == published else Verdict.BROKEN)
    ours, theirs = set(simulated), set(published)
    if ours == theirs:
        return Judgement(Verdict.CLOSE, 1.0, "the same")
    shared = len(ours & theirs) / len(ours | theirs)
    only = [
        f"only {whose}: {', '.join(sorted(left))}"
        for whose, left in (("here", ours - theirs), ("published", theirs - ours))
        if left
    ]
    return Judgement(_graded(1 - shared), shared, "; ".join(only))


def _of_numbers(part: PartSection, published: float, simulated: float) -> Judgement:
    ratio = simulated / published if published else None
    if part.held == "exactly":
        return Judgement(Verdict.HOLDS if simulated == published else Verdict.BROKEN, ratio)
    if part.held in ("at_most", "at_least"):
        over = simulated - published if part.held == "at_most" else published - simulated
        if over <= 0:
            return Judgement(Verdict.HOLDS, ratio, part.held.replace("_", " "))
        return _told(over / abs(published) if published else float("inf"), ratio, simulated, published)
    if ratio is None:
        within = abs(simulated) <= (part.resolution or 0) / 2
        return Judgement(Verdict.CLOSE) if within else Judgement(Verdict.OFF, told=f"by {simulated:+.3g}")
    return _told(abs(ratio - 1), ratio, simulated, published)


def _told(error: float, ratio: float | None, simulated: float, published: float) -> Judgement:
    verdict = _graded(error)
    if ratio is None or ratio <= 0:
        return Judgement(verdict, ratio, f"by {simulated - published:+.3g}")
    told = f"{ratio - 1:+.1%}" if 0.1 < ratio < 10 else f"{ratio:.3g} times"
    return Judgement(verdict, ratio, told)


def _graded(error: float) -> Verdict:
    # A ratio of 1.1 is within 10%, whatever its last bit is.
    slack = 1e-9
    if error <= CLOSE + slack:
        return Verdict.CLOSE
    return Verdict.NEAR if error <= NEAR + slack else Verdict.OFF
