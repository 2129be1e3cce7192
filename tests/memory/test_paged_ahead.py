"""Pages on their way ahead of need: each has memory once, whatever happens to its block meanwhile."""

from __future__ import annotations

import pytest

from simgpu.errors import ProgramError
from simgpu.memory.chunks import Batch, Chunk, Reclaim, least_recently_used
from simgpu.memory.paged_ahead import PrefetchingPool

OLD, OTHER, NEW = range(3)


def pool_of(reclaim: Reclaim = least_recently_used) -> PrefetchingPool:
    """Three blocks of a page of 10 bytes; two of them fill the memory."""
    pool = PrefetchingPool([10, 10, 10], 20, page=10, chunk=10, fault_batch=1, reclaim=reclaim)
    assert pool.acquire(pool.prepare([OLD, OTHER], [10, 10]))
    return pool


def release(pool: PrefetchingPool, b: int) -> None:
    pool.release(pool.prepare([b], [10]))


def prefetched(pool: PrefetchingPool, b: int) -> tuple[Chunk, Batch]:
    (chunk,) = pool.chunks(b)
    _, batch = pool.prefetch(chunk)
    return chunk, batch


def test_a_first_value_waits_for_memory_that_is_on_its_way():
    """A block leaves for the new one; although memory becomes free, the new one gets no more of it."""
    pool = pool_of()
    chunk, batch = prefetched(pool, NEW)
    release(pool, OTHER)
    (waiting,) = pool.access(pool.all_pages(NEW, written=True))
    assert waiting == {chunk: [1, 1]} and pool.used == 10
    pool.arrive_ahead(batch)
    assert pool.serve(waiting).fetched == [] and not waiting
    assert pool.used == 10 and chunk.resident == chunk.dirty == 1


def test_initializing_a_block_on_its_way_takes_no_more_memory():
    pool = pool_of()
    chunk, batch = prefetched(pool, NEW)
    release(pool, OTHER)
    assert pool.acquire(pool.prepare([NEW], [10]))
    assert (pool.used, pool.host_only) == (10, 10)
    pool.arrive_ahead(batch)
    assert chunk.resident == 1 and pool.used == 10


def test_what_is_on_its_way_cannot_be_evicted_for_more():
    pool = pool_of()
    prefetched(pool, NEW)
    (other,) = pool.chunks(OTHER)
    pool.begin_eviction(other)
    (old,) = pool.chunks(OLD)
    migration, batch = pool.prefetch(old)
    assert (migration.evicted, batch, pool.used) == ([], {}, 20)
    assert not pool.can_serve({old: [1, 0]})
    pool.end_eviction(other, 1)
    assert pool.can_serve({old: [1, 0]})


def test_a_policy_may_decline_a_prefetch_but_not_a_fault():
    pool = pool_of(reclaim=lambda residents: None)
    assert prefetched(pool, NEW)[1] == {}
    (batch,) = pool.access(pool.all_pages(NEW, written=True))
    with pytest.raises(ProgramError, match="picks a chunk that is not in device memory"):
        pool.serve(batch)


def test_pages_on_their_way_are_part_of_the_state():
    pool = pool_of()
    before = pool.state()
    _, batch = prefetched(pool, NEW)
    under_way = pool.state()
    pool.arrive_ahead(batch)
    assert len({before, under_way, pool.state()}) == 3
