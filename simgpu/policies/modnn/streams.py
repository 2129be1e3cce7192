"""The two streams of moDNN, Stream_C and Stream_D, with predicted times.

A point is a position in a stream for which the other stream may wait, at once or later; it becomes a signal when the
other first waits for it. Since streams run in order, a stream that waited for a point has waited for all earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from simgpu.program.instructions import Await, Instruction, Signal


@dataclass(slots=True)
class Point:
    """A position in a stream. time: when the stream reaches it, nanoseconds; order: its position among the points."""

    time: int
    order: int
    event: int | None = None


@dataclass(frozen=True, slots=True)
class AcquireWorkspace:
    """Placeholder for acquiring the workspace of a kernel, whose block is known once all algorithms are chosen."""

    kernel: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReleaseWorkspace:
    """Placeholder for releasing the workspace."""

    kernel: int


#: An instruction of a stream, or a placeholder of one.
StreamEntry = Instruction | AcquireWorkspace | ReleaseWorkspace


@dataclass(slots=True)
class StreamClock:
    """A stream being written. now: its clock; reached: the latest point of the other stream that it has waited for."""

    events: Iterator[int] = field(default_factory=count)
    cells: list[StreamEntry | Point] = field(default_factory=list)
    now: int = 0
    reached: int = -1
    points: int = 0

    def point(self) -> Point:
        """Where the stream is now."""
        if self.cells and isinstance(self.cells[-1], Point):
            return self.cells[-1]
        here = Point(self.now, self.points)
        self.points += 1
        self.cells.append(here)
        return here

    def wait(self, point: Point) -> None:
        """Wait until the other stream has reached that point.

        >>> compute, data = StreamClock(), StreamClock()
        >>> data.now = 7
        >>> compute.wait(data.point()), compute.now, compute.code()
        (None, 7, (Await(event=0, lag=0),))
        """
        if point.order <= self.reached:
            return
        if point.event is None:
            point.event = next(self.events)
        self.reached = point.order
        self.now = max(self.now, point.time)
        self.cells.append(Await(point.event))

    def do(self, instruction: StreamEntry, duration: int = 0) -> None:
        """Append an instruction that takes `duration` nanoseconds."""
        self.cells.append(instruction)
        self.now += duration

    def code(self) -> tuple[StreamEntry, ...]:
        """The instructions, with signals in place of the points that the other stream waits for."""
        entries: list[StreamEntry] = []
        for cell in self.cells:
            if not isinstance(cell, Point):
                entries.append(cell)
            elif cell.event is not None:
                entries.append(Signal(cell.event))
        return tuple(entries)
