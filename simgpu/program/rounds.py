"""The last repetition of a segment as a segment of its own, so that something else can happen in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simgpu.program.instructions import Await, Instruction, Program, Segment, Signal
from simgpu.timeline.streams import StreamId


def last_apart(program: Program, index: int) -> Program:
    """The same program with the last repetition of segment `index` as a segment of its own after the others.

    Events that it signals get new numbers there. What waits for an event some repetitions earlier waits for the one
    that has it now; a wait for more than one repetition earlier may become a wait for a later one.

    >>> from simgpu.program.instructions import COMPUTE, D2H
    >>> code = {COMPUTE: (Await(1, lag=1), Signal(0)), D2H: (Await(0), Signal(1))}
    >>> first, last = last_apart(Program((Segment(code, repeat=3),)), 0).segments
    >>> first.repeat, first.streams[COMPUTE]
    (2, (Await(event=1, lag=1), Await(event=3, lag=1), Signal(event=0)))
    >>> last.streams[COMPUTE], last.streams[D2H]
    ((Await(event=1, lag=0), Signal(event=2)), (Await(event=2, lag=0), Signal(event=3)))
    """
    segment = program.segments[index]
    if segment.repeat == 1:
        return program
    apart = _Apart(program, index)
    first = Segment(apart.streams(segment, apart.in_first), segment.repeat - 1)
    last = Segment(apart.streams(segment, apart.in_last))
    others = [
        each if number == index else Segment(apart.streams(each, apart.elsewhere), each.repeat)
        for number, each in enumerate(program.segments)
    ]
    return replace(program, segments=(*others[:index], first, last, *others[index + 1 :]))


class _Apart:
    """new[e]: the number that event e of the segment has in the last repetition. repeat: of the whole segment."""

    def __init__(self, program: Program, index: int) -> None:
        self.repeat = program.segments[index].repeat
        count = events_of(program)
        signalled = sorted(
            instruction.event
            for code in program.segments[index].streams.values()
            for instruction in code
            if isinstance(instruction, Signal)
        )
        self.new = {event: count + number for number, event in enumerate(signalled)}

    def streams(
        self, segment: Segment, rewrite: Callable[[Instruction], list[Instruction]]
    ) -> dict[StreamId, tuple[Instruction, ...]]:
        """All streams of a segment, each instruction rewritten."""
        return {
            stream: tuple(new for instruction in code for new in rewrite(instruction))
            for stream, code in segment.streams.items()
        }

    def in_first(self, instruction: Instruction) -> list[Instruction]:
        """An instruction of the repetitions before the last one."""
        if not isinstance(instruction, Await) or instruction.event not in self.new or instruction.lag == 0:
            return [instruction]
        if instruction.lag == 1:
            # In the first repetition, the one before is the last of the iteration before.
            return [instruction, Await(self.new[instruction.event], 1)]
        return [Await(instruction.event, instruction.lag - 1)]

    def in_last(self, instruction: Instruction) -> list[Instruction]:
        """An instruction of the last repetition."""
        if isinstance(instruction, Signal):
            return [Signal(self.new[instruction.event])]
        return self.elsewhere(instruction)

    def elsewhere(self, instruction: Instruction) -> list[Instruction]:
        """An instruction that waits for so many repetitions before the segment's last one."""
        if not isinstance(instruction, Await) or instruction.event not in self.new:
            return [instruction]
        iterations, back = divmod(instruction.lag, self.repeat)
        if back == 0:
            return [Await(self.new[instruction.event], iterations)]
        return [Await(instruction.event, iterations * (self.repeat - 1) + back - 1)]


def events_of(program: Program) -> int:
    """One more than the largest number of an event."""
    events = (
        instruction.event
        for segment in program.segments
        for code in segment.streams.values()
        for instruction in code
        if isinstance(instruction, Signal | Await)
    )
    return 1 + max(events, default=-1)
