"""Copy engines and the link they feed.

Lives here: who is served when, and for how long. An engine serves copies first in, first out by issue; one engine may
serve both directions. A copy holds its engine for the link's latency and then until its bytes have passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import simpy

from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.machine.flows import FlowNetwork
from simgpu.memory.transfer import copy_ns

if TYPE_CHECKING:
    from simgpu.machine.executor import Stream


@dataclass(slots=True, eq=False)
class Engine:
    """busy: whether a copy holds it. queue: streams whose copy waits, with direction and bytes."""

    busy: bool = False
    queue: deque[tuple[Stream, int, int]] = field(default_factory=deque)


class Engines:
    """The copy engines of one GPU on its link. settled: as in `FlowNetwork`."""

    def __init__(self, env: simpy.Environment, node: NodeSpec, settled: Callable[[], None]) -> None:
        self.env = env
        self.link = node.link
        self.bandwidth = (node.link.d2h_bandwidth, node.link.h2d_bandwidth)
        out = Engine()
        self.by_direction = (out, out if node.gpu.copy_engines == 1 else Engine())
        self.flows: FlowNetwork | None = None
        if node.link.duplex is Duplex.HALF and node.gpu.copy_engines > 1:
            # Only here can two copies want the same capacity; everywhere else a copy has its link to itself.
            self.flows = FlowNetwork(env, {"link": max(self.bandwidth)}, settled)

    def issue(self, stream: Stream, direction: int, size: int) -> bool:
        """Ask for a copy; returns whether it was begun at once."""
        engine = self.by_direction[direction]
        if engine.busy:
            engine.queue.append((stream, direction, size))
            return False
        engine.busy = True
        self._begin(stream, direction, size)
        return True

    def finished(self, direction: int) -> Stream | None:
        """The copy in this direction has ended; begins the next one in its engine's queue and returns its stream."""
        engine = self.by_direction[direction]
        if not engine.queue:
            engine.busy = False
            return None
        stream, direction, size = engine.queue.popleft()
        self._begin(stream, direction, size)
        return stream

    def _begin(self, stream: Stream, direction: int, size: int) -> None:
        if self.flows is None:
            delay = copy_ns(size, self.bandwidth[direction], self.link.latency_ns)
            stream.arm(delay)
            return
        flows, cap = self.flows, self.bandwidth[direction]

        def pass_bytes(_: simpy.Event) -> None:
            flows.start(("link",), cap, size, stream.fire)
            flows.settled()

        self.env.timeout(self.link.latency_ns).callbacks.append(pass_bytes)
