"""How far every stream must have come before a launch, by the events of a segment alone."""

from __future__ import annotations

from simgpu.program.instructions import Await, Launch, Segment, Signal
from simgpu.timeline.streams import StreamId


def needs_of(segment: Segment) -> dict[tuple[StreamId, int], dict[StreamId, int]]:
    """For each launch, by its stream and position, how many instructions of each stream come before it.

    Awaits of earlier repetitions and of other segments' events count as nothing.

    >>> from simgpu.program.instructions import COMPUTE, H2D, CopyIn
    >>> code = {COMPUTE: (Launch(0), Await(0), Launch(1)), H2D: (CopyIn(7), Signal(0), CopyIn(8))}
    >>> needs = needs_of(Segment(code))
    >>> needs[COMPUTE, 0][H2D], needs[COMPUTE, 2][H2D]
    (0, 2)
    """
    own = {i.event for code in segment.streams.values() for i in code if isinstance(i, Signal)}
    reached = {stream: dict.fromkeys(segment.streams, 0) for stream in segment.streams}
    signalled: dict[int, dict[StreamId, int]] = {}
    found: dict[tuple[StreamId, int], dict[StreamId, int]] = {}
    moving = True
    while moving:
        moving = False
        for stream, code in segment.streams.items():
            here = reached[stream]
            for position in range(here[stream], len(code)):
                instruction = code[position]
                if isinstance(instruction, Await) and instruction.lag == 0 and instruction.event in own:
                    if instruction.event not in signalled:
                        break
                    for other, count in signalled[instruction.event].items():
                        here[other] = max(here[other], count)
                elif isinstance(instruction, Launch):
                    found[stream, position] = dict(here)
                here[stream] = position + 1
                moving = True
                if isinstance(instruction, Signal):
                    signalled[instruction.event] = dict(here)
    return found
