"""Both pools: which requests fit, at which addresses; the fast addressed pool is compared with a naive one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import ProgramError
from simgpu.memory.addressed import AddressedPool, AddressRange
from simgpu.memory.pool import CountingPool, aligned
from tests.memory.naive_pool import NaivePool

Both = type[CountingPool] | type[AddressedPool]
both = pytest.mark.parametrize("pool_type", [CountingPool, AddressedPool])


def take(pool: CountingPool | AddressedPool, block: int, size: int) -> bool:
    return pool.acquire(pool.prepare([block], [size]))


def give(pool: CountingPool | AddressedPool, block: int, size: int) -> None:
    pool.release(pool.prepare([block], [size]))


def picture(pool: AddressedPool) -> object:
    """All observable state of a pool."""
    return list(pool.segments()), pool.live, pool.used, pool.largest_hole, pool.high_water, pool.state()


# --- both pools ---------------------------------------------------------------------------------------------


@both
def test_a_pool_can_be_filled_to_the_last_byte(pool_type: Both):
    pool = pool_type(10)
    assert take(pool, 0, 10)
    assert not take(pool, 1, 1)


@both
def test_blocks_without_bytes_fit_into_a_full_pool(pool_type: Both):
    pool = pool_type(10)
    take(pool, 0, 10)
    assert take(pool, 1, 0)


@both
def test_released_memory_can_be_acquired_again(pool_type: Both):
    pool = pool_type(10)
    take(pool, 0, 10)
    give(pool, 0, 10)
    assert (pool.live, pool.used, take(pool, 1, 10)) == (0, 0, True)


@both
def test_a_failed_request_acquires_nothing(pool_type: Both):
    pool = pool_type(10)
    take(pool, 0, 4)
    before = (pool.live, pool.used, pool.largest_hole, pool.high_water, pool.state())
    assert not pool.acquire(pool.prepare([1, 2], [5, 5]))
    assert (pool.live, pool.used, pool.largest_hole, pool.high_water, pool.state()) == before


@both
def test_padding_counts_as_used_but_not_as_live(pool_type: Both):
    pool = pool_type(1024, 512)
    assert pool.acquire(pool.prepare([0, 1], [1, 512]))
    assert (pool.live, pool.used, pool.high_water) == (513, 1024, 1024)


@both
def test_padding_is_released_with_its_block(pool_type: Both):
    """1 and 600 bytes are padded to 512 and 1024 at an alignment of 512."""
    pool = pool_type(2048, 512)
    take(pool, 0, 1)
    take(pool, 1, 600)
    give(pool, 0, 1)
    assert (pool.live, pool.used, pool.largest_hole) == (600, 1024, 1024 if pool_type is CountingPool else 512)
    give(pool, 1, 600)
    assert (pool.live, pool.used, pool.largest_hole) == (0, 0, 2048)


@both
def test_a_block_without_bytes_has_no_padding(pool_type: Both):
    pool = pool_type(1024, 512)
    take(pool, 0, 0)
    assert pool.used == 0


@both
def test_unlimited_memory_satisfies_any_request(pool_type: Both):
    pool = pool_type(None)
    assert take(pool, 0, 10**15)
    assert pool.largest_hole == -1


@both
def test_the_high_water_mark_remains_after_releases(pool_type: Both):
    pool = pool_type(10)
    take(pool, 0, 7)
    give(pool, 0, 7)
    take(pool, 1, 3)
    assert pool.high_water == 7


@pytest.mark.parametrize(("size", "alignment", "expected"), [(0, 8, 0), (1, 8, 8), (8, 8, 8), (9, 8, 16), (5, 1, 5)])
def test_sizes_are_rounded_up_to_a_multiple_of_the_alignment(size: int, alignment: int, expected: int):
    assert aligned(size, alignment) == expected


def test_the_counting_pool_has_one_hole():
    pool = CountingPool(10)
    for block in range(5):
        take(pool, block, 2)
    give(pool, 0, 2)
    give(pool, 2, 2)
    assert pool.largest_hole == 4


# --- addresses ----------------------------------------------------------------------------------------------


def holed() -> AddressedPool:
    """Free: 10 at 0, 4 at 20, 6 at 30, 60 at 40."""
    pool = AddressedPool(100)
    for block, size in enumerate((10, 10, 4, 6, 6, 4)):
        take(pool, block, size)
    for block, size in ((0, 10), (2, 4), (4, 6)):
        give(pool, block, size)
    assert [s[:2] for s in pool.segments() if s.block is None] == [(0, 10), (20, 4), (30, 6), (40, 60)]
    return pool


@pytest.mark.parametrize(("size", "address"), [(4, 20), (6, 30), (60, 40), (5, 0), (3, 0), (10, 0), (11, 40)])
def test_an_exact_hole_is_preferred_then_the_lowest_larger_one(size: int, address: int):
    pool = holed()
    take(pool, 9, size)
    assert pool.address(9) == address


def test_of_two_exact_holes_the_lower_is_taken():
    pool = AddressedPool(10)
    for block in range(5):
        take(pool, block, 2)
    give(pool, 3, 2)
    give(pool, 1, 2)
    take(pool, 9, 2)
    assert pool.address(9) == 2


def test_a_request_larger_than_every_hole_is_refused_despite_enough_free_bytes():
    pool = holed()
    assert (take(pool, 9, 61), pool.largest_hole) == (False, 60)


def test_adjacent_holes_are_merged():
    pool = holed()
    give(pool, 1, 10)
    assert next(pool.segments()) == AddressRange(0, 24, None)


def test_a_block_is_placed_at_its_requested_offset():
    pool = AddressedPool(100)
    assert pool.acquire(pool.prepare([0, 1], [10, 10], [50, 20]))
    assert (pool.address(0), pool.address(1), pool.high_water) == (50, 20, 60)


def test_an_occupied_offset_refuses_the_complete_request():
    pool = AddressedPool(100)
    take(pool, 0, 30)
    before = picture(pool)
    assert not pool.acquire(pool.prepare([1, 2], [10, 10], [50, 25]))
    assert picture(pool) == before


def test_an_offset_beyond_the_end_is_refused():
    assert not AddressedPool(100).acquire(AddressedPool(100).prepare([0], [10], [91]))


def test_releasing_a_block_that_is_not_held_is_an_error():
    with pytest.raises(ProgramError, match="block 3"):
        give(AddressedPool(10), 3, 5)


def test_a_memory_of_no_bytes_has_no_segments():
    assert list(AddressedPool(0).segments()) == []


# --- against the naive pool ---------------------------------------------------------------------------------


def check(pool: AddressedPool, naive: NaivePool) -> None:
    assert list(pool.segments()) == naive.pieces
    assert pool.largest_hole == naive.largest_hole
    assert pool.high_water == naive.high_water
    assert pool.used == sum(size for _, size, block in naive.pieces if block is not None)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(0, 60), st.sampled_from([1, 1, 4]))
def test_short_sequences_agree_with_the_naive_pool(data: st.DataObject, units: int, alignment: int):
    pool, naive = AddressedPool(units * alignment, alignment), NaivePool(units * alignment, alignment)
    held: list[tuple[list[int], list[int]]] = []
    for turn in range(data.draw(st.integers(0, 40))):
        if held and data.draw(st.booleans()):
            blocks, sizes = held.pop(data.draw(st.integers(0, len(held) - 1)))
            pool.release(pool.prepare(blocks, sizes))
            naive.release(blocks)
        else:
            sizes = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
            blocks = [turn * 3 + index for index in range(len(sizes))]
            before = picture(pool)
            granted = pool.acquire(pool.prepare(blocks, sizes))
            assert granted == naive.acquire(blocks, sizes)
            if granted:
                held.append((blocks, sizes))
            else:
                assert picture(pool) == before
        check(pool, naive)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["few sizes", "many sizes", "neighbours"])
def test_thousands_of_holes_agree_with_the_naive_pool(kind: str, seed: int):
    """Fill the memory with small blocks, release every other one, then acquire and release at random."""
    chance = random.Random(f"{kind} {seed}")
    largest = 4 if kind == "few sizes" else 1000
    sizes = [chance.randint(1, largest) for _ in range(2400)]
    pool, naive = AddressedPool(sum(sizes)), NaivePool(sum(sizes))
    pool.acquire(pool.prepare(range(len(sizes)), sizes))
    naive.acquire(range(len(sizes)), sizes)
    held = dict(enumerate(sizes))
    first = list(range(0, len(sizes), 2))
    chance.shuffle(first)
    for block in first:
        give(pool, block, held.pop(block))
        naive.release([block])
    check(pool, naive)
    assert sum(piece.block is None for piece in pool.segments()) == len(first)
    for turn in range(600):
        if kind == "neighbours" or chance.random() < 0.5:
            # Releasing two neighbours merges up to five pieces, sometimes across the runs that store the holes.
            for block in sorted(held)[(at := chance.randrange(len(held))) : at + 2]:
                give(pool, block, held.pop(block))
                naive.release([block])
        if chance.random() < 0.7:
            wanted = [chance.randint(1, largest) for _ in range(chance.randint(1, 3))]
            blocks = [10**6 + 10 * turn + index for index in range(len(wanted))]
            granted = pool.acquire(pool.prepare(blocks, wanted))
            assert granted == naive.acquire(blocks, wanted)
            held.update(zip(blocks, wanted, strict=True) if granted else ())
        if turn % 10 == 0:
            check(pool, naive)
    check(pool, naive)
