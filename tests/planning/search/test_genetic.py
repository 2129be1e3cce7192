"""The genetic search: never worse than its first members, the same for a seed, and it ends without progress."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.planning.search.genetic import Genetic, GeneticResult
from simgpu.planning.search.space import Costs

Bits = tuple[int, ...]


def cross(one: Bits, two: Bits, rng: np.random.Generator) -> Bits:
    cut = int(rng.integers(len(one) + 1))
    return (*one[:cut], *two[cut:])


def mutate(bits: Bits, rng: np.random.Generator) -> Bits:
    at = int(rng.integers(len(bits)))
    return tuple(bit ^ (place == at) for place, bit in enumerate(bits))


def searched(first: Sequence[Bits], costs: Sequence[int], seed: int, **more: int) -> GeneticResult[Bits]:
    """costs: of each bit that is set."""

    def score(members: Sequence[Bits]) -> Costs:
        return np.array([10**6 + sum(cost for cost, bit in zip(costs, each, strict=True) if bit) for each in members])

    given = {"population": 12, "generations": 40, "patience": 40, **more}
    return Genetic(cross, mutate, **given).minimise(first, score, np.random.default_rng(seed))


@given(st.data(), st.integers(0, 100))
def test_the_result_is_never_worse_than_a_first_member_and_the_same_again(data: st.DataObject, seed: int) -> None:
    costs = data.draw(st.lists(st.integers(-100, 100), min_size=1, max_size=12))
    bits = st.tuples(*[st.integers(0, 1) for _ in costs])
    first = data.draw(st.lists(bits, min_size=1, max_size=20))
    result = searched(first, costs, seed, generations=5)
    cheapest = min(10**6 + sum(cost * bit for cost, bit in zip(costs, each, strict=True)) for each in first)
    assert result.cost <= result.first_cost == cheapest
    assert result.cost == 10**6 + sum(cost * bit for cost, bit in zip(costs, result.best, strict=True))
    assert result == searched(first, costs, seed, generations=5)


def test_it_finds_the_best_of_independent_bits() -> None:
    costs = [-5, 9, -2, 3, -7, 4, 6, -1, -8, 2]
    result = searched([(0,) * 10], costs, seed=3)
    assert result.best == tuple(int(cost < 0) for cost in costs)
    assert result.evaluations == 1 + 12 * 40


def test_it_ends_after_generations_without_a_better_member() -> None:
    """Of the first members one is the best there is."""
    result = searched([(0, 0), (1, 0)], [-1, 1], seed=1, patience=3)
    assert (result.best, result.generation, result.evaluations) == ((1, 0), 0, 2 + 3 * 12)


def test_it_ends_at_a_cost_that_no_member_is_below() -> None:
    result = Genetic(cross, mutate, population=12, generations=40, patience=40).minimise(
        [(0, 0), (1, 0)], lambda members: np.array([5 - each[0] for each in members]), np.random.default_rng(1), least=4
    )
    assert (result.cost, result.evaluations) == (4, 2)


def test_copies_of_the_best_member_do_not_crowd_out_others() -> None:
    """Children are copies of a parent. Two members survive, and one of them is the one of another cost."""
    scored: list[str] = []

    def score(members: Sequence[str]) -> Costs:
        scored.extend(members)
        return np.array([{"a": 10, "b": 12}[member] for member in members])

    search: Genetic[str] = Genetic(lambda one, two, rng: one, lambda one, rng: one, 2, generations=40, patience=40)
    search.minimise(["a", "a", "a", "b"], score, np.random.default_rng(1))
    assert scored[-20:].count("b") > 2


def test_all_wrong_settings_are_reported() -> None:
    with pytest.raises(InputError) as caught:
        Genetic(cross, mutate, population=1, generations=-1, patience=0)
    assert [problem.place for problem in caught.value.problems] == ["population", "generations", "patience"]
