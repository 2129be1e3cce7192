"""A particle swarm over vectors of options, whose particles recombine the best vectors so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import Problem
from simgpu.planning.search.space import (
    Costs,
    Score,
    SearchResult,
    Vectors,
    as_tuple,
    checked,
    choice_problems,
    scored,
    start_problems,
)

Update = Literal["recombine", "full"]
Stopped = Literal["converged", "patience", "iterations"]


@dataclass(frozen=True)
class Swarm:
    """Minimises a cost over vectors of options as HOME's particle swarm does (algorithms 1 and 3).

    Random particles are scored; then, in each iteration, every particle is updated from two vectors: P1, the best of
    all particles in the last iteration, and P2, the particle's own best so far. Of equally good particles the first is
    P1. Of its own equally good vectors a particle remembers the last, which the paper leaves open: otherwise a swarm
    would never agree where many vectors cost the same.

    update: "full" is algorithm 3 as printed: position by position, the particle's entry is set to that of P1 and
    scored, to that of P2 and scored, and the cheaper is kept; if equal, that of P2. That is 2n scores for each particle
    of n positions in each iteration. "recombine" fits the search times of the paper's table 3, which imply one score
    for each particle and iteration: a fair coin takes each entry from P1 or P2, and the particle is scored once. 500
    particles at about 100 positions then agree after some tens of iterations; a full update needs fewer iterations with
    many more scores, and finds better vectors.

    choices: options at each position, one number for all or one for each of `length`. particles, iterations: 500 each
    in the paper (section 3.3). patience: stop after this many iterations without a better vector; None: never.

    No library implements this search: it has no velocity and no inertia, and the options of a position have no order.
    Both updates only recombine entries that some particle drew at the same position at the start. Without mutation, the
    swarm does not guarantee an optimum, however long it runs.

    >>> result = Swarm(choices=3, length=8, particles=200).minimise(lambda vectors: -vectors.sum(axis=1))
    >>> result.best, result.cost, result.evaluations == 200 * result.iterations
    ((2, 2, 2, 2, 2, 2, 2, 2), -16, True)
    """

    choices: int | Sequence[int]
    length: int
    particles: int = 500
    iterations: int = 500
    seed: int = 0
    update: Update = "recombine"
    patience: int | None = None

    def __post_init__(self) -> None:
        minima = {"length": 0, "particles": 1, "iterations": 1, "seed": 0, "patience": 1}
        values = {name: getattr(self, name) for name in minima}
        problems = [
            Problem("", name, f"{value} is less than {minima[name]}", "give a greater one")
            for name, value in values.items()
            if value is not None and value < minima[name]
        ]
        if self.update not in ("recombine", "full"):
            problems.append(Problem("", "update", f"{self.update!r} is not an update", "give recombine or full"))
        if not isinstance(self.choices, int) and len(self.choices) != self.length:
            what = f"{len(self.choices)} numbers of options for {self.length} positions"
            problems.append(Problem("", "choices", what, "give one for each position, or one for all"))
        checked(problems + choice_problems([self.choices] if isinstance(self.choices, int) else self.choices))

    def minimise(
        self, score: Score, start: Sequence[Sequence[int]] = (), progress: Callable[[int], None] | None = None
    ) -> SwarmResult:
        """Search. The same seed, start and score give the same result to the byte.

        score: costs of a batch of vectors (see `space.Score`). start: vectors that replace the first random particles.
        progress: called with the number of each scored iteration, from 1 on.
        Raises `InputError` for vectors of `start` that do not match this swarm, or too many of them.
        """
        flock = _Flock(self._first_particles(start), score)
        rng = np.random.default_rng([self.seed, 1])
        costs: list[Costs] = []
        best_at = 1
        stopped: Stopped = "iterations"
        for iteration in range(1, self.iterations + 1):
            if iteration > 1 and not flock.update(self.update, rng):
                stopped = "converged"
                break
            best_at = iteration if flock.note() else best_at
            costs.append(flock.costs.copy())
            if progress is not None:
                progress(iteration)
            if self.patience is not None and iteration - best_at >= self.patience:
                stopped = "patience"
                break
        table = np.array(costs)
        table.flags.writeable = False
        return SwarmResult(
            as_tuple(flock.best),
            flock.best_cost,
            flock.evaluations,
            costs=table,
            as_printed=flock.as_printed,
            converged_at=best_at,
            stopped=stopped,
        )

    def _first_particles(self, start: Sequence[Sequence[int]]) -> Vectors:
        choices = np.broadcast_to(np.asarray(self.choices, dtype=np.int16), self.length)
        problems = start_problems(start, choices.tolist())
        if len(start) > self.particles:
            what = f"{len(start)} vectors for {self.particles} particles"
            problems.append(Problem("", "start", what, "give fewer, or more particles"))
        checked(problems)
        rng = np.random.default_rng([self.seed, 0])
        particles = rng.integers(0, choices, size=(self.particles, self.length), dtype=np.int8)
        particles[: len(start)] = np.array(start, dtype=np.int8).reshape(len(start), self.length)
        return particles


class History(NamedTuple):
    """Costs by iteration, all of shape (iterations,)."""

    #: The most expensive particle of each iteration.
    worst: Costs
    mean: NDArray[np.float64]
    #: The cheapest vector up to each iteration, so it never rises.
    best: Costs


@dataclass(frozen=True)
class SwarmResult(SearchResult):
    """The result of a swarm and its history.

    best: the cheapest particle of any iteration, the first of equals.
    evaluations: vectors actually scored. A full update skips those with a known cost.
    """

    #: Cost of every particle in every iteration, shape (iterations, particles), read-only.
    costs: Costs = field(repr=False, compare=False)
    #: Vectors that the printed algorithm scores: one per particle and iteration, 2n more in a full update.
    as_printed: int
    #: The iteration that first reached the best cost; 1 is that of the random particles.
    converged_at: int
    #: "converged": all particles agree. "patience": no better vector for `patience` iterations. "iterations": all ran.
    stopped: Stopped

    @property
    def iterations(self) -> int:
        """The number of iterations."""
        return len(self.costs)

    @property
    def history(self) -> History:
        """Worst, mean and best cost by iteration (figure 8)."""
        best = np.minimum.accumulate(self.costs.min(axis=1))
        return History(self.costs.max(axis=1), self.costs.mean(axis=1, dtype=np.float64), best)


class _Flock:
    """All particles, their costs, and the best vector of each so far."""

    def __init__(self, particles: Vectors, score: Score) -> None:
        self._score = score
        self._particles = particles
        self.evaluations = 0
        self.as_printed = len(particles)
        self.costs = self._scored(particles)
        self._own, self._own_costs = particles.copy(), self.costs.copy()
        self.best, self.best_cost = particles[0], np.iinfo(np.int64).max

    def note(self) -> bool:
        """Algorithm 1, lines 8-11: record the best of all and of each particle; True for a new best of all."""
        better = self.costs <= self._own_costs
        self._own[better] = self._particles[better]
        self._own_costs[better] = self.costs[better]
        first = self.costs.argmin()
        if self.costs[first] >= self.best_cost:
            return False
        self.best, self.best_cost = self._particles[first].copy(), int(self.costs[first])
        return True

    def update(self, update: Update, rng: np.random.Generator) -> bool:
        """Algorithm 3; False if nothing can change any more: all particles' best vectors equal P1."""
        lead = self._particles[self.costs.argmin()]
        if bool((self._own == lead).all()):
            return False
        return self._sweep(lead) if update == "full" else self._recombine(lead, rng)

    def _recombine(self, lead: Vectors, rng: np.random.Generator) -> bool:
        # Entries of P1, changed to those of P2 where the coin says 1: ten times as fast as `np.where`.
        self._particles = lead ^ ((self._own ^ lead) * _coins(rng, self._own.shape))
        self.costs = self._scored(self._particles)
        self.as_printed += len(self._particles)
        return True

    def _sweep(self, lead: Vectors) -> bool:
        """Algorithm 3 with half the scores, because P2 is always the current particle, whose cost is known.

        This holds at the start; later an entry only changes where that makes the particle cheaper than ever before.
        """
        changed = False
        for at, option in enumerate(lead.tolist()):
            rows = np.flatnonzero(self._particles[:, at] != option)
            candidates = self._particles[rows]
            candidates[:, at] = option
            costs = self._scored(candidates)
            cheaper = costs < self.costs[rows]
            self._particles[rows[cheaper], at] = option
            self.costs[rows[cheaper]] = costs[cheaper]
            changed |= bool(cheaper.any())
        self.as_printed += 2 * self._particles.size + len(self._particles)
        return changed

    def _scored(self, vectors: Vectors) -> Costs:
        self.evaluations += len(vectors)
        return scored(self._score, vectors)


def _coins(rng: np.random.Generator, shape: tuple[int, ...]) -> Vectors:
    """Fair coins, 0 or 1, one for each bit of the generator, whose raw words are the same in every NumPy version."""
    count = math.prod(shape)
    words = np.asarray(rng.bit_generator.random_raw(-(-count // 64)), dtype="<u8")
    return np.unpackbits(words.view(np.uint8), count=count).view(np.int8).reshape(shape)
