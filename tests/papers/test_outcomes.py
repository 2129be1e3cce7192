"""Outcomes of compared claims equal the recorded ones, and the README shows them.

Tests run the quick claims. ``pytest tests/papers/test_outcomes.py --every-claim results/reproduce`` runs all of
them, which takes minutes unless their results are cached in that folder; with ``--force-regen`` it rewrites the record.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from simgpu.papers.claims import select
from simgpu.papers.outcome import ClaimOutcome, PartOutcome
from simgpu.papers.reproduce import reproduce
from simgpu.papers.reproduction import summary

RECORD = Path(__file__).with_suffix("") / "outcomes.yml"
README = Path(__file__).parents[2] / "simgpu" / "papers" / "README.md"


def value(part: PartOutcome) -> Any:
    """A part of a claim in four digits."""
    if isinstance(part.simulated, Mapping):
        return bool(part.simulated["holds"])
    if isinstance(part.simulated, float | int):
        return f"{part.simulated:.4g}"
    return part.simulated


def recorded(outcome: ClaimOutcome) -> dict[str, Any]:
    """What the record has of a claim; of times of this machine nothing but that they were taken."""
    timed = any(part.part.timed for part in outcome.parts)
    parts = {part.part.name: "timed" if part.part.timed else value(part) for part in outcome.parts}
    return {"verdict": "timed" if timed else str(outcome.verdict), "parts": parts}


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    result: dict[str, Any] = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    return result


def test_the_record_has_every_compared_claim(record: dict[str, Any]) -> None:
    assert list(record["claims"]) == [claim.id for claim in select([]) if not claim.is_rule]


@pytest.mark.slow
def test_outcomes_are_those_on_record(request: pytest.FixtureRequest) -> None:
    every = request.config.getoption("--every-claim")
    jobs = len(os.sched_getaffinity(0)) if every else 1
    result = reproduce(quick=not every, folder=every, jobs=jobs)
    values = {each.claim.id: recorded(each) for each in result.claims}
    if every and request.config.getoption("--force-regen"):
        RECORD.parent.mkdir(exist_ok=True)
        headings, rows, below = summary(result)
        cells = [[cell.strip() for cell in row] for row in rows]
        document = {"claims": values, "headings": list(headings), "summary": cells, "below": below}
        text = yaml.safe_dump(document, sort_keys=False, width=120)
        RECORD.write_text(text, encoding="utf-8")
        pytest.fail("the record is written anew: look at it")
    assert len(values) > 20
    on_record = request.getfixturevalue("record")["claims"]
    assert values == {id_: on_record[id_] for id_ in values}


def test_the_readme_shows_the_record(record: dict[str, Any]) -> None:
    """Its table of claims by verdict, and the sentence below."""
    text = README.read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    start = rows.index(record["headings"])
    assert rows[start + 2 : start + 2 + len(record["summary"])] == record["summary"]
    assert record["below"] in " ".join(text.split())
