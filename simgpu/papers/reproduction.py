"""The result of `reproduce`: simulated claims and the tests of rules, as counts, tables and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from simgpu.analysis.tables import table_html, table_text
from simgpu.papers.lines import WIDTH, Line, wrapped
from simgpu.papers.outcome import ClaimOutcome, PartOutcome, claim_lines
from simgpu.papers.verdicts import Verdict, here_text, published_text, ratio_text

if TYPE_CHECKING:
    import pandas as pd

    from simgpu.papers.claims import Claim, Paper
    from simgpu.papers.claims_file import PartSection
    from simgpu.papers.recordings import Recordings

REPRODUCTION_SCHEMA = "simgpu.reproduction/3"
_HEADINGS = ("", "rules", "compared", "holds", "within 10%", "within 25%", "off", "broken", "not simulated")


@dataclass(frozen=True, repr=False)
class Reproduction:
    """Published numbers and orders compared with simulated ones, and rules with their tests. Prints as tables.

    claims: outcomes of numbers and orders.
    rules: claims that are checked by tests, not simulated.
    recordings: recorded iterations compared with `ideal` and managed runs; None if not requested.
    """

    claims: tuple[ClaimOutcome, ...]
    rules: tuple[Claim, ...] = ()
    recordings: Recordings | None = field(default=None)

    @property
    def papers(self) -> tuple[Paper, ...]:
        """The papers of all claims and rules, without duplicates."""
        return tuple(dict.fromkeys(claim.paper for claim in (*(each.claim for each in self.claims), *self.rules)))

    def counts(self, paper: str = "", *, fitted: bool | None = None) -> dict[Verdict, int]:
        """Number of compared claims by verdict, without inputs.

        paper: count only the paper with this key. fitted: count only fitted claims (True) or predictions (False).
        """
        counted: Counter[Verdict] = Counter(
            each.verdict
            for each in self.claims
            if paper in ("", each.claim.paper.key) and fitted in (None, each.claim.fitted)
            if each.verdict is not Verdict.INPUT
        )
        return {verdict: counted[verdict] for verdict in Verdict}

    def part_counts(self, *, fitted: bool | None = None) -> dict[Verdict, int]:
        """Number of parts of compared claims by verdict, without inputs. fitted: as in `counts`."""
        counted: Counter[Verdict] = Counter(
            part.judged.verdict
            for each in self.claims
            if fitted in (None, each.claim.fitted)
            for part in each.parts
            if part.judged.verdict is not Verdict.INPUT
        )
        return {verdict: counted[verdict] for verdict in Verdict}

    def rules_of(self, paper: str = "", *, fitted: bool | None = None) -> list[Claim]:
        """The rules, without inputs. paper, fitted: as in `counts`."""
        return [
            rule
            for rule in self.rules
            if paper in ("", rule.paper.key) and fitted in (None, rule.fitted) and not _is_met_input(rule)
        ]

    @property
    def inputs(self) -> list[Claim]:
        """The claims that cannot fail, which count nowhere; without those that failed nevertheless."""
        compared = [each.claim for each in self.claims if each.verdict is Verdict.INPUT]
        return [*compared, *filter(_is_met_input, self.rules)]

    def __getitem__(self, id_: str) -> ClaimOutcome:
        """The outcome of the compared claim with this id. Raises `KeyError` for rules and unknown ids."""
        for each in self.claims:
            if each.claim.id == id_:
                return each
        raise KeyError(id_)

    def frame(self) -> pd.DataFrame:
        """One row per part of a compared claim: claim, where, states, kind, fitted, inferred, part, unit, published,
        simulated, ratio, verdict, detail and note."""
        import pandas as pd

        return pd.DataFrame([row for each in self.claims for row in _rows(each)])

    def rules_frame(self) -> pd.DataFrame:
        """One row per part of a rule: claim, where, states, kind, fitted, inferred, part, published, test, broken (why
        it does not hold here) and note."""
        import pandas as pd

        return pd.DataFrame([_about(rule) | row for rule in self.rules for row in _rule_parts(rule)])

    def causes_frame(self) -> pd.DataFrame:
        """One row per step of an experiment and part of a claim: claim, assumption, says, step, and part to detail as
        in `frame`."""
        import pandas as pd

        rows = [
            {"claim": each.claim.id, "assumption": experiment.name, "says": experiment.assumption.says}
            | {"step": step.label}
            | _part(part, each.claim.section.unit)
            for each in self.claims
            for experiment in each.experiments
            for step in experiment.steps
            for part in step.parts.values()
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """All results as plain values, for JSON."""
        return {
            "schema": REPRODUCTION_SCHEMA,
            "claims": [_claim(each) for each in self.claims],
            "rules": [_rule(rule) for rule in self.rules],
            "counts": {
                which: {str(verdict): count for verdict, count in self.counts(fitted=fitted).items()}
                for which, fitted in (("fitted", True), ("predicted", False))
            },
            "inputs": [claim.id for claim in self.inputs],
            "recordings": None if self.recordings is None else self.recordings.to_dict(),
        }

    def __repr__(self) -> str:
        claims = "\n".join(line.full for line in claim_lines(self.claims))
        rules = "\n".join(line.full for line in rule_lines(self.rules))
        headings, rows, below = summary(self)
        texts = (claims if self.claims else "", rules, table_text(headings, rows), "\n".join(wrap(below, WIDTH)))
        return "\n\n".join(filter(None, texts))

    def _repr_html_(self) -> str:
        headings, counted, below = summary(self)
        claims = table_html(
            ("claim", "part", "paper", "here", "ratio", "verdict"), _html_rows(self), "Claims", left=(1, 5)
        )
        tests = [
            (rule.id, part.name, f"broken: {part.test}" if part.broken else part.test or "")
            for rule in self.rules
            for part in rule.parts
        ]
        rules = table_html(("rule", "part", "test"), tests, "Rules", left=(1, 2)) if tests else ""
        return claims + rules + table_html(headings, counted, f"Number of claims by verdict. {below}")


class Summary(NamedTuple):
    """A table and the sentences below it."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    below: str


