"""The words of a reproduction: numbers, ratios and verdicts, and the summary that counts what was fitted apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from simgpu.analysis.tables import table_html
from simgpu.papers.verdicts import Judgement, Simulated, Verdict

if TYPE_CHECKING:
    from simgpu.papers.claims_file import PartSection
    from simgpu.papers.outcome import PartOutcome, Reproduction

_SUMMARY_HEADINGS = ("", "claims", "holds", "within 10%", "within 25%", "off", "broken", "not simulated")
_LIMITS = {"at_most": "<= ", "at_least": ">= "}


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
    """What is published, empty for a rule."""
    if part.value is None:
        return ""
    return _LIMITS.get(part.held or "", "") + number_text(part.value, unit)


def here_text(simulated: Simulated | None, unit: str = "") -> str:
    """What is simulated; of a rule, whether it holds.

    >>> here_text({"holds": False, "told": "one window is too long"}), here_text(0.25)
    ('does not hold', '0.25')
    """
    if isinstance(simulated, Mapping):
        return "holds" if simulated["holds"] else "does not hold"
    return number_text(simulated, unit)


def ratio_text(judged: Judgement) -> str:
    """Simulated over published in three digits, or a dash."""
    return "-" if judged.ratio is None else f"{judged.ratio:.3g}"


def verdict_text(outcome: PartOutcome) -> str:
    """The verdict, of a number that is not within 10% with how far it is away: ``off (+40%)``."""
    judged = outcome.judged
    away = judged.verdict in (Verdict.NEAR, Verdict.OFF) and _is_number(outcome) and judged.told
    return f"{judged.verdict} ({judged.told})" if away else str(judged.verdict)


def said(outcome: PartOutcome) -> str:
    """What is told beyond the verdict: on what a rule was tried, which members differ, why there is no number."""
    told = outcome.judged.told
    return "" if _is_number(outcome) or told == "the same" else told


def _is_number(outcome: PartOutcome) -> bool:
    return isinstance(outcome.simulated, int | float)


class Summary(NamedTuple):
    """A table, and a sentence below it."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    below: str


def summary(found: Reproduction) -> Summary:
    """How many claims have which verdict: of each paper those that are predicted, then those that something was fitted
    to; and of all papers together, where there are several. Below: how many of their parts are met.

    The last column is left out where nothing stands in it.
    """
    papers = dict.fromkeys(outcome.claim.paper for outcome in found.claims)
    rows = [row for paper in papers for row in _of(found, paper.key, paper.name)]
    rows += _of(found, "", "all papers") if len(papers) > 1 else []
    columns = len(_SUMMARY_HEADINGS) - (not any(row[-1] for row in rows))
    return Summary(_SUMMARY_HEADINGS[:columns], [row[:columns] for row in rows], parts_text(found))


def parts_text(found: Reproduction) -> str:
    """How many numbers and rules of the claims are met, one by one; a claim is only where all of its own are."""
    told = []
    for fitted, whose in ((False, "predictions"), (True, "fitted claims")):
        counts = found.part_counts(fitted=fitted)
        if total := sum(counts.values()) - counts[Verdict.CANNOT]:
            told.append(f"{counts[Verdict.HOLDS] + counts[Verdict.CLOSE]} of {total} in {whose}")
    return f"Numbers and rules one by one: {' and '.join(told)} hold or are within 10%." if told else ""


def reproduction_html(found: Reproduction) -> str:
    """All claims, a row a part, and the summary, for notebooks."""
    rows = [
        (
            outcome.claim.id + (" (fit)" if outcome.claim.fitted else ""),
            part.part.name,
            published_text(part.part, outcome.claim.section.unit),
            here_text(part.simulated, outcome.claim.section.unit),
            ratio_text(part.judged),
            verdict_text(part),
        )
        for outcome in found.claims
        for part in outcome.parts
    ]
    headings, counted, below = summary(found)
    claims = table_html(("claim", "part", "paper", "here", "ratio", "verdict"), rows, "Claims", left=(1, 5))
    return claims + table_html(headings, counted, f"How many claims have which verdict. {below}")


def _of(found: Reproduction, key: str, name: str) -> list[tuple[str, ...]]:
    predicted, fitted = (found.counts(key, fitted=fitted) for fitted in (False, True))
    rows = [_counted(name, predicted)] if any(predicted.values()) else []
    if any(fitted.values()):
        rows.append(_counted("  fitted" if rows else f"{name}, fitted", fitted))
    return rows


def _counted(name: str, counts: Mapping[Verdict, int]) -> tuple[str, ...]:
    cannot = [str(counts[Verdict.CANNOT])] if counts[Verdict.CANNOT] else []
    if counts[Verdict.FAILED]:
        cannot.append(f"{counts[Verdict.FAILED]} failed")
    shown = (Verdict.HOLDS, Verdict.CLOSE, Verdict.NEAR, Verdict.OFF, Verdict.BROKEN)
    return (name, str(sum(counts.values())), *(str(counts[verdict] or "") for verdict in shown), " + ".join(cannot))
