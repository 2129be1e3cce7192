"""The free list alone, at the borders of the runs in which it stores holes."""

from __future__ import annotations

import random

import pytest

from simgpu.memory.addressed import Holes


def full(size: int) -> Holes:
    """A completely allocated memory."""
    holes = Holes(size)
    holes.take(size)
    return holes


def test_holes_merge_across_the_border_of_a_run_being_split():
    """A run contains 96 holes; the 97th, at its end, is adjacent to the first hole of the next run."""
    holes = full(600)
    for start in [*range(0, 600, 6), *range(2, 2 + 47 * 6, 6), 4]:
        holes.free(start, 1)
    holes.free(287, 1)
    assert (287, 2) in list(holes)
    assert (holes.largest(), holes.take(2)) == (2, 287)


def test_a_hole_across_runs_remains_usable_after_its_front_is_allocated():
    """The hole at 286 absorbs the first one of the next run; allocating three bytes moves its start past the border."""
    holes = full(600)
    for start in range(0, 600, 6):
        holes.free(start, 2)
    holes.free(286, 2)
    assert holes.take(3) == 286
    assert holes.take(1) == 289


def walk(run: int, seed: int) -> list[int | None]:
    """Addresses allocated in a random sequence, with holes stored in runs of this length."""
    chance = random.Random(seed)
    holes, held, taken = Holes(2000), {}, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simgpu.memory.addressed._RUN", run)
        for _ in range(1000):
            if held and chance.random() < 0.5:
                start = chance.choice(list(held))
                holes.free(start, held.pop(start))
            else:
                size = chance.randint(1, 5)
                taken.append(start := holes.take(size))
                if start is not None:
                    held[start] = size
    return taken


@pytest.mark.parametrize("run", [2, 3, 8])
def test_the_run_length_does_not_change_addresses(run: int):
    for seed in range(10):
        assert walk(run, seed) == walk(10**6, seed)


@pytest.mark.parametrize("seed", range(5))
def test_freeing_all_blocks_in_any_order_leaves_one_hole(seed: int):
    holes = full(3000)
    order = list(range(3000))
    random.Random(seed).shuffle(order)
    for start in order:
        holes.free(start, 1)
    assert list(holes) == [(0, 3000)]


@pytest.mark.parametrize("direction", [1, -1])
def test_thousands_of_holes_are_filled_from_the_lowest_address(direction: int):
    holes = full(4000)
    for start in range(0, 4000, 2)[::direction]:
        holes.free(start, 1)
    assert [holes.take(1) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert holes.take(2) is None
    holes.free(3001, 1)
    assert holes.take(3) == 3000


def test_the_lowest_of_many_equal_holes_is_used():
    holes = full(1000)
    for start in range(0, 1000, 4):
        holes.free(start, 2)
    for start in range(400, 800, 4):
        holes.free(start + 2, 2)
    assert holes.take(2) == 0
    holes.free(0, 2)
    assert holes.take(2) == 0
    assert [holes.take(1), holes.take(1), holes.take(2)] == [4, 5, 8]


def test_high_water_is_the_end_of_the_highest_range_ever_used():
    holes = Holes(100)
    assert [holes.take(40), holes.take(30)] == [0, 40]
    holes.free(40, 30)
    holes.take(10)
    assert holes.high_water == 70
