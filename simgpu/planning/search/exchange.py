"""Descent from a vector to a local optimum."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import Problem
from simgpu.planning.search.space import (
    Score,
    SearchResult,
    Vectors,
    as_tuple,
    checked,
    choice_problems,
    scored,
    start_problems,
)

#: Approximate number of vectors in a batch of pair changes.
BATCH = 4096

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Descended(SearchResult):
    """The result of a descent.

    moves: number of moves to a cheaper vector. local_optimum: whether every vector that differs from the best in one
    entry was scored, and none is cheaper. pair_optimum: whether that also holds for every change of both entries of
    every given pair; without pairs it equals `local_optimum`.
    """

    moves: int
    local_optimum: bool
    pair_optimum: bool


def descend(
    start: Sequence[int],
    choices: Sequence[int],
    score: Score,
    pairs: Iterable[tuple[int, int]] = (),
    limit: int | None = None,
) -> Descended:
    """Move to cheaper neighbours until there is none, or until more than `limit` vectors would have to be scored.

    All vectors that differ in one entry are scored in one batch; the search moves to the cheapest. If none is cheaper,
    both entries of `pairs` of positions are changed, some pairs at a time in the given order; after a batch with a
    cheaper vector, single entries are tried again before the following pairs. Of equally cheap vectors the one of the
    first position, or pair, is chosen, so the search is deterministic.
    There are n (n - 1) / 2 pairs; `shuffled_pairs` lists them in random order, so that a `limit` gives a fair sample.
    Raises `InputError` for a start or pairs that do not match the choices, and a limit below 1.

    >>> def score(vectors):
    ...     return abs(3 * vectors[:, 0] + vectors[:, 1] - 5)
    >>> descend((0, 0), [3, 3], score)
    Descended(best=(2, 0), cost=1, evaluations=9, moves=1, local_optimum=True, pair_optimum=True)
    >>> descend((0, 0), [3, 3], score, pairs=[(0, 1)])
    Descended(best=(1, 2), cost=0, evaluations=21, moves=2, local_optimum=True, pair_optimum=True)
    """
    pairs = tuple(pairs)
    checked(_problems(start, choices, pairs, limit))
    walk = _Walk(start, score, limit)
    firsts, seconds = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2).T
    counts = np.asarray(choices, dtype=np.int64)
    variants = (counts[firsts] - 1) * (counts[seconds] - 1)
    local_optimum, at, futile = False, 0, 0
    while True:
        if not local_optimum:
            better = walk.step(_singles(walk.vector, counts))
            if better:
                continue
            if better is None:
                break
            local_optimum = True
        if futile >= len(pairs):
            return walk.ended(True, True)
        order = np.arange(at, at + len(pairs) - futile) % len(pairs)
        count = max(1, int(np.searchsorted(np.cumsum(variants[order]), walk.affordable, side="right")))
        chosen = order[:count]
        better = walk.step(_doubles(walk.vector, counts, firsts[chosen], seconds[chosen]))
        if better is None:
            break
        at = (at + count) % len(pairs)
        futile = 0 if better else futile + count
        local_optimum = not better
    return walk.ended(local_optimum, False)


def shuffled_pairs(length: int, seed: int) -> list[tuple[int, int]]:
    """All pairs of positions, in a random order.

    >>> sorted(shuffled_pairs(3, seed=0))
    [(0, 1), (0, 2), (1, 2)]
    """
    pairs = list(itertools.combinations(range(length), 2))
    return [pairs[number] for number in np.random.default_rng(seed).permutation(len(pairs))]


class _Walk:
    """The current vector, and the number of scored vectors."""

    def __init__(self, start: Sequence[int], score: Score, limit: int | None) -> None:
        self._score, self._limit = score, limit
        self.vector: Vectors = np.array(start, dtype=np.int8)
        self._cost = int(scored(score, self.vector[np.newaxis])[0])
        self._evaluations, self._moves = 1, 0

    @property
    def affordable(self) -> int:
        """The most vectors in the next batch of pairs."""
        return BATCH if self._limit is None else min(BATCH, self._limit - self._evaluations)

    def step(self, neighbours: Vectors) -> bool | None:
        """Move to the cheapest neighbour if it is cheaper; False if none is, None if there are too many to score."""
        if self._limit is not None and self._evaluations + len(neighbours) > self._limit:
            return None
        costs = scored(self._score, neighbours)
        self._evaluations += len(neighbours)
        if len(costs) == 0 or costs.min() >= self._cost:
            return False
        self.vector, self._cost = neighbours[costs.argmin()].copy(), int(costs.min())
        self._moves += 1
        return True

    def ended(self, local_optimum: bool, pair_optimum: bool) -> Descended:
        best = as_tuple(self.vector)
        return Descended(best, self._cost, self._evaluations, self._moves, local_optimum, pair_optimum)


def _singles(vector: Vectors, counts: Numbers) -> Vectors:
    """Every vector that differs in one entry, by position, then by distance from the current option."""
    positions, steps = _numbered(counts - 1)
    neighbours = np.tile(vector, (len(positions), 1))
    rows = np.arange(len(positions))
    neighbours[rows, positions] = (vector[positions] + 1 + steps) % counts[positions]
    return neighbours


def _doubles(vector: Vectors, counts: Numbers, firsts: Numbers, seconds: Numbers) -> Vectors:
    """Every vector that differs in both entries of one of the pairs."""
    pair, steps = _numbered((counts[firsts] - 1) * (counts[seconds] - 1))
    first, second = firsts[pair], seconds[pair]
    neighbours = np.tile(vector, (len(pair), 1))
    rows = np.arange(len(pair))
    step_of_first, step_of_second = np.divmod(steps, counts[second] - 1)
    neighbours[rows, first] = (vector[first] + 1 + step_of_first) % counts[first]
    neighbours[rows, second] = (vector[second] + 1 + step_of_second) % counts[second]
    return neighbours


def _numbered(counts: Numbers) -> tuple[Numbers, Numbers]:
    """For each member of all groups, the group's number and the member's number in it."""
    groups = np.repeat(np.arange(len(counts)), counts)
    return groups, np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)


def _problems(
    start: Sequence[int], choices: Sequence[int], pairs: Sequence[tuple[int, int]], limit: int | None
) -> list[Problem]:
    problems = choice_problems(choices) + start_problems([start], choices)
    problems += [
        Problem("", "pairs", f"{pair} is no pair of two of {len(choices)} positions", "positions count from 0")
        for pair in pairs
        if pair[0] == pair[1] or not all(0 <= position < len(choices) for position in pair)
    ]
    if limit is not None and limit < 1:
        problems.append(Problem("", "limit", f"{limit} vectors", "allow at least 1, the start"))
    return problems
