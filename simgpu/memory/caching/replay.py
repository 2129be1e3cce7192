"""Runs a recording's requests on an allocator with other settings, or on a device with another capacity."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.device import ExclusiveDevice
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.trace.allocations import AllocationTrace, AllocatorAction


@dataclass
class Replay:
    """What an allocator did with the requests of a recording.

    levels: bytes requested, allocated and reserved after each event, one row each; those before the first event come
    first. failed: the number of the event at whose request memory ran out, -1 if that was before the first, None if it
    never did; nothing after it was run. blocks: of each allocation that exists at the end, by its index.
    """

    allocator: CachingAllocator
    levels: NDArray[np.int64]
    blocks: dict[int, MemoryBlock]
    failed: int | None = None


def replay(
    trace: AllocationTrace,
    settings: AllocatorSettings,
    capacity: int | None = None,
    emptied: Collection[int] = (),
    until: int | None = None,
) -> Replay:
    """Run a recording's requests on an unused allocator.

    What was allocated before the recording began is allocated first, by address: in which order that happened is not
    known. capacity: bytes of the device for the allocator, None for unlimited. emptied: numbers of the events before
    which the program emptied the cache. until: the number of the event before which to stop.
    """
    allocator = CachingAllocator(ExclusiveDevice(capacity), settings)
    run = Replay(allocator, np.zeros((3, len(trace.events) + 1), np.int64), {})
    allocations = trace.allocations
    for index in sorted(trace.begun_before, key=lambda index: allocations[index].address):
        if not _allocate(run, trace, index):
            return _stopped(run, -1)
    _note(run, -1)
    for number, event in enumerate(trace.events[:until]):
        if number in emptied:
            allocator.empty_cache()
        if event.action == AllocatorAction.ALLOC:
            assert event.allocation is not None
            if not _allocate(run, trace, event.allocation) and not trace.allocations[event.allocation].optional:
                return _stopped(run, number)
        elif event.allocation is not None and event.allocation not in run.blocks:
            pass  # an optional request that found no memory
        elif event.action == AllocatorAction.FREE_REQUESTED:
            _request_free(run, event.allocation)
        elif event.action == AllocatorAction.FREE_COMPLETED:
            _request_free(run, event.allocation)
            assert event.allocation is not None
            allocator.complete_free(run.blocks.pop(event.allocation))
        elif event.action == AllocatorAction.OOM:
            block = allocator.allocate(event.size, event.stream)
            if block is None:
                return _stopped(run, number)
            _note(run, number)
            allocator.free(block)
            continue
        _note(run, number)
    return run


def _allocate(run: Replay, trace: AllocationTrace, index: int) -> bool:
    each = trace.allocations[index]
    block = run.allocator.allocate(each.size, each.stream, each.private)
    if block is not None:
        run.blocks[index] = block
    return block is not None


def _request_free(run: Replay, index: int | None) -> None:
    assert index is not None
    block = run.blocks[index]
    if block.allocated:
        run.allocator.request_free(block)


def _note(run: Replay, number: int) -> None:
    counts = run.allocator.statistics
    run.levels[:, number + 1] = counts.requested, counts.allocated, counts.reserved


def _stopped(run: Replay, number: int) -> Replay:
    _note(run, number)
    run.levels = run.levels[:, : number + 2]
    run.failed = number
    return run
