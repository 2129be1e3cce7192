"""Writes what an allocator did as a memory snapshot, as PyTorch writes and shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.fragmentation import mapped_ranges
from simgpu.memory.caching.settings import INTERVALS, AllocatorSettings
from simgpu.trace.allocations import AllocatorAction, Frame


class SnapshotRecorder:
    """Calls an allocator and records what it does. The clock is the caller's: set `time_us` before a call.

    >>> from simgpu.memory.caching.device import ExclusiveDevice
    >>> recorder = SnapshotRecorder(CachingAllocator(ExclusiveDevice(None)))
    >>> recorder.free(recorder.allocate(1000))
    >>> [event["action"] for event in recorder.document()["device_traces"][0]]
    ['segment_alloc', 'alloc', 'free_requested', 'free_completed']
    """

    def __init__(self, allocator: CachingAllocator, gpu: int = 0) -> None:
        self.allocator = allocator
        self.gpu = gpu
        self.time_us = 0
        self._events: list[dict[str, Any]] = []
        self._frames: dict[int, list[dict[str, Any]]] = {}
        self._waiting: list[tuple[MemoryBlock, dict[str, Any]]] = []
        allocator.observe = self._segment

    def allocate(
        self, size: int, stream: int = 0, stack: Sequence[Frame] = (), category: str = ""
    ) -> MemoryBlock | None:
        """Allocate a block; None if there is no memory, which is recorded too. category: what it holds."""
        block = self.allocator.allocate(size, stream)
        self._completed()
        frames = [{"filename": frame.file, "name": frame.function, "line": frame.line} for frame in stack]
        if block is None:
            device = self.allocator.device
            free = max((device.total or 0) - device.context - self.allocator.statistics.reserved, 0)
            rounded = self.allocator.settings.rounded(size)
            self._events.append(self._event(AllocatorAction.OOM, None, rounded, stream, frames) | {"device_free": free})
            return None
        self._frames[id(block)] = frames
        event = self._event(AllocatorAction.ALLOC, block.address, size, stream, frames)
        self._events.append(event | {"category": category} if category else event)
        return block

    def attempt(self, requests: Sequence[tuple[int, Sequence[Frame]]]) -> None:
        """Allocate blocks and free them again, up to one for which there is no memory, without an error: its request
        waits. What the attempt frees is recorded. requests: sizes and stacks."""
        allocated = []
        for size, stack in requests:
            block = self.allocate(size, stack=stack)
            if block is None:
                self._events.pop()  # the error
                break
            allocated.append(block)
        for block in allocated:
            self.free(block)

    def free(self, block: MemoryBlock) -> None:
        """Free a block."""
        frames = self._frames.pop(id(block), [])
        request = self._event(AllocatorAction.FREE_REQUESTED, block.address, block.requested, block.stream, frames)
        self._events.append(request)
        # Once it is free, the block joins its neighbours and has another address.
        self._waiting.append((block, request | {"action": str(AllocatorAction.FREE_COMPLETED)}))
        self.allocator.free(block)
        self._completed()

    def finish(self, stream: int) -> None:
        """The work of a stream has ended."""
        self.allocator.finish(stream)
        self._completed()

    def empty_cache(self) -> None:
        """Free all unused segments."""
        self.allocator.empty_cache()
        self._completed()

    def document(self) -> dict[str, Any]:
        """The snapshot, as `torch.cuda.memory._snapshot` returns it."""
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.gpu)]
        return {
            "segments": self._segments(),
            "device_traces": [*traces, list(self._events)],
            "allocator_settings": described_settings(self.allocator.settings),
            "external_annotations": [],
        }

    def _completed(self) -> None:
        """Record the blocks that have become free since the last call."""
        waiting, self._waiting = self._waiting, []
        for block, completed in waiting:
            if block.events:
                self._waiting.append((block, completed))
            else:
                self._events.append(completed | {"time_us": self.time_us})

    def _segment(self, action: str, address: int, size: int, stream: int) -> None:
        self._completed()
        self._events.append(self._event(AllocatorAction(action), address, size, stream, []))

    def _event(
        self, action: AllocatorAction, address: int | None, size: int, stream: int, frames: list[dict[str, Any]]
    ) -> dict[str, Any]:
        event: dict[str, Any] = {"action": str(action)}
        if address is not None:
            event["addr"] = address
        return event | {"size": size, "stream": stream, "time_us": self.time_us, "frames": frames}

    def _segments(self) -> list[dict[str, Any]]:
        return [self._range(blocks) for blocks in mapped_ranges(self.allocator)]

    def _range(self, blocks: Sequence[MemoryBlock]) -> dict[str, Any]:
        first = blocks[0]
        pool = first.pool
        return {
            "device": self.gpu,
            "address": first.address,
            "total_size": sum(block.size for block in blocks),
            "allocated_size": sum(block.size for block in blocks if block.allocated),
            "active_size": sum(block.size for block in blocks if block.active),
            "requested_size": sum(block.requested for block in blocks if block.active),
            "stream": first.stream,
            "segment_type": "small" if pool.small else "large",
            "segment_pool_id": (0, pool.private),
            "is_expandable": first.region is not None,
            "frames": [],
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": _state(block),
                    "frames": self._frames.get(id(block), []) if block.active else [],
                }
                for block in blocks
            ],
        }


def _state(block: MemoryBlock) -> str:
    return "active_allocated" if block.allocated else "active_pending_free" if block.active else "inactive"


def described_settings(settings: AllocatorSettings) -> dict[str, Any]:
    """Settings as a snapshot states them."""
    divisions = settings.roundup_power2_divisions
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.text(),
        "max_split_size": -1 if settings.max_split_size is None else settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {str(1 << interval): divisions[interval] for interval in range(INTERVALS)},
    }
