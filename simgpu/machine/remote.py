"""Kernels whose blocks are in the host's pinned memory: all of their DRAM traffic passes over the link.

A kernel takes its recorded duration, and beside it what it reads comes over the link and what it writes leaves, both
ways at once; it ends when all three have ended. How much it reads and writes is its recorded DRAM traffic, shared out
as its blocks' bytes; without a record, its blocks once each, or as the trace tells that it goes through them. In the
timeline its computing comes last: a kernel that waits for the link is stalled first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import simpy

from simgpu.compression.codecs.entries import SECTOR_BYTES
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.code import COPY_IN, COPY_OUT
from simgpu.machine.flows import FlowNetwork
from simgpu.machine.lanes import Lanes
from simgpu.machine.flows import single_paths
from simgpu.machine.stream import Memory
from simgpu.machine.stream import Stream
from simgpu.memory.paged import Parts
from simgpu.memory.pool import CountingPool


@dataclass(slots=True, eq=False)
class _Kernel:
    """A kernel under way. open: of its duration and its two flows, how many have not ended."""

    stream: Stream
    number: int
    began: int
    open: int


class RemoteAccess:
    """Runs the kernels of a GPU that reads and writes host memory; see `simgpu.machine.unmoved.Unmoved`."""

    def __init__(
        self, env: simpy.Environment, graph: TaskGraph, node: NodeSpec, lanes: Lanes, capacity: int | None
    ) -> None:
        self.env = env
        # In host memory blocks are as they are, not as a copy makes them.
        self.graph = replace(graph, copy_sizes=graph.sizes)
        self.memory = Memory("device", CountingPool(capacity))
        self.host = Memory("host", CountingPool(node.host.pinned_memory))
        self.lanes = lanes
        self.settled: Callable[[], None] = _nobody
        self.link = node.link
        capacities, ((out, back),) = single_paths(node, beside=True)
        self.paths = {COPY_OUT: out, COPY_IN: back}
        self.rates = {COPY_OUT: node.link.d2h_bandwidth, COPY_IN: node.link.h2d_bandwidth}
        self.flows = FlowNetwork(env, capacities, lambda: self.settled())
        self.traffic = [traffic_of(graph, k) for k in range(len(graph.kernels))]

    def launch(self, kernel: int) -> Callable[[Stream], None]:
        """What begins that kernel."""
        return lambda stream: self._begin(stream, kernel)

    def notes(self, iteration: int) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def _begin(self, stream: Stream, k: int) -> None:
        read, written = self.traffic[k]
        kernel = _Kernel(stream, k, int(self.env.now), 1 + bool(read) + bool(written))
        self._after(self.graph.durations[k], partial(self._over, kernel))
        for kind, parts in ((COPY_OUT, written), (COPY_IN, read)):
            if parts:
                self._after(self.link.latency_ns, partial(self._send, kernel, kind, parts))

    def _after(self, delay: int, then: Callable[[], None]) -> None:
        def fire(_: simpy.Event) -> None:
            then()
            self.settled()

        self.env.timeout(delay).callbacks.append(fire)

    def _send(self, kernel: _Kernel, kind: int, parts: Parts) -> None:
        rate = self.rates[kind]
        size = sum(size for _, size in parts)
        self.flows.start(self.paths[kind], lambda: rate, size, partial(self._passed, kernel, kind, parts))

    def _passed(self, kernel: _Kernel, kind: int, parts: Parts) -> None:
        now = int(self.env.now)
        self.lanes.move(kernel.stream, kind, parts, kernel.began, now)
        computing = now - self.graph.durations[kernel.number]
        if kernel.open == 1:
            self.lanes.wait(kernel.stream, kernel.began, computing, parts[0][0], kind)
        self._over(kernel)

    def _over(self, kernel: _Kernel) -> None:
        kernel.open -= 1
        if not kernel.open:
            kernel.stream.starts.append(int(self.env.now) - self.graph.durations[kernel.number])
            kernel.stream.fire()


def traffic_of(graph: TaskGraph, k: int) -> tuple[Parts, Parts]:
    """Bytes that a kernel reads and bytes that it writes, by block.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5, 5], [7, 7], [100, 50])
    >>> traffic_of(TaskGraph.of(trace), 0)
    ([(0, 100)], [(1, 50)])
    >>> more = replace(trace, kernels=(replace(trace.kernels[0], dram_bytes=600), *trace.kernels[1:]))
    >>> traffic_of(TaskGraph.of(more), 0)
    ([(0, 400)], [(1, 200)])
    """
    kernel = graph.kernels[k]
    told = {
        (access.block, access.write): access.entries * access.sectors * SECTOR_BYTES
        for access in graph.trace.accesses
        if access.kernel == kernel.id
    }
    touched = [(b, False) for b in dict.fromkeys(graph.reads[k])] + [(b, True) for b in dict.fromkeys(graph.writes[k])]
    sizes = [told.get((graph.blocks[b].id, write), graph.sizes[b]) for b, write in touched]
    if kernel.dram_bytes is not None and any(sizes):
        # Shared out so that the sum is kept to the byte.
        total, passed, before, shared = sum(sizes), 0, 0, []
        for size in sizes:
            passed += size
            until = kernel.dram_bytes * passed // total
            shared.append(until - before)
            before = until
        sizes = shared
    parts = list(zip(touched, sizes, strict=True))
    read, written = ([(b, size) for (b, write), size in parts if write is way and size] for way in (False, True))
    return read, written


def _nobody() -> None:
    """Stands in for `RemoteAccess.settled` until it is set."""
