"""The state of an allocator when a recording begins, from where its segments and allocations were."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import AddressSpace, MemoryBlock
from simgpu.memory.caching.settings import SMALL_REQUEST, SMALL_SEGMENT
from simgpu.memory.pool import UNLIMITED
from simgpu.trace.allocations import AllocationTrace, AllocatorAction, AllocatorSegment


def restore(allocator: CachingAllocator, trace: AllocationTrace) -> dict[int, MemoryBlock]:
    """Give an unused allocator the segments and blocks that existed when a recording began; blocks by allocation."""
    sizes = _BlockSizes(allocator, trace)
    blocks: dict[int, MemoryBlock] = {}
    regions = dict(_regions(allocator, trace))
    allocator.takes_best = allocator.takes_best and not regions
    previous: MemoryBlock | None = None
    for segment, behind in pairwise((*trace.before, None)):
        assert segment is not None
        region = regions.get(segment.address)
        for address, size, index in sizes.parts(segment):
            block = _append(allocator, segment, address, size, region, previous)
            if index is None:
                block.pool.insert(block)
            else:
                block.allocated, block.requested = True, trace.allocations[index].size
                blocks[index] = block
            previous = block
        if region is None:
            allocator.statistics.segments += 1
            previous = None
        else:
            assert previous is not None
            continues = behind is not None and regions.get(behind.address) == region
            end = behind.address if behind is not None and continues else region.address + region.size
            previous = _append_unmapped(previous, end, segment) if end > previous.address + previous.size else previous
            previous = previous if continues else None
    _count(allocator, trace, list(blocks.values()))
    return blocks


def _append(
    allocator: CachingAllocator,
    segment: AllocatorSegment,
    address: int,
    size: int,
    region: AddressSpace | None,
    previous: MemoryBlock | None,
) -> MemoryBlock:
    """A block behind the last one of its segment, or the first."""
    pool = allocator.pool_of(SMALL_REQUEST if segment.small else SMALL_REQUEST + 1, segment.private)
    block = MemoryBlock(address, size, segment.stream, pool, region)
    if previous is None:
        allocator.segments[address] = block
    else:
        block.insert_after(previous)
    return block


def _append_unmapped(previous: MemoryBlock, end: int, segment: AllocatorSegment) -> MemoryBlock:
    address = previous.address + previous.size
    block = MemoryBlock(address, end - address, segment.stream, previous.pool, previous.region)
    block.mapped = False
    block.insert_after(previous)
    block.pool.insert_unmapped(block)
    return block


def _regions(allocator: CachingAllocator, trace: AllocationTrace) -> Iterator[tuple[int, AddressSpace]]:
    """The address space of the expandable segment that each mapped range belongs to, by the range's address.

    A recording has mapped ranges only. Those of one stream and pool are taken as one segment, which is wrong only
    where memory was moved so often that the addresses of one, 1 1/8 of the device's memory, did not suffice.
    """
    total = trace.capacity or UNLIMITED // 2**10
    first: dict[tuple[int, bool, int], AddressSpace] = {}
    for segment in trace.before:
        if segment.expandable:
            step = SMALL_SEGMENT if segment.small else allocator.settings.large_segment
            key = (segment.stream, segment.small, segment.private)
            size = -(-(total + total // 8) // step) * step
            yield segment.address, first.setdefault(key, AddressSpace(segment.address, size, step))


class _BlockSizes:
    """Where the blocks of a recording's beginning end.

    A recording has the size of a request, which is that of its block but for rounding, and for a remainder of at most
    1 MiB that was not worth a block of its own. A gap of at most 1 MiB is such a remainder: free blocks are larger.
    In a larger gap, the first allocation there begins where the block ends; without any, the remainder counts as none.
    """

    def __init__(self, allocator: CachingAllocator, trace: AllocationTrace) -> None:
        self._trace = trace
        self._settings = allocator.settings
        allocations = trace.allocations
        self._indices = sorted(trace.begun_before, key=lambda index: allocations[index].address)
        self._addresses = [allocations[index].address for index in self._indices]
        self._freed = {
            e.allocation: n for n, e in enumerate(trace.events) if e.action == AllocatorAction.FREE_COMPLETED
        }
        self._begun = sorted((e.address, n) for n, e in enumerate(trace.events) if e.action == AllocatorAction.ALLOC)

    def parts(self, segment: AllocatorSegment) -> Iterator[tuple[int, int, int | None]]:
        """The blocks of a segment: address, size, and the allocation, None for free ones."""
        end = segment.address + segment.size
        first, last = (bisect_left(self._addresses, at) for at in (segment.address, end))
        at = segment.address
        for place in range(first, last):
            address = self._addresses[place]
            if address > at:
                yield at, address - at, None
            size = self._size(self._indices[place], segment, self._addresses[place + 1] if place + 1 < last else end)
            yield address, size, self._indices[place]
            at = address + size
        if at < end:
            yield at, end - at, None

    def _size(self, index: int, segment: AllocatorSegment, end: int) -> int:
        """The size of a block before the next one, or the end of its segment, at `end`."""
        each = self._trace.allocations[index]
        if each.block_bytes is not None:
            return each.block_bytes
        size = self._settings.rounded(each.size)
        gap = end - each.address - size
        if segment.small or segment.expandable or gap <= 0:
            return size
        if gap > SMALL_REQUEST:
            gap = self._first_behind(index, each.address + size, end) - each.address - size
        return size + gap if gap <= SMALL_REQUEST else size

    def _first_behind(self, index: int, start: int, end: int) -> int:
        """Where the first allocation in a range of addresses begins, while another one exists; `start` without any."""
        until = self._freed.get(index, len(self._trace.events))
        inside = self._begun[bisect_left(self._begun, (start, 0)) : bisect_left(self._begun, (end, 0))]
        return min(((n, address) for address, n in inside if n < until), default=(0, start))[1]


def _count(allocator: CachingAllocator, trace: AllocationTrace, blocks: list[MemoryBlock]) -> None:
    counts = allocator.statistics
    counts.allocated = counts.allocated_peak = counts.active = counts.active_peak = sum(block.size for block in blocks)
    counts.requested = counts.requested_peak = sum(block.requested for block in blocks)
    counts.reserved = counts.reserved_peak = sum(segment.size for segment in trace.before)
