"""PyTorch's caching allocator: closed cases of its rules, and random calls against a plain allocator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.device import ExclusiveDevice
from simgpu.memory.caching.settings import AllocatorSettings, parse
from tests.memory.plain_caching import PlainAllocator

MIB = 2**20


def allocator(total: int | None = None, options: str = "") -> CachingAllocator:
    return CachingAllocator(ExclusiveDevice(total), parse(options))


def taken(block: MemoryBlock | None) -> MemoryBlock:
    assert block is not None
    return block


SIZES = st.one_of(
    st.integers(1, 4 * 1024),
    st.integers(MIB - 600, MIB + 600),
    st.sampled_from([n * MIB for n in (1, 2, 3, 5, 10, 12, 20, 21, 40, 64)]),
    st.integers(1, 50 * MIB),
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("allocate"), SIZES, st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("record_stream"), st.integers(0, 30), st.integers(0, 2)),
        st.tuples(st.just("finish"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
    ),
    max_size=60,
)
SETTINGS = st.builds(
    AllocatorSettings,
    max_split_size=st.none() | st.sampled_from([20 * MIB, 32 * MIB, 64 * MIB]),
    roundup_power2_divisions=st.sampled_from([(0,) * 16, (4,) * 16, (8, 2, 0, 1) * 4]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.5, 0.8]),
    expandable_segments=st.booleans(),
    max_non_split_rounding=st.sampled_from([20 * MIB, 24 * MIB]),
    large_segment=st.sampled_from([20 * MIB, 20 * MIB, 64 * MIB]),
    memory_fraction=st.sampled_from([None, 0.75, 1.0]),
).filter(lambda each: each.large_segment <= each.split_limit)


def states(model: CachingAllocator, plain: PlainAllocator) -> Iterator[tuple[object, object]]:
    """What both have to agree on."""
    mine = {(block.address, block.size, block.active) for block in model.blocks()}
    theirs = {
        (piece.address, piece.size, piece.state != "free")
        for segment in plain.segments
        for piece in segment.pieces
        if piece.state != "unmapped"
    }
    yield mine, theirs
    yield model.statistics.reserved, plain.reserved
    yield model.statistics.active, sum(size for _, size, active in theirs if active)


@settings(deadline=None, max_examples=400)
@given(CALLS, SETTINGS, st.none() | st.sampled_from([64 * MIB, 200 * MIB]))
def test_random_calls_have_the_same_result_as_on_a_plain_allocator(
    calls: list[tuple[str, int, int]], options: AllocatorSettings, total: int | None
) -> None:
    model, plain = CachingAllocator(ExclusiveDevice(total), options), PlainAllocator(total, options)
    held: list[MemoryBlock] = []
    for call, number, stream in calls:
        if call == "allocate":
            block = model.allocate(number, stream)
            assert (None if block is None else (block.address, block.size)) == plain.allocate(number, stream)
            held += [block] if block is not None else []
        elif call == "free" and held:
            block = held.pop(number % len(held))
            plain.free(block.address)
            model.free(block)
        elif call == "record_stream" and held:
            block = held[number % len(held)]
            plain.record_stream(block.address, stream)
            model.record_stream(block, stream)
        elif call == "finish":
            plain.finish(number)
            model.finish(number)
        elif call == "empty_cache":
            plain.empty_cache()
            model.empty_cache()
        for mine, theirs in states(model, plain):
            assert mine == theirs
    assert model.device.used == plain.reserved  # type: ignore[attr-defined]


def test_requests_are_rounded_up_to_512_bytes_and_small_ones_share_segments_of_2_mib() -> None:
    model = allocator()
    blocks = [taken(model.allocate(size)) for size in (1, 512, 513, MIB)]
    assert [block.size for block in blocks] == [512, 512, 1024, MIB]
    assert [block.address for block in blocks] == [0, 512, 1024, 2048]
    assert model.statistics.reserved == 2 * MIB


@pytest.mark.parametrize(
    ("size", "segment"),
    [(MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB)],
)
def test_requests_from_10_mib_on_get_a_segment_of_their_size(size: int, segment: int) -> None:
    model = allocator()
    taken(model.allocate(size))
    assert model.statistics.reserved == segment


def test_the_rest_of_a_large_block_is_split_off_only_above_1_mib() -> None:
    model = allocator()
    assert taken(model.allocate(11 * MIB)).size == 12 * MIB
    assert taken(model.allocate(11 * MIB - 512)).size == 11 * MIB - 512


def test_the_smallest_free_block_that_fits_is_taken_and_the_lowest_of_equal_ones() -> None:
    model = allocator()
    blocks = [taken(model.allocate(size * MIB)) for size in (40, 30, 30, 20)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        model.free(block)
    assert taken(model.allocate(25 * MIB)).address == addresses[1]


def test_a_stream_does_not_get_the_free_blocks_of_another() -> None:
    model = allocator()
    model.free(taken(model.allocate(30 * MIB, stream=1)))
    taken(model.allocate(30 * MIB, stream=2))
    assert model.statistics.reserved == 60 * MIB


def test_a_block_that_another_stream_uses_becomes_free_when_that_has_ended() -> None:
    model = allocator()
    block = taken(model.allocate(30 * MIB))
    model.record_stream(block, 7)
    model.free(block)
    assert (model.statistics.allocated, model.statistics.active) == (0, 30 * MIB)
    model.finish(7)
    assert model.statistics.active == 0


def test_unused_segments_are_freed_when_the_device_has_no_more_memory() -> None:
    model = allocator(64 * MIB)
    model.free(taken(model.allocate(40 * MIB)))
    taken(model.allocate(60 * MIB))
    assert (model.statistics.reserved, model.statistics.retries) == (60 * MIB, 1)
    assert model.allocate(8 * MIB) is None
    assert model.statistics.ooms == 1


def test_expandable_segments_use_memory_that_fixed_ones_cannot() -> None:
    """Freed blocks of 30 MiB cannot serve 36 MiB; an expandable segment grows behind the last one."""
    peaks = {}
    for options in ("", "expandable_segments:True"):
        model = allocator(None, options)
        for block in [taken(model.allocate(30 * MIB)) for _ in range(4)]:
            model.free(block)
        for _ in range(3):
            taken(model.allocate(36 * MIB))
        peaks[options] = model.statistics.reserved_peak
    assert peaks == {"": (4 * 30 + 3 * 36) * MIB, "expandable_segments:True": 120 * MIB}


def test_blocks_from_the_split_limit_on_are_kept_for_large_requests() -> None:
    model = allocator(None, "max_split_size_mb:32")
    model.free(taken(model.allocate(64 * MIB)))
    assert taken(model.allocate(8 * MIB)).address == 64 * MIB
    assert taken(model.allocate(50 * MIB)).address == 0


def test_settings_are_read_as_pytorch_reads_them() -> None:
    """The case of PyTorch's own test of its settings."""
    read = parse(
        "max_split_size_mb:40,max_non_split_rounding_mb:30,roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"
    )
    assert (read.max_split_size, read.max_non_split_rounding) == (40 * MIB, 30 * MIB)
    assert read.roundup_power2_divisions[5:13] == (8, 8, 2, 4, 2, 4, 1, 1)
