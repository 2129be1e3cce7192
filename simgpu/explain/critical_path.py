"""The chain of work that an iteration's length is the sum of: each step begins when the one before it ends.

The path is followed backwards: from what ended the iteration to what its stream did before, and where its stream was
waiting, to what ended the wait. To shorten the iteration, something on the path has to become shorter; what is not on
it has slack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import is_compute

_COPIES = (SpanKind.COPY_OUT, SpanKind.COPY_IN)
_MEMORY = (SpanKind.STALL_DEVICE_MEMORY, SpanKind.STALL_HOST_MEMORY)


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of the critical path, nanoseconds: work on a stream, cut at the iteration's start.

    row: of the timeline, -1 where nothing is known to have been under way.
    """

    start_ns: int
    end_ns: int
    stream: str
    kind: SpanKind | None
    name: str
    row: int

    @property
    def ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

    @property
    def label(self) -> str:
        """The kind of work in a word."""
        return "idle" if self.kind is None else self.kind.label


def critical_path(timeline: Timeline, iteration: int = -1) -> tuple[Step, ...]:
    """The steps of an iteration's critical path in order of time, from its start to its end without a gap.

    Of several ways that are equally long, the one is told that the streams in order of their names were waiting for.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.simulation.run import simulate
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> result = simulate(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, "vdnn")
    >>> [(step.stream, step.name, step.ns) for step in critical_path(result.timeline)]
    [('d2h', 'x1', 10), ('d2h', 'x2', 20), ('compute', 'F3', 9), ('h2d', 'x2', 20), ('compute', 'B2', 14), ...]
    """
    start, end = timeline.window(iteration)
    walk = _Walk(timeline)
    steps: list[Step] = []
    stream, at = walk.last(end), end
    waiter = stream
    while at > start:
        row = walk.ending(stream, at)
        if row is None and waiter != stream and walk.ending(waiter, at) is not None:
            stream = waiter  # bytes that no program moves begin when those who wait for them ask for them
            continue
        if row is None:
            before = max(walk.before(stream, at), start)
            steps.append(Step(before, at, timeline.streams[stream], None, "", -1))
            at = before
            continue
        kind = SpanKind(int(timeline.kind[row]))
        if kind.is_stall and (giver := walk.giver(row, kind, at)) is not None and giver != stream:
            waiter, stream = stream, giver
            continue
        if (beside := walk.held_open_by(row, at)) is not None:
            waiter, stream = stream, beside
            continue
        begin = int(timeline.start_ns[row])
        steps.append(walk.step(row, max(begin, start), at))
        at = begin
    return tuple(reversed(steps))


class _Walk:
    """The spans of each stream by the moments at which they end."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        lasting = timeline.end_ns > timeline.start_ns
        self.rows = [np.flatnonzero(lasting & (timeline.stream == n)) for n in range(len(timeline.streams))]
        self.ends = [timeline.end_ns[rows] for rows in self.rows]

    def last(self, end: int) -> int:
        """The stream with which an iteration ends: the first that computes, with work if there is such a one."""
        computing = [n for n, name in enumerate(self.timeline.streams) if is_compute(name)]
        at_end = [n for n in computing if self.ending(n, end) is not None]
        working = [n for n in at_end if not SpanKind(int(self.timeline.kind[self.ending(n, end)])).is_stall]
        return next(iter((*working, *at_end, *computing)), 0)

    def ending(self, stream: int, at: int) -> int | None:
        """The span of a stream that ends at a moment."""
        place = int(self.ends[stream].searchsorted(at, side="left"))
        found = self.ends[stream]
        return int(self.rows[stream][place]) if place < len(found) and found[place] == at else None

    def before(self, stream: int, at: int) -> int:
        """When the last span of a stream before a moment ended, 0 where there is none."""
        place = int(self.ends[stream].searchsorted(at, side="left")) - 1
        return int(self.ends[stream][place]) if place >= 0 else 0

    def giver(self, row: int, kind: SpanKind, at: int) -> int | None:
        """The stream that ended a wait; None where the timeline does not tell."""
        if kind is SpanKind.STALL_ENGINE:
            gpu = self.timeline.gpu[row]
            copies = (self._copying(n, at, gpu) for n in range(len(self.rows)))
            return next((n for n, copying in enumerate(copies) if copying), None)
        cause = int(self.timeline.cause[row])
        return cause if cause >= 0 and self.ending(cause, at) is not None else None

    def held_open_by(self, row: int, at: int) -> int | None:
        """Of a kernel that reaches host memory and ends with the last of its bytes, the stream that they come by.

        It runs beside them, and stands behind a wait that nothing ends.
        """
        begin = int(self.timeline.start_ns[row])
        wait = self.ending(int(self.timeline.stream[row]), begin)
        if wait is None or self.timeline.kind[wait] != SpanKind.STALL_EVENT:
            return None
        cause = int(self.timeline.cause[wait])
        ended = cause < 0 or self.ending(cause, begin) is not None
        return None if ended or self.ending(cause, at) is None else cause

    def _copying(self, stream: int, at: int, gpu: np.int64) -> bool:
        """Whether a copy of this GPU on a stream ended at a moment."""
        row = self.ending(stream, at)
        return row is not None and self.timeline.kind[row] in _COPIES and self.timeline.gpu[row] == gpu

    def step(self, row: int, start: int, end: int) -> Step:
        timeline = self.timeline
        number = int(timeline.name[row])
        name = timeline.names[number] if number >= 0 else ""
        stream = timeline.streams[int(timeline.stream[row])]
        return Step(start, end, stream, SpanKind(int(timeline.kind[row])), name, row)


def by_kind(steps: Sequence[Step]) -> dict[tuple[str, str], tuple[int, int]]:
    """Nanoseconds and number of steps by stream and kind of work, the longest first."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for step in steps:
        ns, count = found.get((step.stream, step.label), (0, 0))
        found[step.stream, step.label] = ns + step.ns, count + 1
    return dict(sorted(found.items(), key=lambda each: (-each[1][0], each[0])))
