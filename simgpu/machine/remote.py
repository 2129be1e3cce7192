"""Kernels whose blocks are in the host's pinned memory: all of their DRAM traffic passes over the link.

A kernel's computing, its reads over the link and its writes over the link start together; it ends when all three have
ended. Its traffic is the recorded DRAM traffic, divided among its blocks by their bytes; without a record, each block
once, or as the trace's access patterns say. In the timeline a kernel's stall comes first and its computing last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simgpu.compression.codecs.entries import SECTOR_BYTES
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.containers import Container
from simgpu.machine.flows import FlowNetwork, single_paths
from simgpu.machine.implicit_streams import ImplicitStreams
from simgpu.machine.instants import InstantOrder, InstantPhase
from simgpu.machine.simulator import Events, KernelStep, Step, Stream
from simgpu.memory.chunks import Parts
from simgpu.memory.pool import CountingPool
from simgpu.program.instructions import DEVICE, HOST
from simgpu.timeline.streams import OWN_ENGINES


class RemoteAccess:
    """Runs kernels that access host memory, as a `simgpu.machine.implicit_streams.Residency`."""

    def __init__(
        self, env: InstantOrder, graph: TaskGraph, node: NodeSpec, implicit: ImplicitStreams, capacity: int | None
    ) -> None:
        # Blocks in host memory have their own size, not that of a compressed copy.
        self.graph = replace(graph, copy_sizes=graph.sizes)
        self.memory = Container(DEVICE, CountingPool(capacity))
        self.host = Container(HOST, CountingPool(node.host.pinned_memory))
        self.implicit = implicit
        self.latency = node.link.latency_ns
        capacities, (paths,) = single_paths(node, others=True)
        rates = node.link.d2h_bandwidth, node.link.h2d_bandwidth
        self.ways = dict(zip(OWN_ENGINES, zip(paths, rates, strict=True), strict=True))
        self.flows = FlowNetwork(env, capacities)

    def step(self, kernel: KernelStep) -> Step:
        """The step of a kernel."""
        read, written = traffic_of(self.graph, kernel.name)
        parts = dict(zip(OWN_ENGINES, (written, read), strict=True))
        return _RemoteKernelStep(self, kernel, {engine: each for engine, each in parts.items() if each})

    def notes(self, iteration: int) -> tuple[str, ...]:
        """No notes."""
        return ()


@dataclass(frozen=True, slots=True)
class _RemoteKernelStep:
    """Run a kernel and pass its traffic at the same time. parts: what each engine passes."""

    remote: RemoteAccess
    kernel: KernelStep
    parts: dict[str, Parts]

    def perform(self, stream: Stream) -> Events:
        yield stream.turn(InstantPhase.START)
        env, since, duration = stream.env, stream.env.instant, self.kernel.duration
        ends: dict[str, int] = {}
        traffic = [env.process(self._pass(env, engine, ends)) for engine in self.parts]
        yield env.timeout(duration) & env.all_of(traffic)
        yield stream.turn(InstantPhase.END)
        computing, implicit = env.instant - duration, self.remote.implicit
        for engine, parts in self.parts.items():
            implicit.copies(stream, implicit.copies_of[stream.rank][engine], engine, parts, since, ends[engine])
        if ends:
            last = max(ends, key=lambda engine: (ends[engine], OWN_ENGINES.index(engine)))
            implicit.stall(stream, since, computing, self.parts[last][0][0], implicit.copies_of[stream.rank][last])
        stream.worked(self.kernel.kind, self.kernel.name, computing)

    def _pass(self, env: InstantOrder, engine: str, ends: dict[str, int]) -> Events:
        """Pass what one engine passes, and note when its last byte has arrived."""
        path, rate = self.remote.ways[engine]
        yield env.timeout(self.remote.latency)
        yield self.remote.flows.send(path, sum(size for _, size in self.parts[engine]), lambda: rate)
        ends[engine] = env.instant


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
