"""Descent by exchanges of one and of two entries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.planning.search import exchange
from simgpu.planning.search.exchange import descend, shuffled_pairs
from tests.planning.search.costs import Recording, choices, one, rugged, seeds, separable

Vector = tuple[int, ...]


def differing(vector: Vector, options: list[int], places: tuple[int, ...]) -> Iterator[Vector]:
    """Every vector that differs from the given one at each of these positions and nowhere else."""
    for entries in itertools.product(*(range(options[place]) for place in places)):
        if all(vector[place] != entry for place, entry in zip(places, entries, strict=True)):
            other = list(vector)
            for place, entry in zip(places, entries, strict=True):
                other[place] = entry
            yield tuple(other)


@st.composite
def starts(draw: st.DrawFn) -> tuple[list[int], Vector]:
    options = draw(choices())
    return options, tuple(draw(st.integers(0, count - 1)) for count in options)


@given(starts(), seeds, st.sampled_from([5, 1000, 2**40]), st.booleans())
def test_descent_ends_at_a_vector_without_a_cheaper_neighbour(
    given_start: tuple[list[int], Vector], seed: int, values: int, paired: bool
) -> None:
    options, start = given_start
    score = rugged(seed, values)
    pairs = shuffled_pairs(len(options), seed) if paired else []
    recording = Recording(score)
    result = descend(start, options, recording, pairs)
    assert result.local_optimum
    assert result.pair_optimum
    assert result.cost == one(score, result.best) <= one(score, start)
    assert result.evaluations == recording.requested
    assert (result.moves == 0) == (result.best == start)
    for places in [*((place,) for place in range(len(options))), *pairs]:
        assert all(one(score, other) >= result.cost for other in differing(result.best, options, places))


@pytest.mark.parametrize("seed", range(20))
def test_after_a_move_all_entries_and_pairs_are_tried_again_even_in_several_batches(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BATCH", 50)
    score = rugged(seed)
    options = [3] * 9
    pairs = shuffled_pairs(9, seed)
    recording = Recording(score)
    result = descend((0,) * 9, options, recording, pairs)
    assert max(map(len, recording.batches)) <= 50
    assert result.pair_optimum
    for places in [*((place,) for place in range(9)), *pairs]:
        assert all(one(score, other) > result.cost for other in differing(result.best, options, places))


@given(starts(), seeds)
def test_every_batch_is_the_complete_neighbourhood_of_single_changes(
    given_start: tuple[list[int], Vector], seed: int
) -> None:
    options, start = given_start
    score = rugged(seed)
    recording = Recording(score)
    descend(start, options, recording)
    vector = start
    for batch in recording.batches[1:]:
        neighbours = [other for place in range(len(options)) for other in differing(vector, options, (place,))]
        assert sorted(map(tuple, batch.tolist())) == sorted(neighbours)
        vector = min(neighbours, key=lambda other: one(score, other))


@given(starts(), seeds, st.integers(1, 200))
def test_a_limit_is_respected_and_the_result_reports_it(
    given_start: tuple[list[int], Vector], seed: int, limit: int
) -> None:
    options, start = given_start
    score = rugged(seed)
    pairs = shuffled_pairs(len(options), seed)
    recording = Recording(score)
    result = descend(start, options, recording, pairs, limit)
    assert recording.requested == result.evaluations <= limit
    assert result.cost == one(score, result.best) <= one(score, start)
    free = descend(start, options, score, pairs)
    if limit >= free.evaluations:
        assert result == free
    if not result.pair_optimum:
        assert limit < free.evaluations
    if result.local_optimum:
        singles = [other for place in range(len(options)) for other in differing(result.best, options, (place,))]
        assert all(one(score, other) >= result.cost for other in singles)


def test_pair_exchanges_find_improvements_that_single_exchanges_miss() -> None:
    def both_or_none(vectors: np.ndarray) -> np.ndarray:
        return 10 * abs(vectors[:, 0] - vectors[:, 2]) - vectors[:, 2]

    stuck = descend((0, 0, 0), [2, 2, 2], both_or_none)
    assert (stuck.best, stuck.moves, stuck.local_optimum) == ((0, 0, 0), 0, True)
    assert descend((0, 0, 0), [2, 2, 2], both_or_none, [(0, 1)]).best == (0, 0, 0)
    assert descend((0, 0, 0), [2, 2, 2], both_or_none, [(0, 2)]).best == (1, 0, 1)


def test_many_pairs_are_scored_in_several_batches() -> None:
    recording = Recording(rugged(1))
    result = descend((0,) * 60, [3] * 60, recording, shuffled_pairs(60, 0))
    assert result.pair_optimum
    assert max(map(len, recording.batches)) <= 4096 < 4 * 60 * 59 / 2


def test_descent_minimises_a_separable_cost_entry_by_entry() -> None:
    table = np.random.default_rng(0).permutation(60).reshape(20, 3)
    result = descend((0,) * 20, [3] * 20, separable(table))
    assert result.best == tuple(table.argmin(axis=1).tolist())
    assert result.moves == np.count_nonzero(table.argmin(axis=1))


def test_shuffled_pairs_contain_every_pair_in_a_seeded_order() -> None:
    first = shuffled_pairs(12, seed=1)
    assert sorted(first) == list(itertools.combinations(range(12), 2))
    assert first == shuffled_pairs(12, seed=1)
    assert first != shuffled_pairs(12, seed=2)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(InputError) as error:
        descend((0, 2), [2, 2], rugged(0), [(0, 0), (0, 1), (1, 2)], limit=0)
    assert str(error.value).splitlines() == [
        "start: vector 0, position 1 has option 2 of 2; options count from 0",
        "pairs: (0, 0) is no pair of two of 2 positions; positions count from 0",
        "pairs: (1, 2) is no pair of two of 2 positions; positions count from 0",
        "limit: 0 vectors; allow at least 1, the start",
    ]
