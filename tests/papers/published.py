"""The figures that the papers state, by claim, as `simgpu.papers.claims` lists them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from simgpu.papers.claims import load_papers


def flat(value: object) -> Iterator[object]:
    """The figures in a claim's value, however nested."""
    if isinstance(value, list) and not all(isinstance(each, str) for each in value):
        for each in value:
            yield from flat(each)
    elif value is not None:
        yield value


@cache
def published() -> dict[str, Any]:
    """By claim its figure, or the list of its figures. `tests/papers/test_claims.py` compares them with the papers."""
    result = {}
    for paper in load_papers():
        for claim in paper.claims:
            figures = [each for part in claim.parts for each in flat(part.value)]
            result[claim.id] = figures[0] if len(figures) == 1 else figures
    return result