def summary(reproduction: Reproduction) -> Summary:
    """Number of claims by verdict: predictions and fitted claims of each paper, then of all papers if several.

    Below the table: the number of parts that are met and of rules that hold. An empty last column is omitted.
    """
    papers = reproduction.papers
    rows = [row for paper in papers for row in _counted_of(reproduction, paper.key, paper.name)]
    rows += _counted_of(reproduction, "", "all papers") if len(papers) > 1 else []
    columns = len(_HEADINGS) - (not any(row[-1] for row in rows))
    texts = (parts_text(reproduction), rules_text(reproduction), inputs_text(reproduction))
    below = " ".join(filter(None, texts))
    return Summary(_HEADINGS[:columns], [row[:columns] for row in rows], below)


def parts_text(reproduction: Reproduction) -> str:
    """A sentence with the number of parts that are met. (A claim is met only if all its parts are.)"""
    texts = []
    for fitted, group in ((False, "predictions"), (True, "fitted claims")):
        counts = reproduction.part_counts(fitted=fitted)
        if total := sum(counts.values()) - counts[Verdict.CANNOT]:
            texts.append(f"{counts[Verdict.HOLDS] + counts[Verdict.CLOSE]} of {total} in {group}")
    return f"Numbers and orders one by one: {' and '.join(texts)} hold or are within 10%." if texts else ""


def _is_met_input(rule: Claim) -> bool:
    return rule.is_input and not rule.broken


def inputs_text(reproduction: Reproduction) -> str:
    """A sentence with the number of claims that are inputs; empty without inputs."""
    count = len(reproduction.inputs)
    return f"Not counted, because they are inputs or arithmetic and cannot fail: {count}." if count else ""


def rules_text(reproduction: Reproduction) -> str:
    """A sentence with the number of rules and of rules that hold; empty without rules."""
    rules = reproduction.rules_of()
    return f"Rules held by tests: {_held(rules)}." if rules else ""


def rule_lines(rules: Iterable[Claim], width: int = WIDTH, *, every: bool = False) -> list[Line]:
    """Rules with the test of each part, as lines. Test ids are not wrapped: their lines may exceed `width`.

    every: include notes.
    """
    lines = [
        line
        for rule in rules
        for part in rule.parts
        for line in (
            Line(f"{rule.id}  {part.name}".rstrip() + "  ", *_rule_verdict(part)),
            Line(f"    {part.test}", note=True),
            *(Line(text, note=True) for text in wrapped(part.broken, width)),
            *(Line(text, note=True) for text in wrapped(f"input: {part.input}", width) if every and part.input),
            *(Line(text, note=True) for text in wrapped(f"note: {part.note}", width) if every and part.note),
        )
    ]
    return [Line("rule, checked by test", heading=True), *lines] if lines else []


