"""A simulated run as a PyTorch memory snapshot, for the viewer at pytorch.org/memory_viz."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.io.atomic import atomic_file
from simgpu.machine.containers import BlockRequest
from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.device import ExclusiveDevice
from simgpu.memory.caching.snapshot import SnapshotRecorder
from simgpu.simulation.addresses import run_again
from simgpu.simulation.result import Result
from simgpu.trace.allocations import Frame


def memory_snapshot(result: Result) -> dict[str, Any]:
    """What PyTorch's allocator would have done in a run, as `torch.cuda.memory._snapshot` returns it.

    The run's program runs again, with PyTorch's allocator on each GPU: with the budget and the settings of the run if
    it had that pool, else with unlimited memory. Each allocation has its tensor, layer and first kernel in place of a
    stack. Times are the simulated ones, in microseconds. Raises `InputError` for a run whose blocks are not moved by
    its program (Unified Memory).

    >>> import simgpu
    >>> trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    >>> snapshot = memory_snapshot(simgpu.simulate(trace, node, "none", pool="caching"))
    >>> snapshot["device_traces"][0][1]["frames"][0]["filename"]
    'input'
    """
    if result.program.residency is not None:
        what = f"policy {result.policy} does not allocate blocks: its pages come on demand"
        raise InputError.single("", "result", what, "take a run of another policy")
    limit = result.budget if result.pool == "caching" and not result.program.unlimited_memory else None
    recorders = [_Recording(result, limit, gpu) for gpu in range(result.program.gpus)]

    def observe(gpu: int, now: int, acquired: bool | None, request: BlockRequest) -> None:
        recorders[gpu].note(now, acquired, request)

    try:
        run_again(result, limit, observe)
    except OutOfMemoryError:
        for each in recorders:
            each.fail()
    documents = [each.recorder.document() for each in recorders]
    return {
        "segments": [segment for each in documents for segment in each["segments"]],
        "device_traces": [each["device_traces"][gpu] for gpu, each in enumerate(documents)],
        "allocator_settings": documents[0]["allocator_settings"],
        "external_annotations": [],
    }


def write_memory_snapshot(result: Result, path: str | Path) -> None:
    """Write `memory_snapshot` as a pickle, which the viewer opens; see there."""
    document = memory_snapshot(result)
    with atomic_file(Path(path)) as file:
        file.write_bytes(pickle.dumps(document, protocol=4))


class _Recording:
    """The allocator of one GPU. note: called for each request that was granted, refused (None) or released."""

    def __init__(self, result: Result, limit: int | None, gpu: int) -> None:
        context = result.context or 0
        device = ExclusiveDevice(None if limit is None else limit + context, context)
        self.recorder = SnapshotRecorder(CachingAllocator(device, result.allocator_settings), gpu)
        self._graph = result.graph
        self._held: dict[int, MemoryBlock] = {}
        self._refused: BlockRequest | None = None

    def note(self, now: int, acquired: bool | None, request: BlockRequest) -> None:
        self.recorder.time_us = now // 1000
        self._refused = request if acquired is None else None
        if acquired is None:
            self.recorder.attempt([(size, self._stack(block)) for block, size in request.prepared[2]])
            return
        for block, size in request.prepared[2]:
            if acquired:
                held = self.recorder.allocate(size, stack=self._stack(block))
                assert held is not None
                self._held[block] = held
            else:
                self.recorder.free(self._held.pop(block))

    def fail(self) -> None:
        """The last request found no memory, and the run ended."""
        for block, size in self._refused.prepared[2] if self._refused else ():
            if self.recorder.allocate(size, stack=self._stack(block)) is None:
                return

    def _stack(self, block: int) -> list[Frame]:
        """The tensor, and the kernel that writes it first, in place of a stack."""
        tensor = self._graph.blocks[block]
        layer = f" of {tensor.layer}" if tensor.layer else ""
        return [Frame(f"{tensor.kind}{layer}", tensor.id, 0)]
