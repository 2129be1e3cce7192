"""Segments of the caching allocator: blocks with their neighbours, memory from the device, and counts of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.device import SegmentSource
from simgpu.memory.caching.settings import AllocatorSettings

#: Called with what happens to memory of the device: the action as PyTorch names it, address, size, and stream.
Observer = Callable[[str, int, int, int], None]


@dataclass
class AllocatorStatistics:
    """Counts and sums of an allocator, those of `torch.cuda.memory_stats`; sums in bytes.

    allocated: blocks in use. active: the same with blocks that were freed while another stream used them. requested:
    active blocks without rounding. reserved: segments. retries: how often all unused segments were freed for a
    request. ooms: requests that failed.
    """

    allocated: int = 0
    allocated_peak: int = 0
    active: int = 0
    active_peak: int = 0
    requested: int = 0
    requested_peak: int = 0
    reserved: int = 0
    reserved_peak: int = 0
    segments: int = 0
    retries: int = 0
    ooms: int = 0
    device_allocations: int = 0
    device_frees: int = 0


class Segments:
    """What an allocator has from its device.

    device: where segments come from. settings: of the allocator. observe: called when segments change. segments: the
    first block of each, by address.
    """

    def __init__(self, device: SegmentSource, settings: AllocatorSettings, observe: Observer | None) -> None:
        self.device = device
        self.settings = settings
        self.observe = observe
        self.statistics = AllocatorStatistics()
        self.segments: dict[int, MemoryBlock] = {}

    def join(self, block: MemoryBlock, other: MemoryBlock | None) -> None:
        """Add a free neighbour to a block, if both are mapped or neither is."""
        if other is None or other.active or other.mapped != block.mapped:
            return
        if other.mapped:
            other.pool.remove(other)
        else:
            other.pool.remove_unmapped(other)
        if other is block.previous:
            block.previous = other.previous
            if block.previous is not None:
                block.previous.next = block
            else:
                self.segments[other.address] = block
            block.address = other.address
        else:
            block.next = other.next
            if block.next is not None:
                block.next.previous = block
        block.size += other.size

    def changed(self, action: str, address: int, size: int, stream: int) -> None:
        """Count memory that came from the device or went back to it."""
        taken = self.statistics
        if action in ("segment_alloc", "segment_map"):
            taken.reserved += size
            taken.reserved_peak = max(taken.reserved_peak, taken.reserved)
            taken.device_allocations += 1
        else:
            taken.reserved -= size
            taken.device_frees += 1
        if self.observe is not None:
            self.observe(action, address, size, stream)
