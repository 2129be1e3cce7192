"""The required result of a score function."""

from __future__ import annotations

import numpy as np
import pytest

from simgpu.planning.search.space import Score, scored

TWO = np.zeros((2, 3), dtype=np.int8)


@pytest.mark.parametrize(
    "score",
    [
        lambda vectors: vectors.sum(axis=1) / 2,
        lambda vectors: np.zeros((len(vectors), 1), dtype=np.int64),
        lambda vectors: np.zeros(1, dtype=np.int64),
        lambda vectors: np.zeros(len(vectors), dtype=np.uint64),
        lambda vectors: 0,
    ],
    ids=["fractions", "a table", "too few", "unsigned", "one number"],
)
def test_a_score_is_one_signed_integer_for_each_vector(score: Score) -> None:
    with pytest.raises(ValueError, match="return one signed integer for each vector"):
        scored(score, TWO)


def test_narrower_costs_are_widened() -> None:
    costs = scored(lambda vectors: np.full(len(vectors), 7, dtype=np.int16), TWO)
    assert costs.dtype == np.int64
    assert costs.tolist() == [7, 7]


def test_a_score_may_reuse_its_result_array() -> None:
    costs = np.zeros(2, dtype=np.int64)
    first = scored(lambda vectors: costs, TWO)
    costs[:] = 5
    assert first.tolist() == [0, 0]


def test_an_empty_batch_calls_no_score_function() -> None:
    def never(vectors: np.ndarray) -> np.ndarray:
        raise AssertionError

    assert scored(never, TWO[:0]).shape == (0,)
