"""A reproduction as text: the table of claims, and the summary that counts what was fitted apart.

Lives here: rows and their words. Does not live here: the numbers (`simgpu.reproduction.outcome`), or how a terminal
shows them (`simgpu.cli.reproduce`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simgpu.analysis.tables import table_text
from simgpu.reproduction.verdicts import Simulated, Verdict

if TYPE_CHECKING:
    from simgpu.reproduction.claims import Paper
    from simgpu.reproduction.outcome import ClaimOutcome, PartOutcome, Reproduction

HEADINGS = ("claim", "paper", "here", "ratio", "verdict")
SUMMARY_HEADINGS = ("", "claims", "holds", "within 10%", "within 25%", "off", "broken", "not simulated")


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


def claim_rows(outcome: ClaimOutcome) -> list[tuple[str, ...]]:
    """A claim as rows of the columns in `HEADINGS`: one of a claim with one part, else one for it and one a part."""
    unit = outcome.claim.section.unit
    name = outcome.claim.id + (" (fit)" if outcome.claim.fitted else "")
    if len(outcome.parts) == 1:
        return [(name, *_part_cells(outcome.parts[0], unit))]
    return [
        (name, "", "", "", str(outcome.verdict)),
        *((f"  {part.part.name}", *_part_cells(part, unit)) for part in outcome.parts),
    ]


def _part_cells(outcome: PartOutcome, unit: str) -> tuple[str, str, str, str]:
    judged = outcome.judged
    published, ours = number_text(outcome.part.value, unit), _ours(outcome.simulated, unit)
    if outcome.part.held in ("at_most", "at_least"):
        published = f"{outcome.part.held.replace('_', ' ')} {published}"
    ratio = "-" if judged.ratio is None else f"{judged.ratio:.3g}"
    off = judged.verdict in (Verdict.NEAR, Verdict.OFF) and not isinstance(outcome.part.value, list)
    verdict = f"{judged.verdict} ({judged.told})" if off and judged.told else str(judged.verdict)
    return published, ours, ratio, verdict


def _ours(simulated: Simulated | None, unit: str) -> str:
    if isinstance(simulated, Mapping):
        return "holds" if simulated["holds"] else "does not hold"
    return number_text(simulated, unit)


def summary_rows(found: Reproduction) -> list[tuple[str, ...]]:
    """How many claims have which verdict: of each paper what was fitted, then predictions, and of all."""
    papers = dict.fromkeys(outcome.claim.paper for outcome in found.claims)
    rows = [row for paper in papers for row in _of_paper(found, paper)]
    for fitted, name in ((False, "all predictions"), (True, "all fitted")):
        rows.append(_counted(name, found.counts(fitted=fitted)))
    return rows


def _of_paper(found: Reproduction, paper: Paper) -> list[tuple[str, ...]]:
    rows = []
    for fitted, name in ((False, paper.name), (True, "  fitted")):
        counts = found.counts(paper.key, fitted=fitted)
        if sum(counts.values()):
            rows.append(_counted(name, counts))
    return rows


def _counted(name: str, counts: Mapping[Verdict, int]) -> tuple[str, ...]:
    cannot = counts[Verdict.CANNOT] + counts[Verdict.FAILED]
    shown = (Verdict.HOLDS, Verdict.CLOSE, Verdict.NEAR, Verdict.OFF, Verdict.BROKEN)
    return (name, str(sum(counts.values())), *(str(counts[verdict] or "") for verdict in shown), str(cannot or ""))


def reproduction_text(found: Reproduction) -> str:
    """All claims and the summary."""
    rows = [row for outcome in found.claims for row in claim_rows(outcome)]
    return f"{table_text(HEADINGS, rows)}\n\n{table_text(SUMMARY_HEADINGS, summary_rows(found))}"
