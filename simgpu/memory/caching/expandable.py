"""Expandable segments: ranges of addresses that get memory step by step, as the caching allocator needs it."""

from __future__ import annotations

from simgpu.memory.caching.blocks import AddressSpace, BlockPool, MemoryBlock
from simgpu.memory.caching.segments import Segments
from simgpu.memory.caching.settings import SMALL_SEGMENT
from simgpu.memory.pool import UNLIMITED


def best(pool: BlockPool, size: int, stream: int, enabled: bool) -> MemoryBlock | None:
    """The best free block, if the smallest one that is large enough is in an expandable segment.

    Such a block counts with the addresses behind it that have no memory yet. enabled: whether expandable segments are
    in use; else only blocks of other segments are considered.
    """
    candidates = pool.at_least(size, stream)
    if not enabled:
        return next((block for block in candidates if block.region is None), None)
    found = next(candidates)
    for other in candidates:
        if found.region is None or _could_have(other) >= _could_have(found):
            break
        found = other
    return found


def _could_have(block: MemoryBlock) -> int:
    behind = block.next
    return block.size + (behind.size if behind is not None and not behind.mapped else 0)


def allocate(allocator: Segments, pool: BlockPool, size: int, stream: int) -> MemoryBlock | None:
    """Give memory to addresses for a block of this size; None if the device has too little."""
    block = _lowest_place(allocator, pool, size, stream)
    if not block.mapped and not _map(allocator, block, min(block.size, size)):
        return None
    while block.size < size:
        behind = block.next
        assert behind is not None
        if not _map(allocator, behind, min(size - block.size, behind.size)):
            return None
        # The range that just got memory has joined the free block before it.
        block = behind
    pool.remove(block)
    return block


def _lowest_place(allocator: Segments, pool: BlockPool, size: int, stream: int) -> MemoryBlock:
    """The lowest free or unmapped range of enough addresses, in a new expandable segment if there is none."""
    for start in pool.unmapped(stream):
        before = start.previous
        block = before if before is not None and not before.active else start
        if _addresses_from(block, size) >= size:
            return block
    step = SMALL_SEGMENT if pool.small else allocator.settings.large_segment
    total = UNLIMITED // 2**10 if allocator.device.total is None else allocator.device.total
    # Address space for 1 1/8 of the memory: room to move memory to the end of the segment.
    bytes = -(-(total + total // 8) // step) * step
    region = AddressSpace(allocator.device.reserve(bytes), bytes, step)
    block = MemoryBlock(region.address, bytes, stream, pool, region)
    block.mapped = False
    allocator.segments[block.address] = block
    pool.insert_unmapped(block)
    return block


def _addresses_from(block: MemoryBlock, enough: int) -> int:
    bytes, at = 0, block
    while bytes < enough and not at.active:
        bytes += at.size
        if at.next is None:
            break
        at = at.next
    return bytes


def _map(allocator: Segments, block: MemoryBlock, size: int) -> bool:
    """Give memory to the first `size` bytes of a range, rounded up to whole steps; False if there is too little."""
    assert block.region is not None
    step = block.region.segment_size
    size = -(-size // step) * step
    if not allocator.device.map(block.address, size):
        return False
    address = block.address
    block.pool.remove_unmapped(block)
    block.mapped = True
    if size < block.size:
        rest = MemoryBlock(block.address + size, block.size - size, block.stream, block.pool, block.region)
        rest.mapped = False
        rest.insert_after(block)
        rest.pool.insert_unmapped(rest)
        block.size = size
    allocator.join(block, block.previous)
    allocator.join(block, block.next)
    block.pool.insert(block)
    allocator.changed("segment_map", address, size, block.stream)
    return True


def whole_steps(block: MemoryBlock) -> tuple[int, int]:
    """Address and bytes of the whole steps inside a block of an expandable segment; 0 bytes if there are none."""
    assert block.region is not None
    step, start = block.region.segment_size, block.region.address
    first = start + -(-(block.address - start) // step) * step
    last = start + (block.address + block.size - start) // step * step
    return first, max(last - first, 0)


def release(allocator: Segments, block: MemoryBlock) -> None:
    """Take the memory of the whole steps inside a free block; free the segment's addresses if nothing is left."""
    first, whole = whole_steps(block)
    last = first + whole
    if not whole:
        return
    allocator.device.unmap(first, last - first)
    block.pool.remove(block)
    before, after = first - block.address, block.address + block.size - last
    if before:
        rest = MemoryBlock(block.address, before, block.stream, block.pool, block.region)
        rest.insert_before(block)
        if rest.previous is None:
            allocator.segments[rest.address] = rest
        rest.pool.insert(rest)
    if after:
        rest = MemoryBlock(last, after, block.stream, block.pool, block.region)
        rest.insert_after(block)
        rest.pool.insert(rest)
    block.address, block.size, block.mapped = first, last - first, False
    allocator.join(block, block.previous)
    allocator.join(block, block.next)
    block.pool.insert_unmapped(block)
    allocator.changed("segment_unmap", first, last - first, block.stream)
    if not block.split:
        block.pool.remove_unmapped(block)
        del allocator.segments[block.address]
        allocator.device.unreserve(block.address, block.size)
