"""Inputs of checkpointed sections in another memory, from their last use in forward until a section runs again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from simgpu.graph.sections import activations
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.eager import Eager
from simgpu.program.instructions import DEVICE
from simgpu.timeline.streams import StreamId, engine
from simgpu.trace.model import Phase


class Away(NamedTuple):
    """A block is away from after kernel `leaves` until just before kernel `returns`, and what runs again there."""

    block: int
    leaves: int
    returns: int


def inputs_away(graph: TaskGraph, read_at: Mapping[int, Iterable[int]]) -> list[Away]:
    """The blocks of activations that may be away, in the order in which they leave.

    read_at: by block, the kernels of backward before which a section that reads it runs again.
    """
    flows, result = activations(graph), []
    for b, starts in read_at.items():
        uses = graph.uses[b]
        leaves = max((k for k in uses if graph.kernels[k].phase is Phase.FORWARD), default=None)
        if b in flows and leaves is not None and graph.sizes[b]:
            returns = min((*starts, *(k for k in uses if k > leaves)))
            if returns > leaves + 1:
                result.append(Away(b, leaves, returns))
    return sorted(result, key=lambda each: (each.leaves, -each.returns, each.block))


class OffloadedInputs:
    """Writes their copies. The compute stream acquires all device memory.

    way: the memories that a copy passes, from the device to where they go. overlapped: copies overlap with kernels:
    compute waits for an offload to leave the device when the next one begins, and the blocks of one section are fetched
    while the section behind it runs in backward. Otherwise compute waits for every copy.
    """

    def __init__(self, writer: Eager, away: Iterable[Away], way: Sequence[str], *, overlapped: bool) -> None:
        self._writer, self._way, self._overlapped = writer, way, overlapped
        self._leaving: defaultdict[int, list[int]] = defaultdict(list)
        returning: defaultdict[int, list[int]] = defaultdict(list)
        for each in away:
            self._leaving[each.leaves].append(each.block)
            returning[each.returns].append(each.block)
        #: What returns, by the kernel before which it is needed, in order.
        self._returning = dict(sorted(returning.items()))
        self._offloads: list[tuple[int, int]] = []
        self._gone: dict[int, int] = {}
        self._fetches: dict[int, int] = {}

    def after(self, k: int) -> None:
        """What leaves after kernel k."""
        for b in self._leaving.get(k, ()):
            if self._overlapped:
                self._let_go()
            ends = self._copies(b, self._way, self._writer.signal())
            self._gone[b] = ends[-1]
            self._offloads.append((b, ends[0] if self._overlapped else ends[-1]))
            if not self._overlapped:
                self._let_go()

    def before(self, k: int) -> None:
        """What has to be back before kernel k, or what runs again there."""
        if k not in self._returning:
            return
        self._let_go()
        self._fetch(self._returning[k])
        if self._overlapped:
            # A later micro-batch's have not left yet.
            following = next((blocks for place, blocks in self._returning.items() if place > k), [])
            self._fetch(b for b in following if b in self._gone)
        for b in self._returning[k]:
            self._writer.wait(self._fetches[b])

    def _let_go(self) -> None:
        """Compute waits for the offloads, and their device memory is released."""
        for b, left in self._offloads:
            self._writer.wait(left)
            self._writer.release((b,))
        self._offloads.clear()

    def _fetch(self, blocks: Iterable[int]) -> None:
        for b in blocks:
            if b not in self._fetches:
                self._writer.acquire((b,))
                self._fetches[b] = self._copies(b, self._way[::-1], self._writer.signal())[-1]

    def _copies(self, b: int, way: Sequence[str], after: int) -> list[int]:
        """Copy a block from memory to memory after an event; the events at the copies' ends."""
        ends: list[int] = []
        for src, dst in pairwise(way):
            stream = StreamId(0, engine(src, dst))
            self._writer.wait(ends[-1] if ends else after, stream)
            if not ends and src not in self._way[:2]:
                # Compute waits for the end of the first copy alone.
                self._writer.wait(self._gone[b], stream)
            code = self._writer.code[stream]
            if dst != DEVICE:
                code.acquire((b,), dst)
            code.copy(b, src, dst)
            if src != DEVICE:
                code.release((b,), src)
            ends.append(self._writer.signal(stream))
        return ends
