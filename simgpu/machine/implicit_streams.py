"""Kernels of a program that acquires no memory, and the implicit streams on which their transfers are shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, count
from typing import Protocol

from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.containers import Container
from simgpu.machine.log import Entry
from simgpu.machine.simulator import KernelStep, Step, Stream
from simgpu.memory.chunks import Parts
from simgpu.program.instructions import DEVICE, HOST
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import OWN_ENGINES, StreamId

#: What the log of such a run names: the memories, and the engines of the GPU's own link.
RESOURCES = (DEVICE, HOST, *OWN_ENGINES)


def _implicit(streams: Sequence[StreamId]) -> dict[StreamId, dict[str, StreamId]]:
    """For each compute stream of a program those for its copies out and in, with numbers that the program lacks."""
    implicit: dict[StreamId, dict[str, StreamId]] = {}
    used = set(streams)
    for stream in sorted(streams):
        if stream.role == "compute":
            implicit[stream] = {}
            for engine in OWN_ENGINES:
                numbers = (stream._replace(role=engine, number=number) for number in count(stream.number))
                free = implicit[stream][engine] = next(each for each in numbers if each not in used)
                used.add(free)
    return implicit


def with_implicit_streams(streams: Sequence[StreamId]) -> tuple[StreamId, ...]:
    """A program's streams in instant order, with implicit ones for the copies out and in of each compute stream.

    >>> [str(stream) for stream in with_implicit_streams([StreamId(0, "compute"), StreamId(0, "compute", 1)])]
    ['compute', 'compute1', 'd2h', 'd2h1', 'h2d', 'h2d1']
    >>> [str(stream) for stream in with_implicit_streams([StreamId(0, "compute"), StreamId(0, "h2d")])]
    ['compute', 'd2h', 'h2d', 'h2d1']
    """
    implicit = {each for copies in _implicit(streams).values() for each in copies.values()}
    return tuple(sorted({*streams, *implicit}, key=lambda stream: stream.rank))


class ImplicitStreams:
    """Notes what happens on implicit streams. streams: the program's."""

    def __init__(self, streams: tuple[StreamId, ...], graph: TaskGraph) -> None:
        self.first_block = len(graph.kernels)
        rank = {stream: place for place, stream in enumerate(with_implicit_streams(streams))}
        self.copies_of = {
            rank[stream]: {engine: rank[copying] for engine, copying in copies.items()}
            for stream, copies in _implicit(streams).items()
        }

    @property
    def prefetch_evicts(self) -> int:
        """The stream that shows what is evicted for prefetches: that of the first stream with kernels."""
        return self.copies_of[min(self.copies_of)][OWN_ENGINES[0]]

    def copies(self, stream: Stream, rank: int, engine: str, parts: Parts, begin: int, end: int) -> None:
        """Note copies of blocks for a stream, one after the other, from begin to end. rank: of the stream that shows
        them."""
        resource = RESOURCES.index(engine)
        total = sum(size for _, size in parts)
        at = begin
        for (b, size), passed in zip(parts, accumulate(size for _, size in parts), strict=True):
            until, name = begin + (end - begin) * passed // total, self.first_block + b
            stream.entries.append(Entry(rank, SpanKind.COPY, name, at, until, size, -1, stream.iteration, resource))
            at = until

    def stall(self, stream: Stream, begin: int, end: int, b: int, cause: int = -1) -> None:
        """Note the wait of a kernel for block b: for a copy on the stream `cause`, or for memory if there is none."""
        if begin == end:
            return
        kind, resource = (SpanKind.STALL_MEMORY, RESOURCES.index(DEVICE)) if cause < 0 else (SpanKind.STALL_EVENT, -1)
        name = self.first_block + b
        stream.entries.append(Entry(stream.rank, kind, name, begin, end, 0, cause, stream.iteration, resource))


class Residency(Protocol):
    """Runs the kernels of a program that acquires no memory.

    graph: as the machine runs it. memory: the GPU's; host: the host's. implicit: shows what is copied for kernels.
    """

    graph: TaskGraph
    memory: Container
    host: Container
    implicit: ImplicitStreams

    def step(self, kernel: KernelStep) -> Step:
        """The step of a kernel."""
        ...

    def notes(self, iteration: int) -> tuple[str, ...]:
        """Notes on an iteration."""
        ...
