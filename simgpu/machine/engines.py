"""Copy engines and the link they feed.

An engine serves copies in the order in which they were issued; one engine may serve both directions. A copy holds its
engine for the link's latency and then until its bytes have passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from simgpu.hardware.spec import NodeSpec
from simgpu.machine.code import IN, OUT, Op
from simgpu.machine.flows import FlowNetwork, Path, buddy_paths, paths_of, shares_capacity, single_paths
from simgpu.machine.stream import Stream
from simgpu.memory.transfer import copy_ns, sending_rate


@dataclass(slots=True, eq=False)
class Engine:
    """A copy engine. busy: whether a copy occupies it. queue: streams with a waiting copy, and that copy."""

    busy: bool = False
    queue: deque[tuple[Stream, Op]] = field(default_factory=deque)


def engines_of(
    env: simpy.Environment,
    node: NodeSpec,
    gpus: int,
    settled: Callable[[], None],
    *,
    demands_vary: bool = False,
    buddy_flows: bool = False,
) -> list[Engines]:
    """The copy engines of each of the first `gpus` GPUs of a node.

    settled: as in `FlowNetwork`. demands_vary: whether kernels report their DRAM bandwidth by `take_dram`.
    buddy_flows: whether bytes to and from buddy memory share a link with others. One GPU has its link to itself;
    several share the switches between them and the host. No network is simulated where a copy always has its path to
    itself at a constant rate.
    """
    network = paths_of(node, gpus) if gpus > 1 else single_paths(node, others=buddy_flows)
    to_buddy = buddy_paths(node, network)
    capacities, paths = network
    flows = None
    if gpus > 1 or demands_vary or buddy_flows or shares_capacity(node):
        flows = FlowNetwork(env, capacities, settled)
    pairs = zip(paths, to_buddy, strict=True)
    return [Engines(env, node, flows, path, buddy, demands_vary=demands_vary) for path, buddy in pairs]


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
    """The copy engines of one GPU on its link.

    paths: the links of the network `flows` that a copy passes, out and in. to_buddy: the same to and from the GPU's
    buddy memory.
    """

    def __init__(
        self,
        env: simpy.Environment,
        node: NodeSpec,
        flows: FlowNetwork | None,
        paths: tuple[Path, Path],
        to_buddy: tuple[Path, Path],
        *,
        demands_vary: bool,
    ) -> None:
        self.env = env
        self.link = node.link
        self.bandwidth = (node.link.d2h_bandwidth, node.link.h2d_bandwidth)
        out = Engine()
        self.by_direction = (out, out if node.gpu.copy_engines == 1 else Engine())
        cdma = node.gpu.cdma
        self.gpu = node.gpu
        self.kernel_bandwidth = 0 if demands_vary or cdma is None else cdma.kernel_bandwidth
        self.flows = flows
        self.paths = paths
        self.to_buddy = to_buddy

    def issue(self, stream: Stream, copy: Op) -> bool:
        """Request a copy; returns whether it starts at once."""
        engine = self.by_direction[copy[1]]
        if engine.busy:
            engine.queue.append((stream, copy))
            return False
        engine.busy = True
        self._begin(stream, copy)
        return True

    def take_dram(self, rate: int) -> None:
        """Add the DRAM bandwidth (bytes per second) of a kernel that starts; negative for one that ends."""
        if self.gpu.cdma is not None and self.flows is not None:
            self.kernel_bandwidth += rate
            self.flows.update_rates()

    def finished(self, direction: int) -> Stream | None:
        """The copy in this direction has ended: start the next one in its engine's queue and return its stream."""
        engine = self.by_direction[direction]
        if not engine.queue:
            engine.busy = False
            return None
        stream, copy = engine.queue.popleft()
        self._begin(stream, copy)
        return stream

    def _begin(self, stream: Stream, copy: Op) -> None:
        _, direction, size, raw, *overflow = copy
        if self.flows is None:
            stream.arm(copy_ns(size, self._cap(direction, size, raw), self.link.latency_ns))
            return
        flows = self.flows
        done: Callable[[], None] = stream.fire
        if overflow:
            # The part of the block in buddy memory is read from there, or written to it, at the same time.
            done = last_of(2, stream.fire)

        def pass_bytes(_: simpy.Event) -> None:
            flows.start(self.paths[direction], lambda: self._cap(direction, size, raw), size, done)
            if overflow:
                self.pass_buddy(IN if direction == OUT else OUT, overflow[0], done)
            flows.settled()

        self.env.timeout(self.link.latency_ns).callbacks.append(pass_bytes)

    def pass_buddy(self, direction: int, size: int, done: Callable[[], None]) -> None:
        """Move bytes to buddy memory (`OUT`) or from it, at the link's remaining rate."""
        path, flows = self.to_buddy[direction], self.flows
        assert flows is not None
        limit = min(flows.capacities[link] for link in path)
        flows.start(path, lambda: limit, size, done)

    def _cap(self, direction: int, size: int, raw: int) -> int:
        return sending_rate(self.gpu, self.kernel_bandwidth, size, raw, self.bandwidth[direction])
