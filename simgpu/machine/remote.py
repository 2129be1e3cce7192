"""Kernels whose blocks are in the host's pinned memory: all of their DRAM traffic passes over the link.

A kernel's computing, its reads over the link and its writes over the link start together; it ends when all three have
ended. Its traffic is the recorded DRAM traffic, divided among its blocks by their bytes; without a record, each block
once, or as the trace's access patterns say. In the timeline a kernel's stall comes first and its computing last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import simpy

from simgpu.compression.codecs.entries import SECTOR_BYTES
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.code import COPY_D2H, COPY_H2D
from simgpu.machine.flows import FlowNetwork, single_paths
from simgpu.machine.implicit_streams import ImplicitStreams
from simgpu.machine.stream import Stream, TimedMemory, unset
from simgpu.memory.paged import Parts
from simgpu.memory.pool import CountingPool


@dataclass(slots=True, eq=False)
class _Kernel:
    """A running kernel. open: how many of its duration and its two flows have not ended."""

    stream: Stream
    number: int
    began: int
    open: int


class RemoteAccess:
    """Runs kernels that access host memory, as a `simgpu.machine.implicit_streams.ResidencyDriver`."""

    def __init__(
        self, env: simpy.Environment, graph: TaskGraph, node: NodeSpec, implicit: ImplicitStreams, capacity: int | None
    ) -> None:
        self.env = env
        # Blocks in host memory have their own size, not that of a compressed copy.
        self.graph = replace(graph, copy_sizes=graph.sizes)
        self.memory = TimedMemory("device", CountingPool(capacity))
        self.host = TimedMemory("host", CountingPool(node.host.pinned_memory))
        self.implicit = implicit
        self.settled: Callable[[], None] = unset
        self.link = node.link
        capacities, ((out, back),) = single_paths(node, others=True)
        self.paths = {COPY_D2H: out, COPY_H2D: back}
        self.rates = {COPY_D2H: node.link.d2h_bandwidth, COPY_H2D: node.link.h2d_bandwidth}
        self.flows = FlowNetwork(env, capacities, lambda: self.settled())
        self.traffic = [traffic_of(graph, k) for k in range(len(graph.kernels))]

    def launch(self, kernel: int) -> Callable[[Stream, object], None]:
        """The function that starts a kernel."""
        return lambda stream, _: self._begin(stream, kernel)

    def notes(self, iteration: int) -> tuple[str, ...]:
        """No notes."""
        return ()

    def _begin(self, stream: Stream, k: int) -> None:
        read, written = self.traffic[k]
        kernel = _Kernel(stream, k, int(self.env.now), 1 + bool(read) + bool(written))
        self._after(self.graph.durations[k], partial(self._part_ended, kernel))
        for kind, parts in ((COPY_D2H, written), (COPY_H2D, read)):
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
        self.flows.start(self.paths[kind], lambda: rate, size, partial(self._transferred, kernel, kind, parts))

    def _transferred(self, kernel: _Kernel, kind: int, parts: Parts) -> None:
        now = int(self.env.now)
        self.implicit.copies(kernel.stream, kind, parts, kernel.began, now)
        computing = now - self.graph.durations[kernel.number]
        if kernel.open == 1:
            self.implicit.stall(kernel.stream, kernel.began, computing, parts[0][0], kind)
        self._part_ended(kernel)

    def _part_ended(self, kernel: _Kernel) -> None:
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
    recorded = {
        (access.block, access.write): access.entries * access.sectors * SECTOR_BYTES
        for access in graph.trace.accesses
        if access.kernel == kernel.id
    }
    touched = [(b, False) for b in dict.fromkeys(graph.reads[k])] + [(b, True) for b in dict.fromkeys(graph.writes[k])]
    sizes = [recorded.get((graph.blocks[b].id, write), graph.sizes[b]) for b, write in touched]
    if kernel.dram_bytes is not None and any(sizes):
        # Divided so that the sum is exact to the byte.
        total, passed, before, divided = sum(sizes), 0, 0, []
        for size in sizes:
            passed += size
            until = kernel.dram_bytes * passed // total
            divided.append(until - before)
            before = until
        sizes = divided
    parts = list(zip(touched, sizes, strict=True))
    read, written = ([(b, size) for (b, write), size in parts if write is way and size] for way in (False, True))
    return read, written
