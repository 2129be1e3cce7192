"""The search of `joint`: descents from several placements, then random changes of the best one.

If there are few enough placements, all are scored, so the result is optimal. Otherwise each start is improved by
exchanges of one decision and of two. While evaluations remain, a few decisions of the best vector are then changed at
random, and the result is improved again where that helped.
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

#: Up to this many placements, all are scored.
ALL = 1 << 18

#: Each start may use this part (1/n) of the evaluations.
_PART_OF_A_START = 8

#: Vectors changed at random at a time, and the most places changed in each.
_BATCH, _PLACES = 2048, 6


@dataclass(frozen=True)
class Explored:
    """vector: the best one. score: its score. evaluations: their number. complete: whether all vectors were scored."""

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
    """The best vector of about `limit` evaluations. enough: a lower bound of the scores, which ends the search.

    If there are few enough vectors with only HOME's three actions, all of these are scored, whatever the limit.

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
        # Each pair needs at least one evaluation, so no more than `limit` pairs can be tried.
        self.pairs = shuffled_pairs(len(choices), seed)[:limit]
        self.vector: Vector = (0,) * len(choices)
        self.best = int(score(np.zeros((1, len(choices)), np.int8))[0])
        self.evaluations = 1

    @property
    def done(self) -> bool:
        return self.evaluations >= self.limit or self.best <= self.enough

    def note(self, vector: Vector, score: int, evaluations: int) -> None:
        """Keep the vector if it is better."""
        self.evaluations += evaluations
        if score < self.best:
            self.vector, self.best = vector, score
        self.progress(self.evaluations)

    def descend_from(self, starts: Iterable[Vector]) -> None:
        """Descend from each start."""
        part = max(self.limit // _PART_OF_A_START, 1)
        for start in dict.fromkeys((self.vector, *starts)):
            if not self.done:
                result = descend(start, self.choices.tolist(), self.score, self.pairs, part)
                self.note(result.best, result.cost, result.evaluations)

    def change_at_random(self) -> None:
        """Change a few places of the best vector at a time, and descend from each improvement."""
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
