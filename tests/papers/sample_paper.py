"""A sample paper with claims of every kind, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpu.papers.checks.results import condition
from simgpu.papers.claims import Claim, Paper
from simgpu.papers.claims_file import PaperFile
from simgpu.papers.outcome import ClaimOutcome, Experiment, PartOutcome, Step
from simgpu.papers.reproduction import Reproduction
from simgpu.papers.verdicts import Judgement, Simulated, Verdict, judge

#: Text that a page must escape.
NASTY = "</script><b>&amp; 'bold'"
FILE: dict[str, Any] = {
    "schema": "simgpu.claims/2",
    "paper": "SAMPLE",
    "source": "Nobody et al., Journal of Sample Claims 2020",
    "claims": {
        "speed": {
            "where": "V-A, fig 6",
            "states": "How many times as fast training is as with everything swapped",
            "parts": [
                {"name": "mean", "value": 1.25, "from": "speeds.mean"},
                {"name": "best", "value": 2.0, "from": "speeds.best"},
            ],
            "causes": ["link"],
        },
        "rates.a_very_long_name.of_a_claim.that_takes_room": {
            "where": "IV",
            "states": "What the link reaches",
            "unit": "GB/s",
            "fit": "the node's bandwidth out, to this very number",
            "parts": [{"value": 11.7, "from": "speeds.link", "timed": True}],
            "quick": True,
        },
        "order": {
            "where": "eq 3",
            "states": f"When a prefetch must start {NASTY}",
            "kind": "order",
            "parts": [{"from": "rules.prefetch"}],
        },
        "rule": {
            "where": "eq 5",
            "states": f"What is prefetched {NASTY}",
            "kind": "rule",
            "parts": [
                {"name": "kept", "value": 3, "test": "tests/papers/test_sample.py::test_kept", "note": "of three"},
                {"name": "size", "test": "tests/papers/test_sample.py::test_size", "broken": "sizes are rounded up"},
            ],
        },
        "broken": {
            "where": "eq 4",
            "states": "When it may end",
            "kind": "order",
            "parts": [
                {"name": "an order", "from": "rules.end"},
                {"name": "a bound", "value": 3, "is": "at_most", "from": "rules.least"},
            ],
        },
        "layers": {
            "where": "fig 8",
            "states": "Layers that are never compressed",
            "parts": [{"value": ["MAX1", "MAX2", "ReLU7", "ReLU8"], "from": "rules.layers"}],
        },
        "opinion": {
            "where": "VI",
            "states": "How many readers agree",
            "inferred": True,
            "parts": [{"value": 0.9, "cannot": "a simulator meets no readers"}],
        },
        "half": {
            "where": "VI",
            "states": "A time, and another that nobody can know",
            "unit": "ms",
            "parts": [
                {"name": "known", "value": 100, "from": "speeds.time", "note": "read off a picture"},
                {"name": "unknown", "value": 7, "cannot": "only its sum with others is published"},
            ],
        },
        "shapes": {
            "where": "IX",
            "states": "How many layers there are",
            "parts": [{"value": 2.5, "from": "rules.least", "input": "arithmetic: the network's own layers"}],
        },
        "missing": {"where": "VII", "states": "Something that breaks", "parts": [{"value": 1, "from": "speeds.none"}]},
    },
    "assumptions": {
        "link": {
            "says": "The link is taken to be 12 GB/s in both directions. At the 16 GB/s of the data sheet the best "
            "case comes to what is published, and the mean nearly so.",
            "steps": {"14 GB/s": {"check": {"rate": 14}}, "16 GB/s": {"check": {"rate": 16}}},
        }
    },
    "figures": [
        {"title": "Speed by network", "check": "speeds.bars"},
        {"title": "Speed by rate", "check": "speeds.lines"},
        {"title": "Who is compressed when", "check": "rules.cells"},
    ],
}
VALUES: dict[str, list[Simulated]] = {
    "speed": [1.43, 1.2],
    "rates.a_very_long_name.of_a_claim.that_takes_room": [11.7],
    "order": [condition(True, "2000 random schedules, against the equation")],
    "broken": [condition(False, "window 7 ends after 12 ns, not 11"), 2.5],
    "layers": [["MAX1", "MAX2", "ReLU8", "ReLU9"]],
    "half": [118.0],
    "shapes": [2.5],
}
#: Of the parts of ``speed`` by the step of the experiment.
MOVED = {"14 GB/s": [1.35, 1.6], "16 GB/s": [1.28, 1.96]}


def sample_paper(**changes: Any) -> Paper:
    """The paper; changes: to its file."""
    file = PaperFile.model_validate(FILE | changes)
    return Paper("sample", file.paper, file.source, {}, file.claims, file.assumptions, tuple(file.figures))


def sample(paper: Paper | None = None, values: Mapping[str, list[Simulated]] = VALUES) -> Reproduction:
    """The outcomes of its claims with experiments, without running anything."""
    claims = (paper or sample_paper()).claims
    return Reproduction(
        tuple(_outcome(claim, values) for claim in claims if not claim.is_rule),
        tuple(claim for claim in claims if claim.is_rule),
    )


def _outcome(claim: Claim, values: Mapping[str, list[Simulated]]) -> ClaimOutcome:
    name = claim.id.removeprefix("sample.")
    if name == "missing":
        failed = Judgement(Verdict.FAILED, detail="ValueError: there is nothing to divide by")
        return ClaimOutcome(claim, (PartOutcome(claim.parts[0], None, failed),))
    simulated = [*values.get(name, []), *[None] * len(claim.parts)]
    parts = _parts(claim, simulated)
    experiments = tuple(
        Experiment(cause, claim.paper.assumptions[cause], tuple(_step(claim, label) for label in MOVED))
        for cause in claim.section.causes
    )
    return ClaimOutcome(claim, parts, experiments)


def _step(claim: Claim, label: str) -> Step:
    values: list[Simulated | None] = [*MOVED[label]]
    return Step(label, {part.part.name: part for part in _parts(claim, values)})


def _parts(claim: Claim, values: list[Simulated | None]) -> tuple[PartOutcome, ...]:
    return tuple(PartOutcome(part, value, judge(part, value)) for part, value in zip(claim.parts, values, strict=False))
