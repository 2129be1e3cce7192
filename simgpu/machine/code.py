"""Programs made ready to run: per stream a list of small tuples with durations, bytes and memory requests filled in.

Lives here: the translation. Nothing here runs; what the codes mean over time is `simgpu.machine.executor`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.memory import Memory
from simgpu.program.instructions import (
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Instruction,
    Launch,
    Program,
    Release,
    Signal,
    Space,
    StreamId,
)

# The codes in the order in which they happen at one instant. Awaits and ends come first because they have no effect
# on anybody else: a stream only steps past them.
AWAIT, END, RELEASE, SIGNAL, ACQUIRE, LAUNCH, COPY = range(7)

#: Directions of a copy.
OUT, IN = range(2)

#: (AWAIT, event, offset, repeat): wait until the event has happened often enough: for an event of the
#: same segment (repeat 0) as often as this segment has begun, for one of another segment as often as that one repeats
#: up to and in this iteration; the offset takes lags off. (END,).
#: (RELEASE, memory, request, number), (ACQUIRE, memory, request, number): the number is the one in the memory's log.
#: (SIGNAL, event), (LAUNCH, duration), (COPY, direction, bytes).
Op = tuple[Any, ...]


@dataclass(slots=True)
class StreamCode:
    """One stream's part of one segment: ops, and for each op the position of the instruction it came from."""

    ops: list[Op]
    sources: list[int]
    repeat: int


@dataclass(slots=True)
class MachineCode:
    """A whole program, its events numbered from 0.

    segments[stream][segment]: what to do. signaller[event]: the stream that signals it; signal_name[event]: the
    kernel or block whose work it follows.
    """

    streams: tuple[StreamId, ...]
    segments: list[list[StreamCode]]
    signaller: list[int] = field(default_factory=list)
    signal_name: list[str] = field(default_factory=list)


def translate(program: Program, graph: TaskGraph, device: Memory, host: Memory) -> MachineCode:
    """The machine code of a program; `graph` has the program's algorithms applied."""
    streams = program.streams
    code = MachineCode(streams, [[] for _ in streams])
    events = _number_events(program, graph, code)
    repeats = [segment.repeat for segment in program.segments]
    translator = _Translator(graph, device, host, events, repeats)
    for index, segment in enumerate(program.segments):
        for position, stream in enumerate(streams):
            instructions = segment.streams.get(stream, ())
            code.segments[position].append(translator.stream_code(instructions, index))
    return code


def _number_events(program: Program, graph: TaskGraph, code: MachineCode) -> dict[int, tuple[int, int]]:
    """For each event of the program its number here and the segment that signals it."""
    events: dict[int, tuple[int, int]] = {}
    for index, segment in enumerate(program.segments):
        for position, stream in enumerate(code.streams):
            work: Instruction | None = None
            for instruction in segment.streams.get(stream, ()):
                if type(instruction) is Signal:
                    events[instruction.event] = (len(events), index)
                    code.signaller.append(position)
                    code.signal_name.append(name_of(work, graph) if work else "")
                elif type(instruction) in (Launch, CopyOut, CopyIn):
                    work = instruction
    return events


def name_of(instruction: Instruction, graph: TaskGraph) -> str:
    """Id of the kernel an instruction runs or the block it copies, else an empty text."""
    if isinstance(instruction, Launch):
        return graph.kernels[instruction.kernel].id
    if isinstance(instruction, CopyOut | CopyIn):
        return graph.blocks[instruction.block].id
    return ""


class _Translator:
    def __init__(
        self,
        graph: TaskGraph,
        device: Memory,
        host: Memory,
        events: dict[int, tuple[int, int]],
        repeats: Sequence[int],
    ) -> None:
        self.graph = graph
        self.device = device
        self.host = host
        self.events = events
        self.repeats = repeats

    def stream_code(self, instructions: tuple[Instruction, ...], index: int) -> StreamCode:
        ops: list[Op] = []
        sources: list[int] = []
        durations, sizes = self.graph.durations, self.graph.sizes
        for position, instruction in enumerate(instructions):
            kind = type(instruction)
            if kind is Launch:
                ops.append((LAUNCH, durations[instruction.kernel]))  # type: ignore[union-attr]
            elif kind is Acquire or kind is Release:
                ops.append(self._request(instruction))  # type: ignore[arg-type]
            elif kind is Signal:
                ops.append((SIGNAL, self.events[instruction.event][0]))  # type: ignore[union-attr]
            elif kind is Await:
                ops.append(self._await(instruction, index))  # type: ignore[arg-type]
            elif kind is CopyOut:
                ops.append((COPY, OUT, sizes[instruction.block]))  # type: ignore[union-attr]
            elif kind is CopyIn:
                ops.append((COPY, IN, sizes[instruction.block]))  # type: ignore[union-attr]
            else:
                # Providing a value takes no time and no memory, so the machine has nothing to do.
                continue
            sources.append(position)
        ops.append((END,))
        sources.append(len(instructions))
        return StreamCode(ops, sources, self.repeats[index])

    def _request(self, instruction: Acquire | Release) -> Op:
        memory = self.device if instruction.space is Space.DEVICE else self.host
        blocks, sizes = instruction.blocks, self.graph.sizes
        wanted = [sizes[b] for b in blocks]
        if isinstance(instruction, Release):
            request, number = memory.request(blocks, wanted)
            return (RELEASE, memory, request, number + 1)
        return (ACQUIRE, memory, *memory.request(blocks, wanted, instruction.offsets))

    def _await(self, instruction: Await, index: int) -> Op:
        event, where = self.events[instruction.event]
        if where == index:
            return (AWAIT, event, 1 - instruction.lag, 0)
        return (AWAIT, event, -instruction.lag, self.repeats[where])
