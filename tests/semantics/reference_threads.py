"""The threads that launch work on the reference machine: each walks a list, and takes its time for every work on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from simgpu.program.instructions import WORK, Await, Instruction, Launch, Program, Segment
from simgpu.timeline.streams import StreamId


class Reached(Protocol):
    """How far a stream has got: the position in its instructions of all iterations."""

    stream: StreamId
    position: int


@dataclass(frozen=True)
class Item:
    """What a thread meets: work to launch, or something at which it waits until streams have passed a position."""

    launches: bool
    positions: dict[StreamId, int]


@dataclass
class Thread:
    """A GPU's thread. until: when the launch that it is at ends, None while it waits."""

    each_ns: int
    items: list[Item]
    at: int = 0
    until: int | None = None
    launched: dict[StreamId, set[int]] = field(default_factory=dict)

    def go_on(self, now: int, lines: Sequence[Reached]) -> None:
        """Pass what it waits for, and begin a launch."""
        while self.until is None and self.at < len(self.items):
            item = self.items[self.at]
            if item.launches:
                self.until = now + self.each_ns
            elif all(line.position >= item.positions.get(line.stream, 0) for line in lines):
                self.at += 1
            else:
                break

    def end(self, now: int) -> None:
        """End the launch that ends now."""
        if self.until == now:
            ((stream, position),) = self.items[self.at].positions.items()
            self.launched.setdefault(stream, set()).add(position)
            self.at, self.until = self.at + 1, None

    def allows(self, line: Reached) -> bool:
        """Whether it has launched the work at which a stream is."""
        return line.position in self.launched.get(line.stream, ())


def threads(program: Program, each_ns: int, iterations: int, *, blocking: bool) -> dict[int, Thread]:
    """The threads of all GPUs; none if launches take no time."""
    gpus = range(program.gpus) if each_ns else ()
    return {gpu: Thread(each_ns, list(_items(program, gpu, iterations, blocking))) for gpu in gpus}


def _items(program: Program, gpu: int, iterations: int, blocking: bool) -> Iterator[Item]:
    """All launches in their order, and after each iteration a wait for the streams."""
    streams = [each for each in program.streams if each.gpu == gpu and each.role == "compute"]
    passed = dict.fromkeys(streams, 0)
    for _ in range(iterations):
        for segment in program.segments:
            for _ in range(segment.repeat):
                for stream, index, instruction in _in_order(segment, streams, blocking):
                    waits = isinstance(instruction, Await)
                    yield Item(not waits, {stream: passed[stream] + index + waits})
                for stream in streams:
                    passed[stream] += len(segment.streams.get(stream, ()))
        yield Item(False, dict(passed))


def _in_order(
    segment: Segment, streams: Sequence[StreamId], blocking: bool
) -> Iterator[tuple[StreamId, int, Instruction]]:
    """What a thread meets in a repetition: always the stream whose next new kernel is the earliest."""
    wanted = (*WORK, Await) if blocking else WORK
    left = {stream: [pair for pair in enumerate(segment.streams.get(stream, ())) if isinstance(pair[1], wanted)]
            for stream in streams}  # fmt: skip
    while any(left.values()):
        stream = min((each for each in streams if left[each]), key=lambda each: _next_new(left[each]))
        yield (stream, *left[stream].pop(0))


def _next_new(code: Sequence[tuple[int, Instruction]]) -> float:
    new = (each.kernel for _, each in code if isinstance(each, Launch) and not each.recompute)
    return next(new, float("inf"))
