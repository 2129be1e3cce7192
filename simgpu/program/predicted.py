"""When a trial of a program did what: the times that decide where something is put between its instructions."""

from __future__ import annotations

from typing import NamedTuple

from simgpu.program.instructions import Acquire, Await, CopyIn, CopyOut, Decode, Encode, Launch, Program, Provide
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import StreamId

_WORK = (Launch, CopyOut, CopyIn, Encode, Decode)
_BEFORE_WORK = (Await, Acquire, Provide)


class Place(NamedTuple):
    """Before an instruction of a stream's part of a segment, or at its end."""

    segment: int
    stream: StreamId
    position: int


class Predicted:
    """Times of the last repetition of every segment in the last iteration of a trial.

    timeline: of `program`. apart: the segment whose last repetition is a segment of its own in the program that is
    asked about (`simgpu.program.rounds`), None where both are the same.
    """

    def __init__(self, program: Program, timeline: Timeline, apart: int | None) -> None:
        self.program = program
        self.timeline = timeline
        self.apart = apart
        self.times: dict[StreamId, list[tuple[int, int]]] = {}

    def end(self, place: Place) -> int:
        """When the work at a place ended, ns."""
        code = self._code(place.segment, place.stream)
        number = sum(isinstance(instruction, _WORK) for instruction in code[: place.position])
        return self._works(place.segment, place.stream)[number][1]

    def place(self, segment: int, stream: StreamId, time: int) -> Place:
        """Where a stream is at a time: before what it does for its first work that begins then or later."""
        code, number = self._code(segment, stream), 0
        works = self._works(segment, stream)
        for position, instruction in enumerate(code):
            if isinstance(instruction, _WORK):
                if works[number][0] >= time:
                    while position and isinstance(code[position - 1], _BEFORE_WORK):
                        position -= 1
                    return Place(segment, stream, position)
                number += 1
        return Place(segment, stream, len(code))

    def _original(self, segment: int) -> int:
        return segment - 1 if self.apart is not None and segment > self.apart else segment

    def _code(self, segment: int, stream: StreamId) -> tuple[object, ...]:
        segments = self.program.segments
        index = self._original(segment)
        # A segment that only the exchange uses stands behind those of the program.
        return segments[index].streams.get(stream, ()) if index < len(segments) else ()

    def _works(self, segment: int, stream: StreamId) -> list[tuple[int, int]]:
        """Start and end of the works of a stream in the last repetition of a segment."""
        counts = [
            sum(isinstance(instruction, _WORK) for instruction in each.streams.get(stream, ()))
            for each in self.program.segments
        ]
        index = self._original(segment)
        if index >= len(counts):
            return []
        after = sum(
            count * each.repeat
            for count, each in zip(counts[index + 1 :], self.program.segments[index + 1 :], strict=True)
        )
        times = self._times(stream)
        stop = len(times) - after
        return times[stop - counts[index] : stop]

    def _times(self, stream: StreamId) -> list[tuple[int, int]]:
        """Start and end of all works of a stream in the last iteration, in order."""
        if stream not in self.times:
            timeline, name = self.timeline, str(stream)
            number = timeline.streams.index(name) if name in timeline.streams else -1
            last = len(timeline.iteration_ends_ns) - 1
            mine = (timeline.stream == number) & (timeline.kind < SpanKind.STALL_EVENT) & (timeline.iteration == last)
            pairs = zip(timeline.start_ns[mine].tolist(), timeline.end_ns[mine].tolist(), strict=True)
            self.times[stream] = list(pairs)
        return self.times[stream]