def _rule_verdict(part: PartSection) -> tuple[str, Verdict | None]:
    verdict = Verdict.BROKEN if part.broken else Verdict.INPUT if part.input else None
    return verdict or "", verdict


def _html_rows(reproduction: Reproduction) -> list[tuple[str, ...]]:
    return [
        (
            outcome.claim.id + (" (fit)" if outcome.claim.fitted else ""),
            part.part.name,
            published_text(part.part, outcome.claim.section.unit),
            here_text(part.simulated, outcome.claim.section.unit),
            ratio_text(part.judged),
            part.verdict_text,
        )
        for outcome in reproduction.claims
        for part in outcome.parts
    ]


def _counted_of(reproduction: Reproduction, key: str, name: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for fitted in (False, True):
        counts, rules = reproduction.counts(key, fitted=fitted), reproduction.rules_of(key, fitted=fitted)
        if any(counts.values()) or rules:
            label = name if not fitted else "  fitted" if rows else f"{name}, fitted"
            rows.append(_counted(label, counts, rules))
    return rows


def _counted(name: str, counts: Mapping[Verdict, int], rules: list[Claim]) -> tuple[str, ...]:
    cannot = [str(counts[Verdict.CANNOT])] if counts[Verdict.CANNOT] else []
    if counts[Verdict.FAILED]:
        cannot.append(f"{counts[Verdict.FAILED]} failed")
    shown = (Verdict.HOLDS, Verdict.CLOSE, Verdict.NEAR, Verdict.OFF, Verdict.BROKEN)
    compared = str(sum(counts.values()) or "")
    return (name, _held(rules), compared, *(str(counts[verdict] or "") for verdict in shown), " + ".join(cannot))


def _held(rules: Iterable[Claim]) -> str:
    """The number of rules that hold: ``7``, or ``6 of 7`` if one is broken; empty without rules."""
    broken = [rule.broken for rule in rules]
    if not any(broken):
        return str(len(broken) or "")
    return f"{broken.count(False)} of {len(broken)}"


def _about(claim: Claim) -> dict[str, Any]:
    section = claim.section
    return {
        "claim": claim.id,
        "paper": claim.paper.name,
        "where": section.where,
        "states": section.states,
        "kind": claim.kind,
        "fitted": claim.fitted,
        "inferred": section.inferred,
    }


def _rows(outcome: ClaimOutcome) -> list[dict[str, Any]]:
    about, unit = _about(outcome.claim), outcome.claim.section.unit
    return [about | _part(part, unit) | {"note": part.part.note} for part in outcome.parts]


def _rule_parts(rule: Claim) -> list[dict[str, Any]]:
    return [
        {"part": part.name, "published": part.value, "test": part.test, "broken": part.broken, "input": part.input}
        | {"note": part.note}
        for part in rule.parts
    ]


def _rule(rule: Claim) -> dict[str, Any]:
    section = rule.section
    return {
        "id": rule.id,
        "paper": rule.paper.name,
        "where": section.where,
        "states": section.states,
        "inferred": section.inferred,
        "fit": section.fit,
        "parts": _rule_parts(rule),
    }


def _part(outcome: PartOutcome, unit: str) -> dict[str, Any]:
    part, judged = outcome.part, outcome.judged
    return {
        "part": part.name,
        "unit": unit,
        "published": part.value,
        "simulated": None if isinstance(outcome.simulated, Mapping) else outcome.simulated,
        "ratio": judged.ratio,
        "verdict": str(judged.verdict),
        "detail": judged.detail,
        "input": part.input,
    }


def _claim(outcome: ClaimOutcome) -> dict[str, Any]:
    claim, section = outcome.claim, outcome.claim.section
    return {
        "id": claim.id,
        "paper": claim.paper.name,
        "where": section.where,
        "states": section.states,
        "kind": claim.kind,
        "inferred": section.inferred,
        "fit": section.fit,
        "sources": list(outcome.sources),
        "verdict": str(outcome.verdict),
        "parts": [_part(part, section.unit) | {"note": part.part.note} for part in outcome.parts],
        "experiments": [
            {
                "name": experiment.name,
                "says": experiment.assumption.says,
                "steps": [
                    {"label": step.label, "parts": [_part(part, section.unit) for part in step.parts.values()]}
                    for step in experiment.steps
                ],
            }
            for experiment in outcome.experiments
        ],
    }
