"""Kernels whose blocks the program does not move, and the implicit streams on which their transfers are shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
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


def with_implicit_streams(streams: Sequence[StreamId]) -> tuple[StreamId, ...]:
    """A program's streams in instant order, with implicit ones for the copies out and in of each compute stream.

    >>> [str(stream) for stream in with_implicit_streams([StreamId(0, "compute"), StreamId(0, "compute", 1)])]
    ['compute', 'compute1', 'd2h', 'd2h1', 'h2d', 'h2d1']
    """
    computing = [stream for stream in streams if stream.role == "compute"]
    implicit = {stream._replace(role=role) for stream in computing for role in ("d2h", "h2d")}
    return tuple(sorted({*streams, *implicit}, key=lambda stream: stream.rank))


class ImplicitStreams:
    """Notes what happens on implicit streams. streams: all of the run, see `with_implicit_streams`."""

    def __init__(self, streams: tuple[StreamId, ...], graph: TaskGraph) -> None:
        self.streams = streams
        self.first_block = len(graph.kernels)
        rank = {stream: place for place, stream in enumerate(streams)}
        self.copies_of = {
            rank[stream]: {engine: rank[stream._replace(role=engine)] for engine in OWN_ENGINES}
            for stream in streams
            if stream.role == "compute"
        }

    def copies(self, stream: Stream, engine: str, parts: Parts, begin: int, end: int) -> None:
        """Note copies of blocks for a kernel, one after the other, from begin to end."""
        rank = self.copies_of[stream.rank][engine]
        resource = RESOURCES.index(engine)
        total = sum(size for _, size in parts)
        at = begin
        for (b, size), passed in zip(parts, accumulate(size for _, size in parts), strict=True):
            until, name = begin + (end - begin) * passed // total, self.first_block + b
            stream.entries.append(Entry(rank, SpanKind.COPY, name, at, until, size, -1, stream.iteration, resource))
            at = until

    def stall(self, stream: Stream, begin: int, end: int, b: int, engine: str = "") -> None:
        """Note the wait of a kernel for block b: for a copy by this engine, or for memory if it names none."""
        if begin == end:
            return
        kind, cause, resource = SpanKind.STALL_MEMORY, -1, RESOURCES.index(DEVICE)
        if engine:
            kind, cause, resource = SpanKind.STALL_EVENT, self.copies_of[stream.rank][engine], -1
        name = self.first_block + b
        stream.entries.append(Entry(stream.rank, kind, name, begin, end, 0, cause, stream.iteration, resource))


class Residency(Protocol):
    """Runs the kernels of a program that does not move its blocks.

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
