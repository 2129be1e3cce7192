"""Copy engines, and copies over the links they feed.

An engine serves copies in the order in which they were issued; one engine may serve both directions. A copy holds its
engine for the link's latency and then until its bytes have passed.
"""

from __future__ import annotations

from dataclasses import dataclass

import simpy

from simgpu.hardware.spec import DEVICE, MemoryLink, NodeSpec
from simgpu.machine.dram import Dram
from simgpu.machine.flows import (
    FlowNetwork,
    Path,
    buddy_paths,
    paths_of,
    paths_of_links,
    shares_directions,
    single_paths,
)
from simgpu.machine.instants import InstantOrder, InstantPhase
from simgpu.machine.simulator import Events, Stream
from simgpu.memory.transfer import copy_ns
from simgpu.timeline.model import SpanKind

#: Directions of a copy: from the first end of its link to the second, and back. On the GPU's own link, OUT is D2H.
OUT, IN = range(2)


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One direction of a link, as the streams of a GPU use it.

    rate: bytes per second of a copy that has it to itself. path: through `flows`, None where no link is shared. dram:
    what limits copies by the GPU's own engines; None for others. buddy: the path of what the same block has in buddy
    memory, which passes at the same time.
    """

    engine: simpy.Resource
    rate: int
    latency: int
    path: Path
    flows: FlowNetwork | None
    dram: Dram | None
    buddy: Path

    @property
    def compresses(self) -> bool:
        """Whether the rate depends on what is copied."""
        return self.dram is not None and self.dram.gpu.cdma is not None

    def cap(self, size: int, raw: int) -> int:
        """The rate of a copy of a block of `raw` bytes as `size` bytes, as far as it has the path to itself."""
        return self.rate if self.dram is None else self.dram.sending_rate(size, raw, self.rate)


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Copy a block. size, raw: its bytes on the link, and in memory. overflow: its bytes in buddy memory, where others
    use that link. name, resource: block and engine, in the log."""

    lane: Lane
    size: int
    raw: int
    overflow: int
    name: int
    resource: int

    def perform(self, stream: Stream) -> Events:
        """Wait for the engine, then until the bytes have passed."""
        yield stream.turn(InstantPhase.START)
        issued = stream.env.instant
        with self.lane.engine.request() as engine:
            yield engine
            stream.waited(SpanKind.STALL_ENGINE, issued)
            begun = stream.env.instant
            yield from self._pass(stream)
        stream.worked(SpanKind.COPY, self.name, begun, self.size, self.resource)

    def _pass(self, stream: Stream) -> Events:
        lane, flows = self.lane, self.lane.flows
        if flows is None:
            delay = copy_ns(self.size, lane.cap(self.size, self.raw), lane.latency)
            if not stream.env.has_passed(delay, stream.rank):
                yield stream.env.timer(delay, stream.rank)
            return
        yield stream.env.timeout(lane.latency)
        passed = flows.send(lane.path, self.size, lambda: lane.cap(self.size, self.raw))
        if self.overflow:
            passed &= flows.send(lane.buddy, self.overflow)
        yield passed
        yield stream.turn(InstantPhase.END)


class Engines:
    """The lanes of a node's first GPUs.

    lanes[gpu][link][direction]: `link` is a position in the node's links. flows: the network of shared links, None
    where every copy always has its path to itself at a constant rate. buddy[gpu]: the paths to and from its buddy
    memory. dram[gpu]: its DRAM.
    """

    def __init__(
        self, env: InstantOrder, node: NodeSpec, gpus: int, *, demands_vary: bool = False, buddy_flows: bool = False
    ) -> None:
        """demands_vary: whether kernels take recorded DRAM bandwidth. buddy_flows: whether bytes to and from buddy
        memory share a link with others. One GPU of several has its link to itself; several share the switches between
        them and the host, and the host's memory."""
        # Between GPUs, or with further links behind it, a switch is shared; that of a single GPU limits it.
        own = node.gpus == 1 and bool(node.switches)
        shared = gpus > 1 or own or any(switch.links for switch in node.switches)
        over = any(link.over_gpu_link for link in node.more_links)
        network = paths_of(node, gpus) if shared else single_paths(node, others=buddy_flows or over)
        self.buddy = buddy_paths(node, network)
        paths = paths_of_links(node, network)
        flows = None
        if shared or over or demands_vary or buddy_flows or any(map(shares_directions, node.links)):
            flows = FlowNetwork(env, network[0])
        self.flows = flows
        self.dram = [Dram(node.gpu, flows, demands_vary=demands_vary) for _ in range(gpus)]
        of_all = {number: _resources(env, link) for number, link in enumerate(node.links) if DEVICE not in link.ends}
        self.lanes = [
            [
                self._lanes(link, of_all.get(number) or _resources(env, link), paths[gpu][number], gpu)
                for number, link in enumerate(node.links)
            ]
            for gpu in range(gpus)
        ]

    def _lanes(
        self, link: MemoryLink, engines: tuple[simpy.Resource, simpy.Resource], paths: tuple[Path, Path], gpu: int
    ) -> tuple[Lane, ...]:
        dram = self.dram[gpu] if DEVICE in link.ends else None
        ways = zip(engines, link.bandwidths, paths, reversed(self.buddy[gpu]), strict=True)
        return tuple(
            Lane(engine, rate, link.latency_ns, path, self.flows, dram, buddy) for engine, rate, path, buddy in ways
        )


def _resources(env: InstantOrder, link: MemoryLink) -> tuple[simpy.Resource, simpy.Resource]:
    """The engines of a link's two directions, which may be the same one."""
    out = simpy.Resource(env)
    return out, out if link.copy_engines == 1 else simpy.Resource(env)
