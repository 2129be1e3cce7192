"""Cost functions for tests: arbitrary ones, sums over positions, and ones with many equal costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from simgpu.planning.search.space import Costs, Score, Vectors


def rugged(seed: int, values: int = 2**40) -> Score:
    """An arbitrary cost from 0 to `values` - 1 for every vector; few values give many ties."""
    weights = np.random.default_rng(seed).integers(1, 2**62, size=256, dtype=np.uint64)

    def score(vectors: Vectors) -> Costs:
        mixed = ((vectors.astype(np.uint64) + np.uint64(1)) * weights[: vectors.shape[1]]).sum(axis=1, dtype=np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        return ((mixed >> np.uint64(20)) % np.uint64(values)).astype(np.int64)

    return score


def separable(table: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Score:
    """The sum over positions of table[position, option]."""

    def score(vectors: Vectors) -> Costs:
        return table[np.arange(len(table)), vectors].sum(axis=1)

    return score


class Recording:
    """A score that records every batch it evaluates."""

    def __init__(self, score: Score) -> None:
        self._score = score
        self.batches: list[Vectors] = []

    def __call__(self, vectors: Vectors) -> Costs:
        self.batches.append(vectors.copy())
        return self._score(vectors)

    @property
    def requested(self) -> int:
        return sum(map(len, self.batches))


def one(score: Score, vector: Sequence[int]) -> int:
    return int(score(np.array([vector], dtype=np.int8))[0])


#: Numbers of options at a few positions.
choices: Callable[[], st.SearchStrategy[list[int]]] = lambda: st.lists(st.integers(1, 4), max_size=6)  # noqa: E731
seeds = st.integers(0, 2**31)
