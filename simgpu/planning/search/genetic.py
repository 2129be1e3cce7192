"""A genetic search over members of any kind, which the caller scores, crosses and mutates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from simgpu.errors import Problem
from simgpu.planning.search.space import Costs, checked

Member = TypeVar("Member")

#: Of the survivors of a generation, one in so many is among its best; the others are drawn by their cost.
_ELITE = 4
#: A member survives with a chance proportional to e^(-excess / this), with its excess over the best, relative to it.
_TEMPERATURE = 0.05


@dataclass(frozen=True)
class GeneticResult(Generic[Member]):
    """The result of a search.

    best: the cheapest member, the first of equals. cost: its cost. first_cost: the lowest cost of the first members.
    evaluations: scored members. generation: the one that first had the best member, 0 for the first members.
    """

    best: Member
    cost: int
    first_cost: int
    evaluations: int
    generation: int


@dataclass(frozen=True)
class Genetic(Generic[Member]):
    """Minimises a cost over members that cross and mutate.

    In each generation, `population` children are made: two parents, drawn at random, cross, and the child mutates. Of
    parents and children together, the best and others drawn by a Boltzmann distribution of their costs survive. Of
    members with equal costs only the first counts, unless there are too few others: copies of one member would soon be
    all there is. The best member always survives, so the result is never worse than any of the first members.

    cross: a child of two members. mutate: a changed member; both draw from the generator only. generations: how many
    are scored at most. patience: stop after so many generations without a better member.

    >>> def cross(one, two, rng): return (one & 0b1111) | (two & ~0b1111)
    >>> def mutate(member, rng): return member ^ (1 << int(rng.integers(8)))
    >>> search = Genetic(cross, mutate, population=20, generations=40, patience=40)
    >>> search.minimise([0], lambda members: np.array([-m for m in members]), np.random.default_rng(1)).best
    255
    """

    cross: Callable[[Member, Member, np.random.Generator], Member]
    mutate: Callable[[Member, np.random.Generator], Member]
    population: int
    generations: int
    patience: int

    def __post_init__(self) -> None:
        minima = {"population": 2, "generations": 0, "patience": 1}
        checked(
            [
                Problem("", name, f"{name} {getattr(self, name)} is less than {least}", "give a greater one")
                for name, least in minima.items()
                if getattr(self, name) < least
            ]
        )

    def minimise(
        self,
        first: Sequence[Member],
        score: Callable[[Sequence[Member]], Costs],
        rng: np.random.Generator,
        progress: Callable[[int], None] | None = None,
        least: int | None = None,
    ) -> GeneticResult[Member]:
        """Search. The same members, score and generator give the same result.

        first: the first members, at least one. score: the cost of each member. progress: called with the number of each
        generation, from 1 on. least: a cost that no member is below, if one is known; the search ends with a
        member that has it.
        """
        members, costs = list(first), score(first)
        best_at = 0
        best, cost = members[int(costs.argmin())], int(costs.min())
        evaluations, first_cost = len(members), cost
        for generation in range(1, self.generations + 1):
            if generation - best_at > self.patience or cost == least:
                break
            if progress is not None:
                progress(generation)
            children = [self._child(members, rng) for _ in range(self.population)]
            members, costs = [*members, *children], np.concatenate([costs, score(children)])
            evaluations += len(children)
            if costs.min() < cost:
                best, cost, best_at = members[int(costs.argmin())], int(costs.min()), generation
            survivors = self._survivors(costs, rng)
            members, costs = [members[row] for row in survivors], costs[survivors]
        return GeneticResult(best, cost, first_cost, evaluations, best_at)

    def _child(self, members: Sequence[Member], rng: np.random.Generator) -> Member:
        one, two = (members[int(row)] for row in rng.integers(len(members), size=2))
        return self.mutate(self.cross(one, two, rng), rng)

    def _survivors(self, costs: Costs, rng: np.random.Generator) -> list[int]:
        """The rows of the members that survive, the best first."""
        _, first = np.unique(costs, return_index=True)
        if len(first) <= self.population:
            again = np.setdiff1d(np.arange(len(costs)), first)
            again = again[np.argsort(costs[again], kind="stable")]
            return [int(row) for row in (*first, *again)][: self.population]
        elite, others = np.split(first, [max(self.population // _ELITE, 1)])
        excess = (costs[others] - costs.min()) / max(int(costs.min()), 1)
        # The largest of these keys are a sample without replacement by these odds.
        keys = rng.gumbel(size=len(others)) - excess / _TEMPERATURE
        drawn = others[np.argsort(-keys, kind="stable")[: self.population - len(elite)]]
        return [int(row) for row in (*elite, *drawn)]
