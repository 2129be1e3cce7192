"""Kernels whose blocks the program does not move, and the implicit streams on which their transfers are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol

from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.code import COPY_D2H, COPY_H2D, WORK, memory_wait
from simgpu.machine.stream import Stream, TimedMemory
from simgpu.memory.paged import Parts
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import StreamId


def with_implicit_streams(streams: Sequence[StreamId]) -> tuple[StreamId, ...]:
    """A program's streams in instant order, with implicit ones for the copies out and in of each compute stream.

    >>> [str(stream) for stream in with_implicit_streams([StreamId(0, "compute"), StreamId(0, "compute", 1)])]
    ['compute', 'compute1', 'd2h', 'd2h1', 'h2d', 'h2d1']
    """
    computing = [stream for stream in streams if stream.role == "compute"]
    implicit = {stream._replace(role=role) for stream in computing for role in ("d2h", "h2d")}
    return tuple(sorted({*streams, *implicit}, key=lambda stream: stream.rank))


class ImplicitStreams:
    """Records what happens on implicit streams. streams: all of the run, see `with_implicit_streams`.

    rows: for the timeline, eight numbers each: stream, kind or `memory_wait`, work as in `StreamCode.works`, begin,
    end, bytes, cause, iteration. The first memory is the GPU's.
    """

    def __init__(self, streams: tuple[StreamId, ...]) -> None:
        self.streams = streams
        rank = {stream: place for place, stream in enumerate(streams)}
        self.copies_of = {
            rank[stream]: {
                COPY_D2H: rank[stream._replace(role="d2h")],
                COPY_H2D: rank[stream._replace(role="h2d")],
            }
            for stream in streams
            if stream.role == "compute"
        }
        self.rows: list[int] = []

    def copies(self, stream: Stream, kind: int, parts: Parts, begin: int, end: int) -> None:
        """Record copies of blocks for a kernel, one after the other, from begin to end."""
        rank, iteration = self.copies_of[stream.rank][kind], stream.iteration
        total = sum(size for _, size in parts)
        at = begin
        for (b, size), passed in zip(parts, accumulate(size for _, size in parts), strict=True):
            until = begin + (end - begin) * passed // total
            self.rows += (rank, kind, kind + WORK * b, at, until, size, -1, iteration)
            at = until

    def stall(self, stream: Stream, begin: int, end: int, b: int, kind: int | None = None) -> None:
        """Record the wait of a kernel for block b: for a copy of this kind, or for memory if it is None."""
        if begin == end:
            return
        what, cause = memory_wait(0), -1
        if kind is not None:
            what, cause = int(SpanKind.STALL_EVENT), self.copies_of[stream.rank][kind]
        self.rows += (stream.rank, what, COPY_H2D + WORK * b, begin, end, 0, cause, stream.iteration)


class ResidencyDriver(Protocol):
    """Runs the kernels of a program that does not move its blocks.

    graph: as the machine runs it. memory: the GPU's; host: the host's. implicit: shows what is copied for kernels.
    settled: to be set; called after every event that is not a stream's.
    """

    graph: TaskGraph
    memory: TimedMemory
    host: TimedMemory
    implicit: ImplicitStreams
    settled: Callable[[], None]

    def launch(self, kernel: int) -> Callable[[Any, Any], None]:
        """The function that starts a kernel, given its stream and copy engines."""
        ...

    def notes(self, iteration: int) -> tuple[str, ...]:
        """Notes on an iteration."""
        ...
