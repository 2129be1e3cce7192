"""Compares simulated values with published ones (`judge`), and formats both as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simgpu.papers.claims_file import PartSection

CLOSE, NEAR = 0.10, 0.25
_LIMITS = {"at_most": "<= ", "at_least": ">= "}
#: A value from a study or a check. A condition is a mapping with holds (bool) and detail (what was compared).
Simulated = float | int | str | list[str] | Mapping[str, object]


class Verdict(StrEnum):
    """The result of a comparison, best first."""

    HOLDS = "holds"
    CLOSE = "within 10%"
    NEAR = "within 25%"
    OFF = "off"
    BROKEN = "broken"
    FAILED = "failed"
    CANNOT = "not simulated"
    INPUT = "input"


#: From best to worst. CANNOT and INPUT are first: a claim gets them only if no other part is simulated.
_RANK = (
    Verdict.CANNOT,
    Verdict.INPUT,
    Verdict.HOLDS,
    Verdict.CLOSE,
    Verdict.NEAR,
    Verdict.OFF,
    Verdict.BROKEN,
    Verdict.FAILED,
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and its reason.

    ratio: simulated over published number, or effect where there is a value without one; for sets, shared members over
        all members; None if there is no ratio.
    detail: how far it is off, the evidence for an order, or why there is no number.
    """

    verdict: Verdict
    ratio: float | None = None
    detail: str = ""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a claim, from the verdicts of its parts.

    >>> worst([Verdict.CLOSE, Verdict.OFF, Verdict.CANNOT]), worst([Verdict.CANNOT])
    (<Verdict.OFF: 'off'>, <Verdict.CANNOT: 'not simulated'>)
    """
    return max(verdicts, key=_RANK.index)


def judge(part: PartSection, simulated: Simulated | None) -> Judgement:
    """The verdict on one part of a claim; on an input that agrees, `Verdict.INPUT`. simulated: None without a value."""
    judged = _judged(part, simulated)
    agrees = judged.verdict in (Verdict.HOLDS, Verdict.CLOSE)
    return replace(judged, verdict=Verdict.INPUT) if part.input and agrees else judged


def _judged(part: PartSection, simulated: Simulated | None) -> Judgement:
    if part.cannot:
        return Judgement(Verdict.CANNOT, detail=part.cannot)
    if simulated is None:
        graded = part.value is not None and part.comparison in (None, "near")
        return Judgement(Verdict.OFF if graded else Verdict.BROKEN, detail="no run has a value")
    if isinstance(simulated, Mapping):
        return Judgement(
            Verdict.HOLDS if simulated["holds"] else Verdict.BROKEN, detail=str(simulated.get("detail", ""))
        )
    if isinstance(part.value, list):
        return _of_sets(part, part.value, simulated)
    if part.value is None or isinstance(simulated, str | list):
        raise TypeError(f"{simulated!r} cannot be compared with {part.value!r}")
    return _of_numbers(part, part.value, simulated)


def _of_sets(part: PartSection, published: list[str], simulated: object) -> Judgement:
    if not isinstance(simulated, list):
        raise TypeError(f"{simulated!r} cannot be compared with a list")
    if part.comparison == "exactly":
        return Judgement(Verdict.HOLDS if simulated == published else Verdict.BROKEN)
    ours, theirs = set(simulated), set(published)
    if ours == theirs:
        return Judgement(Verdict.CLOSE, 1.0, "the same")
    shared = len(ours & theirs) / len(ours | theirs)
    only = [
        f"only {side}: {', '.join(sorted(members))}"
        for side, members in (("here", ours - theirs), ("published", theirs - ours))
        if members
    ]
    return Judgement(_graded(1 - shared), shared, "; ".join(only))


def _of_numbers(part: PartSection, published: float, simulated: float) -> Judgement:
    base = part.no_effect or 0.0
    effect = published - base
    ratio = (simulated - base) / effect if effect else None
    if part.comparison == "exactly":
        return Judgement(Verdict.HOLDS if simulated == published else Verdict.BROKEN, ratio)
    if part.comparison in ("at_most", "at_least"):
        over = simulated - published if part.comparison == "at_most" else published - simulated
        if over <= 0:
            return Judgement(Verdict.HOLDS, ratio, part.comparison.replace("_", " "))
        return _distance(over / abs(published) if published else float("inf"), ratio, simulated, published)
    error = simulated - published
    if part.resolution and abs(error) <= part.resolution / 2:
        return Judgement(Verdict.CLOSE, ratio, "the same when rounded")
    if ratio is None:
        return Judgement(Verdict.OFF, detail=f"by {error:+.3g}")
    return _distance(abs(ratio - 1), ratio, simulated, published)


def _distance(error: float, ratio: float | None, simulated: float, published: float) -> Judgement:
    verdict = _graded(error)
    if ratio is None or ratio <= 0:
        return Judgement(verdict, ratio, f"by {simulated - published:+.3g}")
    detail = f"{ratio - 1:+.1%}" if 0.1 < ratio < 10 else f"{ratio:.3g} times"
    return Judgement(verdict, ratio, detail)


def _graded(error: float) -> Verdict:
    # The slack absorbs rounding: a ratio of 1.1 is within 10%.
    slack = 1e-9
    if error <= CLOSE + slack:
        return Verdict.CLOSE
    return Verdict.NEAR if error <= NEAR + slack else Verdict.OFF


def number_text(value: object, unit: str = "") -> str:
    """A published or simulated value, in four digits.

    >>> number_text(1.2345), number_text(0.0008), number_text(2012.0), number_text(["MAX4"]), number_text(None)
    ('1.234', '0.0008', '2012', 'MAX4', '-')
    >>> number_text(146.21, "ms"), number_text(12345.6), number_text(0.1 + 0.2)
    ('146.2 ms', '12346', '0.3')
    """
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int | float):
        size = abs(value)
        text = f"{value:.0f}" if size >= 1000 else f"{value:.4g}"
        return f"{text} {unit}" if unit else text
    return str(value)


def published_text(part: PartSection, unit: str = "") -> str:
    """The published value as text; empty if there is none."""
    if part.value is None:
        return ""
    return _LIMITS.get(part.comparison or "", "") + number_text(part.value, unit)


def here_text(simulated: Simulated | None, unit: str = "") -> str:
    """The simulated value as text; for a condition, whether it holds.

    >>> here_text({"holds": False, "detail": "one window is too long"}), here_text(0.25)
    ('does not hold', '0.25')
    """
    if isinstance(simulated, Mapping):
        return "holds" if simulated["holds"] else "does not hold"
    return number_text(simulated, unit)


def ratio_text(judged: Judgement) -> str:
    """The ratio of simulated to published in three digits, or a dash."""
    return "-" if judged.ratio is None else f"{judged.ratio:.3g}"
