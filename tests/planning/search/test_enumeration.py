"""Enumeration against `itertools`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.planning.search.enumeration import MOST_VECTORS, exhaustive
from simgpu.planning.search.space import SearchResult
from tests.planning.search.costs import Recording, choices, one, rugged, seeds


@given(choices(), seeds, st.sampled_from([3, 2**40]), st.integers(1, 300))
def test_enumeration_scores_all_vectors_in_order_and_returns_the_first_minimum(
    options: list[int], seed: int, values: int, chunk: int
) -> None:
    score = rugged(seed, values)
    recording = Recording(score)
    result = exhaustive(options, recording, chunk=chunk)
    product = list(itertools.product(*map(range, options)))
    assert [tuple(row) for batch in recording.batches for row in batch.tolist()] == product
    assert all(len(batch) <= chunk for batch in recording.batches)
    best = min(product, key=lambda vector: one(score, vector))
    assert result == SearchResult(best, one(score, best), len(product))


def test_batches_cover_complete_positions_and_are_as_large_as_possible() -> None:
    for chunk, size in ((9, 2), (10, 10), (29, 10), (30, 30)):
        exhaustive([4, 3, 5, 2], recording := Recording(rugged(0)), chunk=chunk)
        assert {len(batch) for batch in recording.batches} == {size}
    exhaustive([4, 3, 5, 2], full := Recording(rugged(0)))
    assert len(full.batches) == 1


def test_too_many_vectors_are_refused_before_any_is_scored() -> None:
    recording = Recording(rugged(0))
    with pytest.raises(InputError, match=f"16 positions have {3**16} vectors, more than the {MOST_VECTORS} that are"):
        exhaustive([3] * 16, recording)
    assert recording.batches == []


def test_a_position_without_options_is_refused() -> None:
    with pytest.raises(InputError, match="choices: position 1 has 0 options; give from 1 to 127"):
        exhaustive([3, 0], lambda vectors: np.zeros(len(vectors), dtype=np.int64))
