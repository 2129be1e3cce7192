"""When copies begin and end: each direction of a link serves one copy after the other, in the order of issue.

Copies that pass the host on their way wait for memory there.
"""

from __future__ import annotations

from simgpu.hardware.spec import NodeSpec
from simgpu.memory.transfer import copy_ns


class Lanes:
    """The copy engines of a node, idle at first.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> lanes = Lanes(NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**9, 10**9)))
    >>> lanes.copy("device", "host", 100, 0), lanes.copy("device", "host", 100, 0), lanes.copy("host", "device", 50, 10)
    (100, 200, 60)
    """

    def __init__(self, node: NodeSpec) -> None:
        self._lanes: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._free: list[int] = []
        for link in node.links:
            one, two = link.ends
            out = self._engine()
            back = out if link.copy_engines == 1 else self._engine()
            self._lanes[one, two] = out, link.bandwidths[0], link.latency_ns
            self._lanes[two, one] = back, link.bandwidths[1], link.latency_ns

    def copy(self, src: str, dst: str, size: int, ready_ns: int) -> int:
        """Issues a copy that may begin at a time, after those issued before; returns when it ends."""
        engine, bandwidth, latency = self._lanes[src, dst]
        begin = max(self._free[engine], ready_ns)
        self._free[engine] = begin + copy_ns(size, bandwidth, latency)
        return self._free[engine]

    def _engine(self) -> int:
        self._free.append(0)
        return len(self._free) - 1


class Staging:
    """Host memory for blocks that pass through. limit: bytes, None without one.

    Who comes waits until enough has left, and also for what those before it waited for: it may begin before they do.

    >>> staging = Staging(100)
    >>> staging.take(60, 0)
    (None, 0)
    >>> staging.leaves(60, event=7, at_ns=50)
    >>> staging.take(60, 10)
    (7, 50)
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        #: When what is there leaves, the event of that, and its bytes; what was waited for is there no more.
        self._there: list[tuple[int, int, int]] = []
        self._waited: tuple[int | None, int] = (None, 0)

    def take(self, need: int, now_ns: int) -> tuple[int | None, int]:
        """The event and the time at which there is memory; no event where there is some now."""
        self._there = sorted(each for each in self._there if each[0] > now_ns)
        while self._limit is not None and self._there and need + sum(size for _, _, size in self._there) > self._limit:
            ends, event, _ = self._there.pop(0)
            if ends > self._waited[1]:
                self._waited = event, ends
        return self._waited if self._waited[1] > now_ns else (None, now_ns)

    def leaves(self, size: int, event: int, at_ns: int) -> None:
        """What was taken last leaves with an event at a time."""
        self._there.append((at_ns, event, size))
