"""Which instruction of its program each span of a timeline carried out, and what had it issued.

A stream executes its instructions in order, so the n-th span of work on a stream is that of its n-th instruction that
takes time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simgpu.graph.replicate import Replicate
from simgpu.program.instructions import (
    Await,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Instruction,
    Launch,
    Program,
    Signal,
)
from simgpu.simulation.result import Result
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import BlockKind

_TAKES_TIME = (Launch, CopyOut, CopyIn, Encode, Decode)
_EXCHANGED = (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT)


class Place(NamedTuple):
    """Where an instruction stands in a program."""

    segment: int
    stream: StreamId
    at: int


class Places:
    """The instructions behind the spans of a run."""

    def __init__(self, result: Result) -> None:
        self.program: Program = result.program
        self.timeline: Timeline = result.timeline
        self.graph = result.graph
        self._signals = {
            instruction.event: Place(index, stream, position)
            for index, segment in enumerate(self.program.segments)
            for stream, code in segment.streams.items()
            for position, instruction in enumerate(code)
            if isinstance(instruction, Signal)
        }

    @cached_property
    def _place_of(self) -> dict[int, Place]:
        """By row of the timeline. Streams that no program has, on which pages come and go, have no places."""
        found: dict[int, Place] = {}
        work = self.timeline.kind < SpanKind.STALL_EVENT
        iterations = len(self.timeline.iteration_ends_ns)
        for number, name in enumerate(self.timeline.streams):
            rows = np.flatnonzero(work & (self.timeline.stream == number)).tolist()
            places = list(self._works(StreamId.of(name))) * iterations
            if len(places) == len(rows):
                found.update(zip(rows, places, strict=True))
        return found

    def _works(self, stream: StreamId) -> Iterable[Place]:
        """One iteration of a stream: its instructions that take time, in order."""
        for index, segment in enumerate(self.program.segments):
            code = segment.streams.get(stream, ())
            timed = [Place(index, stream, at) for at, each in enumerate(code) if isinstance(each, _TAKES_TIME)]
            for _ in range(segment.repeat):
                yield from timed

    def code(self, place: Place) -> tuple[Instruction, ...]:
        """All that the stream of a place does in its segment."""
        return self.program.segments[place.segment].streams[place.stream]

    def instruction(self, row: int) -> Instruction | None:
        """What a span of work carried out; None for bytes that no instruction moves."""
        place = self._place_of.get(row)
        return None if place is None else self.code(place)[place.at]

    def beside(self, row: int) -> int | None:
        """The kernel beside which a copy was issued: the first that a compute stream launches from then on.

        None where nothing on a compute stream has it issued, or nothing follows. A copy that awaits nothing is issued
        with the one before it on its stream, and one of what the host decodes first with that.
        """
        place = self._place_of.get(row)
        return None if place is None else self._issuing(place)

    def _issuing(self, place: Place) -> int | None:
        awaited: list[int] = []
        for instruction in reversed(self.code(place)[: place.at]):
            if isinstance(instruction, Await):
                awaited.append(instruction.event)
            elif awaited and isinstance(instruction, _TAKES_TIME):
                break
        kernels = map(self._launched_from, awaited)
        return next((kernel for kernel in kernels if kernel is not None), None)

    def exchanged(self, row: int) -> bool:
        """Whether a copy is one by which several GPUs exchange gradients and weights, which no policy moves there."""
        number = int(self.timeline.name[row]) - len(self.graph.kernels)
        return self._together and self.graph.blocks[number].kind in _EXCHANGED

    @cached_property
    def _together(self) -> bool:
        return any(isinstance(transform, Replicate) for transform in self.program.transforms)

    def _launched_from(self, event: int) -> int | None:
        signal = self._signals.get(event)
        if signal is None:
            return None
        code = self.code(signal)
        if signal.stream.role == "compute":
            return _first_launch(code[signal.at :])
        at = next((at for at in reversed(range(signal.at)) if isinstance(code[at], _TAKES_TIME)), None)
        if at is not None and isinstance(code[at], Decode):
            return self._issuing(signal._replace(at=at))
        return None

    def next_launch(self, row: int) -> int | None:
        """The kernel that a compute stream runs for the first time after a span of work; None where none follows."""
        place = self._place_of.get(row)
        if place is None:
            return None
        after = (each for each in self.code(place)[place.at + 1 :] if not (isinstance(each, Launch) and each.recompute))
        return _first_launch(after)

    @cached_property
    def _work_on(self) -> dict[int, tuple[list[int], list[int]]]:
        """By stream: the rows of its work, and when each begins."""
        work = self.timeline.kind < SpanKind.STALL_EVENT
        rows = {n: np.flatnonzero(work & (self.timeline.stream == n)) for n in range(len(self.timeline.streams))}
        return {n: (mine.tolist(), self.timeline.start_ns[mine].tolist()) for n, mine in rows.items()}

    def work_after(self, wait: int) -> int | None:
        """The row of what a stream does once a wait of its has ended; None where nothing follows."""
        rows, starts = self._work_on[int(self.timeline.stream[wait])]
        at = bisect_left(starts, int(self.timeline.end_ns[wait]))
        return rows[at] if at < len(rows) else None


def _first_launch(code: Iterable[Instruction]) -> int | None:
    return next((each.kernel for each in code if isinstance(each, Launch)), None)
