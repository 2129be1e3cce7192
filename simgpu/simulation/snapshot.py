"""A simulated run as a PyTorch memory snapshot, for the viewer at pytorch.org/memory_viz."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.io.atomic import atomic_file
from simgpu.machine.containers import BlockRequest
from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.device import ExclusiveDevice
from simgpu.memory.caching.settings import AllocatorSettings, parse
from simgpu.memory.caching.snapshot import SnapshotRecorder
from simgpu.policies.base import Policy
from simgpu.program.instructions import Program
from simgpu.simulation.addresses import run_again
from simgpu.simulation.config import RunConfig
from simgpu.simulation.result import Result
from simgpu.simulation.reuse import verified
from simgpu.simulation.run import planned_run
from simgpu.trace.allocations import AllocatorAction, Frame
from simgpu.trace.model import Trace


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
    _require_blocks(result.program, result.policy)
    limit = result.budget if result.pool == "caching" and not result.program.unlimited_memory else None
    return _snapshot(
        result.program,
        result.graph,
        result.node,
        limit,
        result.iterations,
        result.allocator_settings,
        result.context or 0,
    )


def failed_snapshot(trace: Trace, node: NodeSpec, policy: Policy, config: RunConfig) -> dict[str, Any]:
    """As `memory_snapshot`, of a run with the caching pool that runs out of memory: its last event is the OOM.

    The run is planned and run again. Raises `InputError` for other pools, for several GPUs, and if the run does not
    fail for want of device memory; `OutOfMemoryError` if the policy finds no plan.
    """
    if config.pool != "caching":
        what = f"a run that failed is shown with pool caching only, and pool is {config.pool or 'not given'}"
        raise InputError.single("", "argument pool", what, "give pool='caching'")
    planned = planned_run(trace, node, policy, config)
    _require_blocks(planned.program, policy.name)
    run = verified(planned.program, planned.graph, planned.node, planned.budget).graph
    limit = None if planned.program.unlimited_memory else planned.budget
    settings = parse(config.allocator) if config.allocator else None
    context = config.context_memory(planned.node) or 0
    document = _snapshot(planned.program, run, planned.node, limit, config.iterations, settings, context)
    if not any(events and events[-1]["action"] == AllocatorAction.OOM for events in document["device_traces"]):
        what = f"the run of policy {policy.name} does not run out of device memory"
        raise InputError.single("", "argument config", what, "show its result with memory_snapshot")
    return document


def _require_blocks(program: Program, policy: str) -> None:
    if program.residency is not None:
        what = f"policy {policy} does not allocate blocks: its pages come on demand"
        raise InputError.single("", "result", what, "take a run of another policy")


def _snapshot(
    program: Program,
    graph: TaskGraph,
    node: NodeSpec,
    limit: int | None,
    iterations: int,
    settings: AllocatorSettings | None,
    context: int,
) -> dict[str, Any]:
    """Run a program with PyTorch's allocator. graph: with the program's transforms."""
    recorders = [_Recording(graph, settings, limit, context, gpu) for gpu in range(program.gpus)]

    def observe(gpu: int, now: int, acquired: bool | None, request: BlockRequest) -> None:
        recorders[gpu].note(now, acquired, request)

    try:
        run_again(program, graph, node, limit, observe, iterations=iterations, settings=settings, context=context)
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
    write_snapshot_document(memory_snapshot(result), path)


def write_snapshot_document(document: dict[str, Any], path: str | Path) -> None:
    """Write a snapshot as a pickle."""
    with atomic_file(Path(path)) as file:
        file.write_bytes(pickle.dumps(document, protocol=4))


class _Recording:
    """The allocator of one GPU. note: called for each request that was granted, refused (None) or released."""

    def __init__(
        self, graph: TaskGraph, settings: AllocatorSettings | None, limit: int | None, context: int, gpu: int
    ) -> None:
        device = ExclusiveDevice(None if limit is None else limit + context, context)
        self.recorder = SnapshotRecorder(CachingAllocator(device, settings), gpu)
        self._graph = graph
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
                category = str(self._graph.blocks[block].kind)
                held = self.recorder.allocate(size, stack=self._stack(block), category=category)
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
        return [Frame(f"{tensor.kind.replace('_', ' ')}{layer}", tensor.id, 0)]
