"""Streams that no program has: where what moves for a kernel, besides the program's own copies, is shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from simgpu.machine.code import COPY_IN, COPY_OUT, WORK
from simgpu.machine.stream import Stream
from simgpu.memory.paged import Parts
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import StreamId


def with_lanes(streams: Sequence[StreamId]) -> tuple[StreamId, ...]:
    """Streams in instant order, with one for what leaves and one for what comes beside each that computes.

    >>> [str(stream) for stream in with_lanes([StreamId(0, "compute"), StreamId(0, "compute", 1)])]
    ['compute', 'compute1', 'd2h', 'd2h1', 'h2d', 'h2d1']
    """
    computing = [stream for stream in streams if stream.role == "compute"]
    lanes = {stream._replace(role=role) for stream in computing for role in ("d2h", "h2d")}
    return tuple(sorted({*streams, *lanes}, key=lambda stream: stream.rank))


class Lanes:
    """Rows of the timeline, eight numbers each: stream, kind, work as in `StreamCode.works`, begin, end, bytes, cause,
    iteration. streams: all of the run, see `with_lanes`."""

    def __init__(self, streams: tuple[StreamId, ...]) -> None:
        self.streams = streams
        rank = {stream: place for place, stream in enumerate(streams)}
        self.beside = {
            rank[stream]: {
                COPY_OUT: rank[stream._replace(role="d2h")],
                COPY_IN: rank[stream._replace(role="h2d")],
            }
            for stream in streams
            if stream.role == "compute"
        }
        self.rows: list[int] = []

    def move(self, stream: Stream, kind: int, parts: Parts, begin: int, end: int) -> None:
        """Bytes of blocks that move for a kernel one after the other, from begin to end."""
        lane, iteration = self.beside[stream.rank][kind], stream.iteration
        total = sum(size for _, size in parts)
        at = begin
        for (b, size), passed in zip(parts, accumulate(size for _, size in parts), strict=True):
            until = begin + (end - begin) * passed // total
            self.rows += (lane, kind, kind + WORK * b, at, until, size, -1, iteration)
            at = until

    def wait(self, stream: Stream, begin: int, end: int, b: int, kind: int | None = None) -> None:
        """A kernel is stalled for block b: while bytes leave or come (`kind`), or for the memory itself."""
        if begin == end:
            return
        what, cause = int(SpanKind.STALL_DEVICE_MEMORY), -1
        if kind is not None:
            what, cause = int(SpanKind.STALL_EVENT), self.beside[stream.rank][kind]
        self.rows += (stream.rank, what, COPY_IN + WORK * b, begin, end, 0, cause, stream.iteration)
