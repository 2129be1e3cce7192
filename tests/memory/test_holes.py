"""The free list on its own, at the borders of the runs that it keeps its holes in."""

from __future__ import annotations

import random

import pytest

from simgpu.memory.holes import Holes


def full(size: int) -> Holes:
    """A memory all of which was taken."""
    holes = Holes(size)
    holes.take(size)
    return holes


def test_holes_join_across_the_border_of_a_run_that_is_split_at_that_moment():
    """Ninety-six holes in one run, the ninety-seventh at its end touches the first hole of the next run."""
    holes = full(600)
    for start in [*range(0, 600, 6), *range(2, 2 + 47 * 6, 6), 4]:
        holes.free(start, 1)
    holes.free(287, 1)
    assert (287, 2) in list(holes)
    assert (holes.largest(), holes.take(2)) == (2, 287)


@pytest.mark.parametrize("seed", range(5))
def test_freeing_everything_in_any_order_leaves_one_hole(seed: int):
    holes = full(3000)
    order = list(range(3000))
    random.Random(seed).shuffle(order)
    for start in order:
        holes.free(start, 1)
    assert list(holes) == [(0, 3000)]


@pytest.mark.parametrize("direction", [1, -1])
def test_a_memory_that_was_thousands_of_holes_is_used_again_from_below(direction: int):
    holes = full(4000)
    for start in range(0, 4000, 2)[::direction]:
        holes.free(start, 1)
    assert [holes.take(1) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert holes.take(2) is None
    holes.free(3001, 1)
    assert holes.take(3) == 3000


def test_the_lowest_of_many_equal_holes_is_taken_also_after_others_came_and_went():
    holes = full(1000)
    for start in range(0, 1000, 4):
        holes.free(start, 2)
    for start in range(400, 800, 4):
        holes.free(start + 2, 2)
    assert holes.take(2) == 0
    holes.free(0, 2)
    assert holes.take(2) == 0
    assert [holes.take(1), holes.take(1), holes.take(2)] == [4, 5, 8]


def test_high_water_is_the_end_of_the_highest_range_ever_taken():
    holes = Holes(100)
    assert [holes.take(40), holes.take(30)] == [0, 40]
    holes.free(40, 30)
    holes.take(10)
    assert holes.high_water == 70
