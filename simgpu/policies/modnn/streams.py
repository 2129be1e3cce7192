"""The two streams of moDNN, Stream_C and Stream_D, with the times at which everything on them is predicted to happen.

A point is a place of a stream to which the other may refer, at once or any time later; it becomes a signal when the
other first waits for it. Since streams run in order, having heard of a point is having heard of all before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from simgpu.program.instructions import Await, Instruction, Signal


@dataclass(slots=True)
class Point:
    """A place in a stream. time: when the stream is there, nanoseconds; order: its position among the points."""

    time: int
    order: int
    event: int | None = None


@dataclass(frozen=True, slots=True)
class AcquireWorkspace:
    """Stands for taking the workspace of a kernel, whose block is known once all algorithms are chosen."""

    kernel: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReleaseWorkspace:
    """Stands for giving it back."""

    kernel: int


#: What a stream does, its points apart.
StreamEntry = Instruction | AcquireWorkspace | ReleaseWorkspace


@dataclass(slots=True)
class StreamClock:
    """A stream on its way. now: its clock; heard: the latest point of the other stream that it has waited for."""

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
        """Go on only when the other stream has reached that point.

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
        """The next instruction, which takes so many nanoseconds."""
        self.cells.append(instruction)
        self.now += duration

    def code(self) -> tuple[StreamEntry, ...]:
        """The cells; points that nobody waits for are left out, the others are signals."""
        entries: list[StreamEntry] = []
        for cell in self.cells:
            if not isinstance(cell, Point):
                entries.append(cell)
            elif cell.event is not None:
                entries.append(Signal(cell.event))
        return tuple(entries)
