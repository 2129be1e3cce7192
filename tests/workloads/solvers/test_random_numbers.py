"""NAS EP: the random sequence, the sums and counts in its specification, and the work of each thread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.workloads.solvers import nas_random
from simgpu.workloads.solvers.random_numbers import ANNULI, RandomNumbers


def tallies(solver: RandomNumbers) -> list[int]:
    *_, last = solver.states()
    return [int(last[f"tally{annulus}"].sum()) for annulus in range(ANNULI)]


@settings(deadline=None)
@given(st.integers(1, 2**46 - 1), st.integers(1, 60), st.integers(1, 1000))
def test_the_random_sequence_matches_integer_arithmetic(seed: int, count: int, step: int) -> None:
    result, expected = nas_random.sequence(seed, count, step).tolist(), seed
    for number in result:
        expected = expected * pow(5**13, step, 2**46) % 2**46
        assert number == expected


def test_uniform_numbers_are_exact() -> None:
    seeds = nas_random.sequence(271828183, 1000)
    assert [float(number).hex() for number in nas_random.uniform(seeds)] == [(s / 2**46).hex() for s in seeds.tolist()]


@pytest.mark.slow
def test_sums_and_counts_match_class_s_of_nas_ep() -> None:
    """The sums that NPB verifies to 1e-8, and the counts that it prints."""
    *_, last = RandomNumbers(size=65536, steps=32).states()
    assert last["sum_x"].sum() == pytest.approx(-3.247834652034740e3, rel=1e-8)
    assert last["sum_y"].sum() == pytest.approx(-6.958407078382297e3, rel=1e-8)
    counts = [int(last[f"tally{annulus}"].sum()) for annulus in range(ANNULI)]
    assert counts == [6140517, 5865300, 1100361, 68546, 1648, 17, 0, 0, 0, 0]


def test_counts_do_not_depend_on_the_number_of_threads() -> None:
    assert tallies(RandomNumbers(size=64, steps=16)) == tallies(RandomNumbers(size=512, steps=2))


def test_about_four_fifths_of_the_pairs_are_accepted() -> None:
    solver = RandomNumbers(size=4096, steps=4)
    assert sum(tallies(solver)) / solver.pairs == pytest.approx(np.pi / 4, abs=0.005)


def test_seeds_continue_after_the_last_batch() -> None:
    solver = RandomNumbers(size=32, steps=1)
    *_, last = solver.states()
    drawn = 2 * solver.pairs
    assert int(last["seeds"][0]) == int(nas_random.sequence(271828183, drawn)[-1])
