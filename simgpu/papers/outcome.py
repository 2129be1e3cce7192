"""What came of claims: values beside values, verdicts, and what moves those that are off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simgpu.papers.verdicts import Judgement, Simulated, Verdict, worst

if TYPE_CHECKING:
    import pandas as pd

    from simgpu.papers.claims import Claim
    from simgpu.papers.claims_file import AssumptionSection, PartSection
    from simgpu.papers.recordings import Recordings

REPRODUCTION_SCHEMA = "simgpu.reproduction/1"


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """A part of a claim beside what is simulated; simulated: None where there is no value."""

    part: PartSection
    simulated: Simulated | None
    judged: Judgement


@dataclass(frozen=True, slots=True)
class Step:
    """An assumption changed: its label, and the parts of the claim then, by name."""

    label: str
    parts: Mapping[str, PartOutcome]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What an assumption does to a claim."""

    name: str
    assumption: AssumptionSection
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, repr=False)
class ClaimOutcome:
    """A claim with its parts and, where they were run, the experiments on its causes; sources: where its numbers come
    from here, in words. Prints as rows of a table.
    """

    claim: Claim
    parts: tuple[PartOutcome, ...]
    experiments: tuple[Experiment, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """That of the worst part; of what cannot be simulated only where nothing can."""
        return worst(part.judged.verdict for part in self.parts)

    def __repr__(self) -> str:
        from simgpu.papers.lines import claim_lines

        return "\n".join(line.whole for line in claim_lines([self], every=True))


@dataclass(frozen=True, repr=False)
class Reproduction:
    """Claims beside what is simulated. Prints as a table; `frame` has one row a part.

    recordings: how `ideal` and managed runs compare with recordings; None where that was not asked for.
    """

    claims: tuple[ClaimOutcome, ...]
    recordings: Recordings | None = field(default=None)

    def counts(self, paper: str = "", *, fitted: bool | None = None) -> dict[Verdict, int]:
        """How many claims have which verdict; of one paper by its key, of fitted ones or of predictions alone."""
        found = Counter(
            each.verdict
            for each in self.claims
            if paper in ("", each.claim.paper.key) and fitted in (None, each.claim.fitted)
        )
        return {verdict: found[verdict] for verdict in Verdict}

    def part_counts(self, *, fitted: bool | None = None) -> dict[Verdict, int]:
        """The same of the parts of claims, each by itself."""
        found = Counter(
            part.judged.verdict for each in self.claims if fitted in (None, each.claim.fitted) for part in each.parts
        )
        return {verdict: found[verdict] for verdict in Verdict}

    def __getitem__(self, id_: str) -> ClaimOutcome:
        """The outcome of a claim by its id; `KeyError` for one that is not among these."""
        for each in self.claims:
            if each.claim.id == id_:
                return each
        raise KeyError(id_)

    def frame(self) -> pd.DataFrame:
        """One row a part of a claim: claim, where, what it states, kind, fitted, inferred, published, simulated, ratio,
        verdict, what is told of it, and notes."""
        import pandas as pd

        return pd.DataFrame([row for each in self.claims for row in _rows(each)])

    def causes_frame(self) -> pd.DataFrame:
        """One row a part of a claim at a step of an experiment: claim, assumption, step, and as in `frame`."""
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
        """Everything as plain values, for JSON."""
        return {
            "schema": REPRODUCTION_SCHEMA,
            "claims": [_claim(each) for each in self.claims],
            "counts": {
                which: {str(verdict): count for verdict, count in self.counts(fitted=fitted).items()}
                for which, fitted in (("fitted", True), ("predicted", False))
            },
            "recordings": None if self.recordings is None else self.recordings.to_dict(),
        }

    def __repr__(self) -> str:
        from simgpu.papers.lines import reproduction_text

        return reproduction_text(self)

    def _repr_html_(self) -> str:
        from simgpu.papers.tables import reproduction_html

        return reproduction_html(self)


def _rows(outcome: ClaimOutcome) -> list[dict[str, Any]]:
    claim = outcome.claim
    section = claim.section
    about: dict[str, Any] = {
        "claim": claim.id,
        "paper": claim.paper.name,
        "where": section.where,
        "states": section.states,
    }
    about |= {"kind": claim.kind, "fitted": claim.fitted, "inferred": section.inferred}
    return [about | _part(part, section.unit) | {"note": part.part.note} for part in outcome.parts]


def _part(outcome: PartOutcome, unit: str) -> dict[str, Any]:
    part, judged = outcome.part, outcome.judged
    rule = isinstance(outcome.simulated, Mapping)
    return {
        "part": part.name,
        "unit": unit,
        "published": part.value,
        "simulated": None if rule else outcome.simulated,
        "ratio": judged.ratio,
        "verdict": str(judged.verdict),
        "told": judged.told,
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
