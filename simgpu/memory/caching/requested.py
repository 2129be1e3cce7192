"""What the allocator does with a program's requests, as a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.device import ExclusiveDevice
from simgpu.memory.caching.fragmentation import mapped_ranges
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.memory.caching.snapshot import SnapshotRecorder, described_settings
from simgpu.trace.allocations import (
    Allocation,
    AllocationTrace,
    AllocatorAction,
    AllocatorEvent,
    AllocatorSegment,
    Frame,
)
from simgpu.trace.model import Origin
from simgpu.trace.requests import MemoryRequest, MemoryRequests


def allocation_trace(program: MemoryRequests, settings: AllocatorSettings | None = None) -> AllocationTrace:
    """What PyTorch's allocator does with these requests on a device of unlimited memory.

    >>> program = MemoryRequests("one", "hand")
    >>> program.free(program.allocate(MemoryRequest(1000)))
    >>> [str(event.action) for event in allocation_trace(program).events]
    ['segment_alloc', 'alloc', 'free_requested', 'free_completed']
    """
    recording = _Recording(settings or AllocatorSettings())
    for number in program.order:
        if number >= 0:
            recording.allocate(number, program.requests[number])
        else:
            recording.free(~number, program.requests[~number])
    return AllocationTrace(
        name=program.name,
        gpu=0,
        tool=program.tool,
        allocations=tuple(recording.allocations),
        events=tuple(recording.events),
        before=(),
        after=tuple(_segments(recording.allocator)),
        stacks=tuple(recording.stacks),
        settings=described_settings(recording.allocator.settings),
        capacity=program.capacity,
        origin=Origin.MODELLED,
    )


def snapshot_document(
    program: MemoryRequests, capacity: int | None = None, settings: AllocatorSettings | None = None
) -> dict[str, Any]:
    """What PyTorch's allocator does with these requests, as `torch.cuda.memory._snapshot` returns it.

    capacity: bytes of the device for the allocator, None for unlimited; the snapshot ends where it does not suffice.

    >>> program = MemoryRequests("one", "hand")
    >>> program.free(program.allocate(MemoryRequest(1000)))
    >>> [event["action"] for event in snapshot_document(program, capacity=2**20)["device_traces"][0]]
    ['oom']
    """
    recorder = SnapshotRecorder(CachingAllocator(ExclusiveDevice(capacity), settings))
    held: dict[int, MemoryBlock] = {}
    for number in program.order:
        if number >= 0:
            request = program.requests[number]
            block = recorder.allocate(request.size, stack=request.stack, category=request.category)
            if block is not None:
                held[number] = block
            elif not request.optional:
                break
        elif ~number in held:
            recorder.free(held.pop(~number))
    return recorder.document()


class _Recording:
    """An allocator, and what it did."""

    def __init__(self, settings: AllocatorSettings) -> None:
        self.allocator = CachingAllocator(ExclusiveDevice(None), settings)
        self.allocator.observe = self._segment
        self.allocations: list[Allocation] = []
        self.events: list[AllocatorEvent] = []
        self.stacks: dict[tuple[Frame, ...], int] = {}
        self._held: dict[int, MemoryBlock] = {}

    def allocate(self, number: int, request: MemoryRequest) -> None:
        block = self.allocator.allocate(request.size)
        assert block is not None
        self._held[number] = block
        stack = self.stacks.setdefault(request.stack, len(self.stacks)) if request.stack else None
        address, size = block.address, request.size
        self.allocations.append(
            Allocation(
                size,
                address,
                stack=stack,
                category=request.category,
                block_bytes=block.size,
                optional=request.optional,
            )
        )
        self.events.append(AllocatorEvent(AllocatorAction.ALLOC, number, address, size, stack=stack))

    def free(self, number: int, request: MemoryRequest) -> None:
        block = self._held.pop(number)
        stack, address = self.allocations[number].stack, block.address
        for action in (AllocatorAction.FREE_REQUESTED, AllocatorAction.FREE_COMPLETED):
            self.events.append(AllocatorEvent(action, number, address, request.size, stack=stack))
        self.allocator.free(block)

    def _segment(self, action: str, address: int, size: int, stream: int) -> None:
        self.events.append(AllocatorEvent(AllocatorAction(action), None, address, size, stream))


def _segments(allocator: CachingAllocator) -> Sequence[AllocatorSegment]:
    ranges = []
    for blocks in mapped_ranges(allocator):
        first, size = blocks[0], sum(block.size for block in blocks)
        pool = first.pool
        segment = AllocatorSegment(
            first.address, size, first.stream, pool.small, first.region is not None, pool.private
        )
        ranges.append(segment)
    return sorted(ranges, key=lambda segment: segment.address)
