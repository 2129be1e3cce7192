"""The search of `joint`: descents from several placements, then random changes of the best one.

Where there are few enough placements, all of them are scored, so the best is found. Otherwise every start is improved
by exchanges of one decision and of two; the best of what comes of them is then changed at random in a few decisions at
a time, as long as evaluations are left, and improved again where that helped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from simgpu.planning.options import Vector
from simgpu.planning.search.enumeration import exhaustive
from simgpu.planning.search.exchange import descend, shuffled_pairs
from simgpu.planning.search.space import Score

#: So many placements are all tried.
ALL = 1 << 18

#: Part of the evaluations that each start may use.
_PART_OF_A_START = 8

#: Vectors changed at random at a time, and in how many places at most.
_BATCH, _PLACES = 2048, 6


@dataclass(frozen=True)
class Explored:
    """vector: the best one. score: as the evaluator scores. evaluations: how many. complete: whether all were tried."""

    vector: Vector
    score: int
    evaluations: int
    complete: bool


def explore(
    choices: Sequence[int],
    score: Score,
    starts: Sequence[Vector],
    limit: int,
    seed: int,
    enough: int,
    progress: Callable[[int], None],
) -> Explored:
    """The best vector found with about `limit` evaluations. enough: a score that none can be below.

    All vectors with HOME's three actions alone are tried where these are few enough, whatever the limit.

    >>> def score(vectors):
    ...     return 10 - vectors.sum(axis=1)
    >>> explore([3, 3], score, [(0, 0)], limit=100, seed=0, enough=0, progress=lambda used: None)
    Explored(vector=(2, 2), score=6, evaluations=9, complete=True)
    """
    if prod(choices) <= ALL:
        result = exhaustive(choices, score)
        return Explored(result.best, result.cost, result.evaluations, complete=True)
    search = _Search(choices, score, limit, seed, enough, progress)
    few = [min(count, 3) for count in choices]
    if prod(few) <= ALL:
        result = exhaustive(few, score)
        search.note(result.best, result.cost, result.evaluations)
        starts = (*starts, result.best)
    search.descend_from(starts)
    search.change_at_random()
    return Explored(search.vector, search.best, search.evaluations, complete=False)


class _Search:
    """vector: the best one; best: its score."""

    def __init__(
        self,
        choices: Sequence[int],
        score: Score,
        limit: int,
        seed: int,
        enough: int,
        progress: Callable[[int], None],
    ) -> None:
        self.choices = np.array(choices)
        self.score = score
        self.limit = limit
        self.enough = enough
        self.progress = progress
        self.rng = np.random.default_rng(seed)
        # More pairs than that cannot be tried: each has a vector or more.
        self.pairs = shuffled_pairs(len(choices), seed)[:limit]
        self.vector: Vector = (0,) * len(choices)
        self.best = int(score(np.zeros((1, len(choices)), np.int8))[0])
        self.evaluations = 1

    @property
    def done(self) -> bool:
        return self.evaluations >= self.limit or self.best <= self.enough

    def note(self, vector: Vector, score: int, evaluations: int) -> None:
        """Remember what is better."""
        self.evaluations += evaluations
        if score < self.best:
            self.vector, self.best = vector, score
        self.progress(self.evaluations)

    def descend_from(self, starts: Iterable[Vector]) -> None:
        """The best of what comes of each."""
        part = max(self.limit // _PART_OF_A_START, 1)
        for start in dict.fromkeys((self.vector, *starts)):
            if not self.done:
                result = descend(start, self.choices.tolist(), self.score, self.pairs, part)
                self.note(result.best, result.cost, result.evaluations)

    def change_at_random(self) -> None:
        """A few places of the best vector at a time; then descend from what is better."""
        while not self.done and len(self.choices):
            rows = np.tile(np.array(self.vector, np.int8), (_BATCH, 1))
            for _ in range(_PLACES):
                places = self.rng.integers(len(self.choices), size=_BATCH)
                # Fewer places in the first rows than in the last.
                some = self.rng.random(_BATCH) < np.linspace(0.3, 1, _BATCH)
                new = self.rng.integers(self.choices[places]).astype(np.int8)
                rows[some, places[some]] = new[some]
            scores = self.score(rows)
            first = int(scores.argmin())
            better = int(scores[first]) < self.best
            self.note(tuple(rows[first].tolist()), int(scores[first]), _BATCH)
            if better and not self.done:
                remaining = max(self.limit - self.evaluations, 1)
                result = descend(self.vector, self.choices.tolist(), self.score, limit=remaining)
                self.note(result.best, result.cost, result.evaluations)
