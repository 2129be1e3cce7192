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
    Provide,
    Release,
    Signal,
    Space,
    StreamId,
)
from simgpu.timeline.model import SpanKind

# The codes in the order in which they happen at one instant. Awaits and ends come first because they have no effect
# on anybody else: a stream only steps past them.
AWAIT, END, RELEASE, SIGNAL, ACQUIRE, LAUNCH, COPY = range(7)

#: (AWAIT, event, offset, repeat): wait until the event's count reaches the target, see `target_of`.
#: (RELEASE, memory, request), (SIGNAL, event), (ACQUIRE, memory, request), (LAUNCH, duration),
#: (COPY, direction, bytes), (END,).
Op = tuple[Any, ...]


@dataclass(slots=True)
class StreamCode:
    """One stream's part of one segment: ops, and for each op the position of the instruction it came from."""

    ops: list[Op]
    sources: list[int]
    repeat: int


@dataclass(slots=True)
class MachineCode:
    """A whole program: segments per stream, and which stream signals which event after which work."""

    streams: tuple[StreamId, ...]
    segments: list[list[StreamCode]]
    signaller: dict[int, int] = field(default_factory=dict)
    signal_name: dict[int, str] = field(default_factory=dict)


def translate(program: Program, graph: TaskGraph, device: Memory, host: Memory) -> MachineCode:
    """The machine code of a program; `graph` has the program's algorithms applied."""
    streams = program.streams
    code = MachineCode(streams, [[] for _ in streams])
    signalled_in = _find_signals(program, graph, code)
    translator = _Translator(graph, device, host, signalled_in, [segment.repeat for segment in program.segments])
    for index, segment in enumerate(program.segments):
        for position, stream in enumerate(streams):
            code.segments[position].append(
                translator.stream_code(segment.streams.get(stream, ()), index, segment.repeat)
            )
    return code


def _find_signals(program: Program, graph: TaskGraph, code: MachineCode) -> dict[int, int]:
    signalled_in = {}
    for index, segment in enumerate(program.segments):
        for position, stream in enumerate(code.streams):
            work = ""
            for instruction in segment.streams.get(stream, ()):
                work = name_of(instruction, graph) or work
                if type(instruction) is Signal:
                    signalled_in[instruction.event] = index
                    code.signaller[instruction.event] = position
                    code.signal_name[instruction.event] = work
    return signalled_in


def name_of(instruction: Instruction, graph: TaskGraph) -> str:
    """Id of the kernel an instruction runs or the block it copies, else an empty text."""
    if isinstance(instruction, Launch):
        return graph.kernels[instruction.kernel].id
    if isinstance(instruction, CopyOut | CopyIn):
        return graph.blocks[instruction.block].id
    return ""


def work_of(instruction: Instruction, graph: TaskGraph) -> tuple[SpanKind, str, int] | None:
    """Kind, name and bytes of the span an instruction makes, None for those that take no time."""
    if isinstance(instruction, Launch):
        kind = SpanKind.RECOMPUTE if instruction.recompute else SpanKind.COMPUTE
        return kind, graph.kernels[instruction.kernel].id, 0
    if isinstance(instruction, CopyOut | CopyIn):
        kind = SpanKind.COPY_OUT if isinstance(instruction, CopyOut) else SpanKind.COPY_IN
        return kind, graph.blocks[instruction.block].id, graph.sizes[instruction.block]
    return None


@dataclass(slots=True)
class _Translator:
    graph: TaskGraph
    device: Memory
    host: Memory
    signalled_in: dict[int, int]
    repeats: Sequence[int]

    def stream_code(self, instructions: tuple[Instruction, ...], index: int, repeat: int) -> StreamCode:
        ops: list[Op] = []
        sources: list[int] = []
        for position, instruction in enumerate(instructions):
            op = self._op(instruction, index)
            if op is not None:
                ops.append(op)
                sources.append(position)
        ops.append((END,))
        sources.append(len(instructions))
        return StreamCode(ops, sources, repeat)

    def _op(self, instruction: Instruction, index: int) -> Op | None:
        kind = type(instruction)
        if kind is Launch:
            return (LAUNCH, self.graph.durations[instruction.kernel])  # type: ignore[union-attr]
        if isinstance(instruction, Acquire):
            return (ACQUIRE, *self._request(instruction.space, instruction.blocks, instruction.offsets))
        if isinstance(instruction, Release):
            return (RELEASE, *self._request(instruction.space, instruction.blocks))
        if isinstance(instruction, Signal):
            return (SIGNAL, instruction.event)
        if isinstance(instruction, Await):
            return self._await(instruction, index)
        if isinstance(instruction, CopyOut | CopyIn):
            direction = 0 if isinstance(instruction, CopyOut) else 1
            return (COPY, direction, self.graph.sizes[instruction.block])
        if isinstance(instruction, Provide):
            return None
        raise TypeError(f"the machine does not know {instruction!r}")

    def _request(
        self, space: Space, blocks: tuple[int, ...], offsets: tuple[int, ...] | None = None
    ) -> tuple[Memory, Any]:
        memory = self.device if space is Space.DEVICE else self.host
        sizes = [self.graph.sizes[b] for b in blocks]
        return memory, memory.pool.prepare(blocks, sizes, offsets)

    def _await(self, instruction: Await, index: int) -> Op:
        where = self.signalled_in[instruction.event]
        if where == index:
            return (AWAIT, instruction.event, 1 - instruction.lag, 0)
        return (AWAIT, instruction.event, -instruction.lag, self.repeats[where])


def target_of(op: Op, number: int, iteration: int) -> int:
    """How often an awaited event must have happened.

    number: repetitions of the awaiting stream's segment so far over all iterations. An event of the same segment is
    awaited in the same repetition, one of another segment after all its repetitions of this iteration; the lag
    counts back from there.
    """
    _, _, offset, repeat = op
    return int((iteration + 1) * repeat + offset if repeat else number + offset)
