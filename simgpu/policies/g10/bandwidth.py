"""What is left of a node's bandwidth while each kernel runs, as G10 plans with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simgpu.hardware.spec import HOST, NodeSpec
from simgpu.memory.transfer import NANO

Ints = NDArray[np.int64]


class Way:
    """One direction between the device and the other memories: bytes that may still pass while each kernel runs.

    Copies of a link over the GPU's own share that with copies to the host, and so do those that go on from the host.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**9, 10**9))
    >>> way = Way(node, [10, 10, 10], out=True)
    >>> size = np.array([15])
    >>> int(way.ends("host", np.array([0]), size)[0]), int(way.begins("host", np.array([3]), size)[0])
    (1, 1)
    >>> way.take("host", 0, 15)
    >>> int(way.ends("host", np.array([0]), size)[0]), way.is_full("host", 0, 1)
    (2, True)
    """

    def __init__(self, node: NodeSpec, durations: Sequence[int], *, out: bool) -> None:
        self._free: dict[str, Ints] = {}
        self._over = {HOST}
        for memory in (*node.next_to_device, *node.behind_host):
            near = node.way_to(memory)[-2]
            link = node.link_between(near, memory)
            assert link is not None
            bandwidth = link.bandwidths[0 if (link.ends[0] == near) == out else 1]
            self._free[memory] = np.array([bandwidth * each // NANO for each in durations], dtype=np.int64)
            self._over |= {memory} if link.over_gpu_link or near == HOST else set()
        self._until: dict[str, Ints] = {}

    def _sums(self, memory: str) -> Ints:
        if memory not in self._until:
            free = self._free[memory]
            if memory in self._over:
                free = np.minimum(free, self._free[HOST])
            self._until[memory] = np.concatenate([[0], np.cumsum(free)])
        return self._until[memory]

    def ends(self, memory: str, starts: Ints, sizes: Ints) -> Ints:
        """The kernel during which each copy ends that begins with one; the last one if there is no time."""
        until = self._sums(memory)
        return np.minimum(np.searchsorted(until, until[starts] + sizes) - 1, len(until) - 2)

    def begins(self, memory: str, stops: Ints, sizes: Ints) -> Ints:
        """The last kernel with which each copy may begin that is to end before another; 0 if there is no time."""
        until = self._sums(memory)
        return np.maximum(np.searchsorted(until, until[stops] - sizes, side="right") - 1, 0)

    def is_full(self, memory: str, start: int, stop: int) -> bool:
        """Whether nothing more can pass from kernel `start` until kernel `stop`."""
        until = self._sums(memory)
        return bool(until[stop] - until[start] <= 0)

    def take(self, memory: str, start: int, size: int) -> None:
        """Lets a copy pass from kernel `start` on."""
        passed = np.clip(self._sums(memory) - self._sums(memory)[start], 0, size)
        parts = np.diff(passed)
        for each in {memory, HOST} if memory in self._over else {memory}:
            self._free[each] = self._free[each] - parts
        self._until.clear()
