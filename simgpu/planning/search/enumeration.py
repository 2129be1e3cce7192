"""The cheapest of all vectors, by scoring every one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from simgpu.errors import InputError
from simgpu.planning.search.space import Score, SearchResult, as_tuple, checked, choice_problems, scored

#: The most vectors that are enumerated; 3 options at 15 positions, or 5 at 10, are fewer.
MOST_VECTORS = 20_000_000
#: Approximate number of vectors in a batch.
CHUNK = 2**16


def exhaustive(choices: Sequence[int], score: Score, *, chunk: int = CHUNK) -> SearchResult:
    """The cheapest of all vectors; of equally cheap ones the first in lexicographic order.

    choices: options at each position. chunk: the most vectors in a batch, at least 1; a batch varies as many of the
    last positions as fit. Raises `InputError` above `MOST_VECTORS` vectors.

    >>> exhaustive([3, 2, 3], lambda vectors: abs(vectors.sum(axis=1) - 4))
    SearchResult(best=(1, 1, 2), cost=0, evaluations=18)
    """
    checked(choice_problems(choices))
    total = math.prod(choices)
    if total > MOST_VECTORS:
        what = f"{len(choices)} positions have {total} vectors, more than the {MOST_VECTORS} that are enumerated"
        raise InputError.single("", "choices", what, "leave positions or options out, or search with a swarm")
    split = len(choices)
    while split > 0 and math.prod(choices[split - 1 :]) <= chunk:
        split -= 1
    tails = list(itertools.product(*map(range, choices[split:])))
    vectors = np.empty((len(tails), len(choices)), dtype=np.int8)
    vectors[:, split:] = np.array(tails, dtype=np.int8).reshape(len(tails), len(choices) - split)

    def cheapest(head: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        vectors[:, :split] = head
        costs = scored(score, vectors)
        first = costs.argmin()
        return int(costs[first]), as_tuple(vectors[first])

    cost, best = min(map(cheapest, itertools.product(*map(range, choices[:split]))))
    return SearchResult(best, cost, total)
