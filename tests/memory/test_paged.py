"""Pages are fetched by faults and evicted by chunks; compared with a plain implementation and closed forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import ProgramError
from simgpu.memory.chunks import (
    BatchTooLargeError,
    Chunk,
    Migration,
    PageAccess,
    Reclaim,
    ResidentChunks,
    WholeAccess,
    least_recently_used,
)
from simgpu.memory.paged import PagedPool
from simgpu.memory.prefetching import Prefetcher
from tests.machine.paged_reference import PlainPages


def first_to_arrive(residents: ResidentChunks) -> Chunk:
    return next(iter(residents.arrived))


def pool_of(
    sizes: Sequence[int],
    capacity: int,
    *,
    page: int = 10,
    chunk: int = 10,
    fault_batch: int = 1,
    prefetcher: Prefetcher | None = None,
    first_touch: bool = False,
    write_back_clean: bool = True,
    reclaim: Reclaim = least_recently_used,
) -> PagedPool:
    return PagedPool(
        sizes,
        capacity,
        page=page,
        chunk=chunk,
        fault_batch=fault_batch,
        prefetcher=prefetcher,
        first_touch=first_touch,
        write_back_clean=write_back_clean,
        reclaim=reclaim,
    )


def touch(pool: PagedPool, b: int, *, written: bool = False) -> list[Migration]:
    """The migrations caused by accessing all pages of a block in order."""
    return [*moving(pool, pool.all_pages(b, written=written))]


def moving(pool: PagedPool, visits: Iterable[PageAccess | WholeAccess]) -> Iterator[Migration]:
    for batch in pool.access(visits):
        yield pool.serve(batch)
        pool.arrive(batch)


def give(pool: PagedPool, *blocks: int) -> None:
    assert pool.acquire(pool.prepare(blocks, [pool.sizes[b] for b in blocks]))


def let_go(pool: PagedPool, *blocks: int) -> None:
    pool.release(pool.prepare(blocks, [pool.sizes[b] for b in blocks]))


@st.composite
def histories(draw: st.DrawFn) -> tuple[PagedPool, PlainPages, list[tuple[str, int, list[tuple[int, bool]]]]]:
    """Two equal memories and a random sequence of operations on their blocks."""
    page, per_chunk, batch = draw(st.integers(1, 5)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    # Any batch fits.
    capacity = draw(st.integers(batch * page, max(sum(sizes), batch * page)))
    clean, by_arrival, first_touch = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    prefetcher = draw(st.none() | st.builds(Prefetcher, st.integers(1, 4), st.integers(1, 100)))
    pool = pool_of(
        sizes,
        capacity,
        page=page,
        chunk=page * per_chunk,
        fault_batch=batch,
        prefetcher=prefetcher,
        first_touch=first_touch,
        write_back_clean=clean,
        reclaim=first_to_arrive if by_arrival else least_recently_used,
    )
    plain = PlainPages(sizes, capacity, page, per_chunk, batch, clean, by_arrival, first_touch=first_touch)
    if prefetcher is not None:
        plain.group, plain.prefetch = prefetcher
    one = st.tuples(st.sampled_from(["whole", "whole", "pages", "give", "let go"]), st.integers(0, len(sizes) - 1))
    events = []
    for what, b in draw(st.lists(one, max_size=15)):
        pages = len(plain.pages(b))
        few = st.lists(st.tuples(st.integers(0, pages - 1), st.booleans()), max_size=12) if pages else st.just([])
        events.append((what, b, draw(few) if what == "pages" else [(0, draw(st.booleans()))]))
    return pool, plain, events


@settings(deadline=None, max_examples=200)
@given(histories(), st.integers(1, 5))
def test_agrees_with_the_plain_implementation_page_by_page(
    history: tuple[PagedPool, PlainPages, list[tuple[str, int, list[tuple[int, bool]]]]], every: int
):
    """The chunks are looked at after some operations only, because whole blocks are one unit until then."""
    pool, plain, events = history
    for number, (what, b, visits) in enumerate(events):
        if what == "give":
            give(pool, b)
            plain.give(b)
        elif what == "let go":
            let_go(pool, b)
            plain.forget(b)
        else:
            if what == "whole":
                written = visits[0][1]
                expected = plain.kernel([(page, written) for page in plain.pages(b)])
                result = touch(pool, b, written=written)
            else:
                expected = plain.kernel([((b, page), written) for page, written in visits])
                chunks, each = pool.chunks(b), pool.pages_of_chunk
                single = ((chunks[page // each], 1 << page % each, written) for page, written in visits)
                result = [*moving(pool, single)]
            assert [(*map(_by_block, moved[:2]), *moved[2:]) for moved in result] == [
                (*(_by_block([(page[0], plain.size(page)) for page in pages]) for pages in moved[:2]), *moved[2:])
                for moved in expected
            ]
        assert pool.used == plain.used <= plain.capacity
        assert pool.host_only == sum(map(plain.size, plain.stored - plain.resident))
        if number % every and number < len(events) - 1:
            continue
        assert [(chunk.block, chunk.index) for chunk in pool.residents.touched] == plain.touched
        assert [(chunk.block, chunk.index) for chunk in pool.residents.arrived] == plain.arrived
        for order in (pool.residents.touched, pool.residents.arrived):
            for chunk in order:
                pages = [(chunk.block, chunk.index * plain.per_chunk + bit) for bit in range(plain.per_chunk)]
                assert chunk.resident == sum((page in plain.resident) << bit for bit, page in enumerate(pages))
                assert chunk.dirty == sum((page in plain.dirty) << bit for bit, page in enumerate(pages))


def _by_block(parts: Sequence[tuple[int, int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for b, size in parts:
        total[b] += size
    return +total


@settings(deadline=None)
@given(st.integers(2, 12), st.data())
def test_lru_faults_on_every_page_of_a_cyclic_walk_that_does_not_fit(pages: int, data: st.DataObject):
    free = data.draw(st.integers(1, pages - 1))
    pool = pool_of([10 * pages], 10 * free)
    touch(pool, 0, written=True)
    for _ in range(3):
        moved = touch(pool, 0)
        assert len(moved) == pages
        assert moved == [Migration([(0, 10)], [(0, 10)])] * pages


def test_a_walk_that_fits_causes_no_further_faults():
    pool = pool_of([100], 100)
    give(pool, 0)
    assert touch(pool, 0) == touch(pool, 0, written=True) == []


def test_the_hook_picks_the_evicted_chunk():
    """Block 0 arrived first and is used again: LRU keeps it, first in first out does not."""
    left = {}
    for name, hook in (("lru", least_recently_used), ("fifo", first_to_arrive)):
        pool = pool_of([10, 10, 10], 20, reclaim=hook)
        give(pool, 0, 1)
        touch(pool, 0)
        left[name] = touch(pool, 2)
    assert left == {"lru": [Migration([(1, 10)], [])], "fifo": [Migration([(0, 10)], [])]}


def test_a_hook_that_picks_a_chunk_not_in_device_memory_is_refused():
    pool = pool_of([10, 10], 10, reclaim=lambda residents: Chunk(5, 0, 1))
    give(pool, 0)
    with pytest.raises(ProgramError, match="not in device memory"):
        touch(pool, 1)


def test_a_chunk_is_evicted_entirely_and_fetched_page_by_page():
    pool = pool_of([40, 20], 40, chunk=40, fault_batch=2)
    give(pool, 0)
    assert touch(pool, 1) == [Migration([(0, 40)], [])]
    # Block 1's pages and two of block 0's fit; the second batch evicts block 1.
    assert touch(pool, 0) == [Migration([], [(0, 20)]), Migration([(1, 20)], [(0, 20)])]


def test_clean_pages_are_copied_out_by_default():
    moved = {}
    for clean in (True, False):
        pool = pool_of([10, 10], 10, write_back_clean=clean)
        give(pool, 0)
        touch(pool, 1)
        touch(pool, 0)
        moved[clean] = touch(pool, 1) + touch(pool, 0, written=True) + touch(pool, 1)
    there_and_back = [Migration([(0, 10)], [(1, 10)]), Migration([(1, 10)], [(0, 10)]), Migration([(0, 10)], [(1, 10)])]
    assert moved[True] == there_and_back
    assert moved[False] == [Migration([], [(1, 10)]), Migration([], [(0, 10)]), Migration([(0, 10)], [(1, 10)])]


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)], ids=["reader first", "writer first"])
def test_a_page_two_kernels_wait_for_is_dirty_if_either_writes_it(first: bool, second: bool):
    """Block 0 is on the host, with a valid copy. Both kernels fault on it before either batch is served.

    The second batch finds the page resident and moves nothing. A written page has to be copied out later.
    """
    pool = pool_of([10, 10], 10, write_back_clean=False)
    give(pool, 0)
    touch(pool, 1)
    walks = [pool.access(pool.all_pages(0, written=written)) for written in (first, second)]
    batches = [next(walk) for walk in walks]
    moved = []
    for batch in batches:
        moved.append(pool.serve(batch))
        pool.arrive(batch)
    # Block 1 was only read, but it was new: the host has no copy, so it is dirty.
    assert moved == [Migration([(1, 10)], [(0, 10)]), Migration([], [])]
    assert all(next(walk, None) is None for walk in walks)
    assert touch(pool, 1) == [Migration([(0, 10)], [(1, 10)])]


def test_a_page_that_two_kernels_only_read_stays_clean():
    pool = pool_of([10, 10], 10, write_back_clean=False)
    give(pool, 0)
    touch(pool, 1)
    for batch in [next(pool.access(pool.all_pages(0, written=False))) for _ in range(2)]:
        pool.serve(batch)
        pool.arrive(batch)
    assert touch(pool, 1) == [Migration([], [(1, 10)])]


def test_new_values_use_free_pages_without_faults_or_transfers():
    pool = pool_of([30, 20], 40, fault_batch=8)
    assert touch(pool, 0, written=True) == []
    # One of two pages uses free memory, the other evicts the oldest page of block 0.
    assert touch(pool, 1, written=True) == [Migration([(0, 10)], [])]


def test_a_released_block_is_not_copied_and_has_new_pages_afterwards():
    pool = pool_of([20, 20], 20)
    touch(pool, 0, written=True)
    let_go(pool, 0)
    assert pool.used == 0
    assert touch(pool, 1, written=True) == []
    touch(pool, 0, written=True)
    let_go(pool, 1)
    assert touch(pool, 1, written=True) == [Migration([(0, 10)], []), Migration([(0, 10)], [])]


def test_a_batch_larger_than_the_memory_is_refused():
    pool = pool_of([30, 50], 30, fault_batch=4)
    give(pool, 0, 1)  # block 1 stays on the host
    with pytest.raises(BatchTooLargeError) as caught:
        touch(pool, 1)
    assert caught.value.need == 40


def test_blocks_are_packed_and_padding_is_counted_separately():
    pool = PagedPool([25, 7], 100, 4, page=10, chunk=20, fault_batch=1)
    give(pool, 0, 1)
    assert (pool.live, pool.used, pool.high_water) == (32, 36, 36)
    let_go(pool, 0)
    assert (pool.live, pool.used, pool.high_water) == (7, 8, 36)


def test_equal_states_have_the_same_pages_in_the_same_orders():
    def state(*order: int) -> object:
        pool = pool_of([10, 10], 40)
        give(pool, 0, 1)
        for b in order:
            touch(pool, b)
        return pool.state()

    assert state(0, 1) == state() != state(1, 0)


def test_offsets_are_refused():
    with pytest.raises(ProgramError, match="offsets"):
        pool_of([10], 10).prepare([0], [10], [0])
