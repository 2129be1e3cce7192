"""Reserved memory that is not allocated: how much there is, what holds it, and what it is good for."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.memory.caching import expandable
from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock


@dataclass(frozen=True)
class Pin:
    """A segment that cannot go back to the device because some of it is in use.

    address, size: of the segment or the mapped range. free: bytes of it that are free but stay. blocks: those in use.
    """

    address: int
    size: int
    free: int
    blocks: tuple[MemoryBlock, ...]


@dataclass(frozen=True)
class Fragmentation:
    """Bytes of an allocator's segments.

    reserved: of all segments. allocated: of the blocks in use; rounding: of these, bytes that nobody requested.
    waiting: of blocks that were freed but which other streams still use. releasable: of segments without a block in
    use, which go back to the device when it has no more. pinned: free bytes of the other segments. largest: the
    largest free block. too_small: bytes of free blocks that are too small for the request in question, or that belong
    to the other kind of request or to another stream. pins: the other segments, those with the most free bytes first.
    """

    reserved: int
    allocated: int
    rounding: int
    waiting: int
    releasable: int
    pinned: int
    largest: int
    too_small: int
    pins: tuple[Pin, ...]


def fragmentation(allocator: CachingAllocator, request: int = 0, stream: int = 0) -> Fragmentation:
    """The state of an allocator. request: bytes of the request that it should serve, for `too_small`.

    >>> from simgpu.memory.caching.device import ExclusiveDevice
    >>> allocator = CachingAllocator(ExclusiveDevice(None))
    >>> first, second = allocator.allocate(4 * 2**20), allocator.allocate(4 * 2**20)
    >>> allocator.free(first)
    >>> state = fragmentation(allocator, request=16 * 2**20)
    >>> state.reserved >> 20, state.allocated >> 20, state.pinned >> 20, state.largest >> 20, state.too_small >> 20
    (20, 4, 16, 12, 16)
    """
    ranges = mapped_ranges(allocator)
    active = [block for blocks in ranges for block in blocks if block.active]
    free = [block for blocks in ranges for block in blocks if not block.active]
    pins = []
    releasable = 0
    for blocks in ranges:
        held = tuple(block for block in blocks if block.active)
        empty = sum(block.size for block in blocks if not block.active)
        gone = sum(expandable.whole_steps(block)[1] for block in blocks if not block.active and block.region)
        gone = gone if held or blocks[0].region else empty
        releasable += gone
        if empty > gone:
            pins.append(Pin(blocks[0].address, sum(block.size for block in blocks), empty - gone, held))
    rounded = allocator.settings.rounded(request) if request else 0
    small = allocator.pool_of(rounded).small
    suitable = [b.size for b in free if b.size >= rounded and b.pool.small == small and b.stream == stream]
    in_use = [block for block in active if block.allocated]
    return Fragmentation(
        reserved=sum(block.size for block in (*active, *free)),
        allocated=sum(block.size for block in in_use),
        rounding=sum(block.size - block.requested for block in in_use),
        waiting=sum(block.size for block in active if not block.allocated),
        releasable=releasable,
        pinned=sum(pin.free for pin in pins),
        largest=max((block.size for block in free), default=0),
        too_small=sum(block.size for block in free) - sum(suitable),
        pins=tuple(sorted(pins, key=lambda pin: (-pin.free, pin.address))),
    )


def mapped_ranges(allocator: CachingAllocator) -> list[list[MemoryBlock]]:
    """The blocks of each segment; of an expandable one, of each range that has memory."""
    ranges: list[list[MemoryBlock]] = []
    end = None
    first = {id(block) for block in allocator.segments.values()}
    for block in allocator.blocks():
        if id(block) in first or block.address != end:
            ranges.append([])
        ranges[-1].append(block)
        end = block.address + block.size
    return ranges
