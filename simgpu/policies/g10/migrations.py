"""G10's schedule: which blocks leave the device between two uses, to which memory, and when they are fetched."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import HOST, NodeSpec
from simgpu.memory.pool import aligned
from simgpu.policies.g10.bandwidth import Ints, Way
from simgpu.program.lifetimes import used_by_kernel

#: A block leaves only if its gap is so many times as long as its copy: there and back, and half as much to be safe.
_SAFE = 2.5


class TierMigration(NamedTuple):
    """A block leaves before kernel `leaves` for a memory, and its copy back may begin before kernel `returns`."""

    block: int
    leaves: int
    memory: str
    returns: int


class _Gap(NamedTuple):
    """A chosen gap: kernels from `first` up to `stop` do not use the block; it is away from the end of kernel `gone`
    until kernel `back` begins."""

    block: int
    first: int
    stop: int
    memory: str
    gone: int
    back: int


@dataclass
class MigrationPlan:
    """Chooses gaps until memory is within `target`, at most `budget`; both in bytes. fault_ns: of a page fault.
    resident: blocks that stay.

    `used` counts the bytes of device memory while each kernel runs, with the gaps that are chosen so far.
    """

    graph: TaskGraph
    node: NodeSpec
    budget: int
    target: int
    fault_ns: int
    resident: Collection[int] = ()

    def __post_init__(self) -> None:
        graph = self.graph
        self._sizes = np.array([aligned(size, self.node.gpu.alignment) for size in graph.sizes], dtype=np.int64)
        self._until = np.concatenate([[0], np.cumsum(np.array(graph.durations, dtype=np.int64))])
        self.used = np.array(used_by_kernel(graph, self._sizes.tolist()), dtype=np.int64)
        self._out = Way(self.node, graph.durations, out=True)
        self._in = Way(self.node, graph.durations, out=False)
        self._on_host = np.zeros(len(graph.kernels), dtype=np.int64)
        self._others = [memory for memory in (*self.node.next_to_device, *self.node.behind_host) if memory != HOST]
        rows = [gap for b in range(len(graph.blocks)) for gap in graph.gaps(b) if gap.before > gap.after + 1]
        may_leave = {b for b, size in enumerate(graph.sizes) if size}.difference(self.resident)
        self._rows = [gap for gap in rows if gap.after >= 0 and gap.block in may_leave]

    def migrations(self) -> list[TierMigration]:
        """The migrations, by the kernel before which they begin."""
        chosen = list(self._chosen())
        result = []
        for gap in sorted(chosen, key=lambda each: each.back):
            size, back = int(self._sizes[gap.block]), gap.back
            while back > gap.gone + 1 and self.used[back - 1] + size <= self.target:
                back -= 1
            self.used[back : gap.back] += size
            result.append(TierMigration(gap.block, gap.first, gap.memory, back))
        return sorted(result, key=lambda each: (each.leaves, each.block))

    def _chosen(self) -> Iterator[_Gap]:
        blocks = np.array([gap.block for gap in self._rows], dtype=np.int64)
        firsts = np.array([gap.after + 1 for gap in self._rows], dtype=np.int64)
        stops = np.array([gap.before for gap in self._rows], dtype=np.int64)
        is_open = np.ones(len(blocks), dtype=np.bool_)
        while is_open.any() and self.used.max() > self.target:
            benefits = np.where(is_open, self._benefits(blocks, firsts, stops), -1.0)
            lengths = (self._until[stops] - self._until[firsts]).astype(np.float64) * self._sizes[blocks]
            # Of equal benefits the largest and longest.
            best = int(np.lexsort((-lengths, -benefits))[0])
            is_open[best] = False
            first, stop = int(firsts[best]), int(stops[best])
            if (self.used[first:stop] > self.target).any():
                gap = self._placed(int(blocks[best]), first, stop)
                if gap is not None:
                    yield gap

    def _benefits(self, blocks: Ints, firsts: Ints, stops: Ints) -> NDArray[np.float64]:
        """Bytes times the time for which memory exceeds the budget while they are away, half of both copies counted."""
        memory = self._others[-1] if self._others else HOST
        sizes = self._sizes[blocks]
        begin = self._out.ends(memory, firsts, sizes // 2)
        end = self._in.begins(memory, stops, sizes // 2)
        over = np.where(self.used > self.budget, np.diff(self._until), 0)
        until = np.concatenate([[0], np.cumsum(over)])
        away: NDArray[np.float64] = np.maximum(until[end] - until[np.minimum(begin, end)], 0).astype(np.float64)
        return sizes * away  # as integers they may pass 64 bits

    def _placed(self, b: int, first: int, stop: int) -> _Gap | None:
        """A gap with the memory to which its block goes; None where there is no time or no room."""
        size, length = int(self._sizes[b]), self._until[stop] - self._until[first]
        to_host = None
        if length > _SAFE * self._copy_ns(HOST, size) and self._host_has_room(first, stop, size):
            to_host = HOST
        memory = to_host
        for other in self._others:
            time = self._copy_ns(other, size)
            if length > _SAFE * time:
                until = int(np.searchsorted(self._until, self._until[first] + time, side="right")) - 1
                crowded = self._out.is_full(other, first, until)
                memory = to_host if crowded and to_host else other
        if memory is None:
            return None
        one = np.array([size], dtype=np.int64)
        gone = int(self._out.ends(memory, np.array([first]), one)[0])
        back = int(self._in.begins(memory, np.array([stop]), one)[0])
        if back <= gone:
            return None
        self._out.take(memory, first, size)
        self._in.take(memory, back, size)
        if memory == HOST:
            self._on_host[first:stop] += size
        self.used[gone + 1 : back] -= size
        return _Gap(b, first, stop, memory, gone, back)

    def _copy_ns(self, memory: str, size: int) -> float:
        """The time of a copy that nothing else delays, after a page fault."""
        links = [self.node.link_between(*ends) for ends in pairwise(self.node.way_to(memory))]
        return self.fault_ns + sum(link.latency_ns + size * 1e9 / min(link.bandwidths) for link in links if link)

    def _host_has_room(self, first: int, stop: int, size: int) -> bool:
        capacity = self.node.host.pinned_memory
        return capacity is None or bool((self._on_host[first:stop] + size <= capacity).all())
