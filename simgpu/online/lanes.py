"""When copies begin and end: each direction of a link serves one copy after the other, in the order of issue."""

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

    def links(self, src: str, dst: str) -> bool:
        """Whether a link goes from one memory to another."""
        return (src, dst) in self._lanes

    def copy(self, src: str, dst: str, size: int, ready_ns: int) -> int:
        """Issues a copy that may begin at a time, after those issued before; returns when it ends."""
        engine, bandwidth, latency = self._lanes[src, dst]
        begin = max(self._free[engine], ready_ns)
        self._free[engine] = begin + copy_ns(size, bandwidth, latency)
        return self._free[engine]

    def _engine(self) -> int:
        self._free.append(0)
        return len(self._free) - 1
