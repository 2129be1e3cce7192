"""Copy engines and the links they feed.

An engine serves copies in the order in which they were issued; one engine may serve both directions. A copy holds its
engine for the link's latency and then until its bytes have passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from simgpu.hardware.spec import MemoryLink, NodeSpec
from simgpu.machine.code import IN, OUT, Op
from simgpu.machine.flows import (
    FlowNetwork,
    Path,
    buddy_paths,
    paths_of,
    paths_of_links,
    shares_directions,
    single_paths,
)
from simgpu.machine.stream import Stream
from simgpu.memory.transfer import copy_ns, sending_rate
from simgpu.program.instructions import DEVICE


@dataclass(slots=True, eq=False)
class Engine:
    """A copy engine.

    busy: whether a copy occupies it. queue: streams with a waiting copy, the engines of their GPU, and that copy.
    """

    busy: bool = False
    queue: deque[tuple[Stream, Engines, Op]] = field(default_factory=deque)


def engines_of(
    env: simpy.Environment,
    node: NodeSpec,
    gpus: int,
    settled: Callable[[], None],
    *,
    demands_vary: bool = False,
    buddy_flows: bool = False,
) -> list[Engines]:
    """The copy engines that the streams of each of the first `gpus` GPUs of a node use.

    settled: as in `FlowNetwork`. demands_vary: whether kernels report their DRAM bandwidth by `take_dram`.
    buddy_flows: whether bytes to and from buddy memory share a link with others. One GPU has its link to itself;
    several share the switches between them and the host. No network is simulated where a copy always has its path to
    itself at a constant rate.
    """
    # Between GPUs, or with further links behind it, a switch is shared.
    shared = gpus > 1 or any(switch.links for switch in node.switches)
    network = paths_of(node, gpus) if shared else single_paths(node, others=buddy_flows)
    to_buddy = buddy_paths(node, network)
    paths = paths_of_links(node, network)
    flows = None
    if shared or demands_vary or buddy_flows or any(map(shares_directions, node.links)):
        flows = FlowNetwork(env, network[0], settled)
    of_all = {index: _engine_pair(link) for index, link in enumerate(node.links) if DEVICE not in link.ends}
    return [
        Engines(
            env,
            node,
            flows,
            [of_all.get(index) or _engine_pair(link) for index, link in enumerate(node.links)],
            paths[gpu],
            to_buddy[gpu],
            demands_vary=demands_vary,
        )
        for gpu in range(gpus)
    ]


def _engine_pair(link: MemoryLink) -> tuple[Engine, Engine]:
    """The engines of a link's two directions, which may be the same one."""
    out = Engine()
    return out, out if link.copy_engines == 1 else Engine()


def last_of(count: int, done: Callable[[], None]) -> Callable[[], None]:
    """A function that calls `done` when it is called for the `count`-th time.

    >>> ended = last_of(2, lambda: print("done"))
    >>> ended()
    >>> ended()
    done
    """
    remaining = count

    def ended() -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            done()

    return ended


class Engines:
    """The copy engines that the streams of one GPU use: those of its own links, and of links between other memories.

    engines, paths: by link of the node and direction: the engine, and the links of the network `flows` that a copy
    passes. to_buddy: the paths to and from the GPU's buddy memory.
    """

    def __init__(
        self,
        env: simpy.Environment,
        node: NodeSpec,
        flows: FlowNetwork | None,
        engines: list[tuple[Engine, Engine]],
        paths: list[tuple[Path, Path]],
        to_buddy: tuple[Path, Path],
        *,
        demands_vary: bool,
    ) -> None:
        self.env = env
        self.links = node.links
        self.engines = engines
        cdma = node.gpu.cdma
        self.gpu = node.gpu
        self.kernel_bandwidth = 0 if demands_vary or cdma is None else cdma.kernel_bandwidth
        self.flows = flows
        self.paths = paths
        self.to_buddy = to_buddy

    def issue(self, stream: Stream, copy: Op) -> bool:
        """Request a copy; returns whether it starts at once."""
        engine = self.engines[copy[1]][copy[2]]
        if engine.busy:
            engine.queue.append((stream, self, copy))
            return False
        engine.busy = True
        self._begin(stream, copy)
        return True

    def take_dram(self, rate: int) -> None:
        """Add the DRAM bandwidth (bytes per second) of a kernel that starts; negative for one that ends."""
        if self.gpu.cdma is not None and self.flows is not None:
            self.kernel_bandwidth += rate
            self.flows.update_rates()

    def finished(self, copy: Op) -> Stream | None:
        """A copy has ended: start the next one in its engine's queue and return its stream."""
        engine = self.engines[copy[1]][copy[2]]
        if not engine.queue:
            engine.busy = False
            return None
        stream, engines, following = engine.queue.popleft()
        engines._begin(stream, following)
        return stream

    def _begin(self, stream: Stream, copy: Op) -> None:
        _, link, direction, size, raw, *overflow = copy
        latency = self.links[link].latency_ns
        if self.flows is None:
            stream.arm(copy_ns(size, self.cap(link, direction, size, raw), latency))
            return
        flows = self.flows
        done: Callable[[], None] = stream.fire
        if overflow:
            # The part of the block in buddy memory is read from there, or written to it, at the same time.
            done = last_of(2, stream.fire)

        def pass_bytes(_: simpy.Event) -> None:
            flows.start(self.paths[link][direction], lambda: self.cap(link, direction, size, raw), size, done)
            if overflow:
                self.pass_buddy(IN if direction == OUT else OUT, overflow[0], done)
            flows.settled()

        self.env.timeout(latency).callbacks.append(pass_bytes)

    def pass_buddy(self, direction: int, size: int, done: Callable[[], None]) -> None:
        """Move bytes to buddy memory (`OUT`) or from it, at the link's remaining rate."""
        path, flows = self.to_buddy[direction], self.flows
        assert flows is not None
        limit = min(flows.capacities[link] for link in path)
        flows.start(path, lambda: limit, size, done)

    def cap(self, number: int, direction: int, size: int, raw: int) -> int:
        """The rate of a copy that has its path to itself; only the GPU's own engines compress."""
        link = self.links[number]
        rate = link.bandwidths[direction]
        return sending_rate(self.gpu, self.kernel_bandwidth, size, raw, rate) if DEVICE in link.ends else rate
