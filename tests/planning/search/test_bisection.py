"""The largest number that fits, also for predicates that are not monotone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.planning.search.bisection import NEIGHBOURS, Largest, largest


class Counting:
    """A predicate that fails if it is called twice with the same number."""

    def __init__(self, fitting: set[int] | range) -> None:
        self.fitting = fitting
        self.requested: list[int] = []

    def __call__(self, number: int) -> bool:
        assert number not in self.requested
        self.requested.append(number)
        return number in self.fitting


@given(st.integers(0, 3000), st.integers(1, 50), st.none() | st.integers(50, 3000))
def test_bisection_of_a_monotone_predicate_is_exact(limit: int, low: int, high: int | None) -> None:
    fits = Counting(range(limit + 1))
    result = largest(fits, low, high)
    expected = None if limit < low else limit if high is None else min(limit, high)
    assert (result.value, result.monotone) == (expected, True)
    assert result.tried == tuple((number, number <= limit) for number in sorted(fits.requested))
    assert len(fits.requested) <= 2 * 12 + 1 + NEIGHBOURS, "twice the bits of 3000, and what is tried beyond"


@given(st.sets(st.integers(1, 120)), st.integers(1, 10), st.none() | st.integers(10, 150), st.integers(1, 6))
def test_for_any_predicate_the_answer_fits_and_the_next_numbers_do_not(
    fitting: set[int], low: int, high: int | None, neighbours: int
) -> None:
    result = largest(Counting(fitting), low, high, neighbours=neighbours)
    answers = dict(result.tried)
    assert answers == {number: number in fitting for number in answers}
    if low not in fitting:
        assert result == Largest(None, ((low, False),))
        return
    assert result.value == max(number for number, fits in result.tried if fits)
    top = result.value + neighbours if high is None else min(result.value + neighbours, high)
    assert not any(answers[number] for number in range(result.value + 1, top + 1))
    assert result.monotone == (not any(not answers[number] for number in answers if number < result.value))


def test_a_larger_solution_above_a_gap_is_found_and_reported() -> None:
    result = largest(Counting({*range(1, 41), *range(43, 49)}), high=56)
    assert (result.value, result.monotone) == (48, False)
    assert dict(result.tried)[41] is False


def test_doubling_resumes_above_a_gap() -> None:
    fits = Counting({*range(1, 7), *range(9, 30)})
    result = largest(fits, neighbours=4)
    assert (result.value, result.monotone) == (29, False)


def test_a_solution_above_a_wide_gap_is_missed() -> None:
    assert largest(Counting({*range(1, 41), 50}), high=60).value == 40


def test_doubling_ends_at_the_cap() -> None:
    fits = Counting(range(10**9))
    assert largest(fits, low=3, cap=100).value == 100
    assert fits.requested == [3, 6, 12, 24, 48, 96, 100]


def test_if_the_upper_limit_fits_it_is_returned_immediately() -> None:
    fits = Counting(range(10**9))
    assert largest(fits, low=3, high=10**6).value == 10**6
    assert fits.requested == [3, 10**6]


@pytest.mark.parametrize(("low", "high"), [(0, 5), (-3, None), (7, 6)])
def test_a_range_without_numbers_is_refused(low: int, high: int | None) -> None:
    with pytest.raises(InputError, match=f"low: {low} is not from 1 to"):
        largest(lambda number: True, low, high)
