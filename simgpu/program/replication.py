"""A program for one GPU made into one for several that train together.

The policy that wrote the program knows of one GPU and its share of the batch. Every GPU runs the same program, with
kernels and blocks of its own, and nothing makes them run in step but the exchange and the end of the iteration.
"""

from __future__ import annotations

from dataclasses import replace

from simgpu.errors import ProgramError
from simgpu.graph.replicate import Exchange, Replicas, Replicate, replicas
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import NodeSpec
from simgpu.program.exchange import ACCUMULATION, Additions, gather, refuse_moving
from simgpu.program.exchange_host import on_host
from simgpu.program.instructions import (
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Holding,
    Instruction,
    Launch,
    Program,
    Provide,
    Release,
    Segment,
    Signal,
    Space,
)
from simgpu.program.predicted import Place, Predicted
from simgpu.program.rounds import events_of, last_apart
from simgpu.timeline.model import Timeline
from simgpu.timeline.streams import StreamId


def replicated(program: Program, graph: TaskGraph, node: NodeSpec, how: Replicate, trial: Timeline) -> Program:
    """The program of all GPUs.

    program: of one GPU, on its share of the batch. graph: the one it was planned for, without its transforms, which
    tells what is exchanged (`simgpu.graph.updates.exchanging`).
    trial: a run of it on one GPU, whose times decide where copies of the exchange stand. With the exchange `host`, the
    weights and the optimizer's state have their home in host memory, and GPUs hold no state.

    Raises `InputError` for a program that moves weights or their gradients itself or lets go of a gradient before the
    end, and as `replicas` does.

    >>> from simgpu.graph.updates import exchanging
    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.machine.run import run_program
    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
    >>> weight = Block("w", 100, BlockKind.WEIGHT, persistent=True)
    >>> backward = Kernel("B", "op", Phase.BACKWARD, 10, ("w",), ("w.grad",))
    >>> info = TraceInfo("one layer", 1, "gpu", "float32", Origin.MODELLED, "by hand")
    >>> blocks = (weight, Block("w.grad", 100, BlockKind.WEIGHT_GRADIENT))
    >>> graph = exchanging(TaskGraph.of(Trace(info, (backward,), blocks)))
    >>> node = NodeSpec("two", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**9, 10**9), gpus=2)
    >>> one = lower(graph, Placement())
    >>> trial = run_program(one, graph, node, budget=None).timeline
    >>> two = replicated(one, graph, node, Replicate(2, Exchange.HOST, 10**9), trial)
    >>> ends = run_program(two, graph, node, budget=None).timeline.iteration_ends_ns
    >>> ends[2] - ends[1]  # backward 10, gradient out 100, four times 100 bytes on the host, weight in 100
    610
    """
    one = transformed(graph, program.transforms)
    how = replace(how, by_host=_made_by_host(program))
    parts = replicas(one, how)
    refuse_moving(program, parts)
    given, apart = program, None
    if how.exchange is Exchange.HOST:
        apart = _segment_of(program, parts.end - 1)
        program = last_apart(program, apart)
        apart = apart if len(program.segments) > len(given.segments) else None
    if program.segments[-1].repeat > 1:
        program = replace(program, segments=(*program.segments, Segment({})))
    more = Additions(program, parts, first_event=how.gpus * events_of(program))
    times = Predicted(given, trial, apart)
    if how.exchange is Exchange.HOST:
        on_host(more, node, times)
    else:
        gather(more, times)
    return _Writer(program, parts, more, how).program_of_all()


def _made_by_host(program: Program) -> tuple[int, ...]:
    """Encoded forms that host streams make or undo."""
    forms = set()
    for segment in program.segments:
        for code in segment.streams.values():
            for instruction in code:
                if isinstance(instruction, Encode | Decode) and instruction.space is Space.HOST:
                    forms.add(instruction.into if isinstance(instruction, Encode) else instruction.source)
    return tuple(sorted(forms))


def _segment_of(program: Program, kernel: int) -> int:
    """The segment that launches a kernel."""
    for index, segment in enumerate(program.segments):
        if any(Launch(kernel) in code for code in segment.streams.values()):
            return index
    raise ProgramError(f"kernel {kernel} is never launched")


class _Writer:
    def __init__(self, program: Program, parts: Replicas, more: Additions, how: Replicate) -> None:
        self.program = program
        self.parts = parts
        self.more = more
        self.how = how
        self.events = events_of(program)

    def program_of_all(self) -> Program:
        """All segments, with the streams of every GPU."""
        segments = [self._segment(index, segment) for index, segment in enumerate(self.program.segments)]
        elsewhere = [Holding(gpu, self._mapped(self.program.resident, gpu)) for gpu in self.more.gpus[1:]]
        if self.how.exchange is Exchange.HOST:
            updates = self.parts.updates
            home = tuple(b for update in updates for b in (update.weight, *update.state))
            elsewhere.append(Holding(None, home))
        return replace(
            self.program,
            segments=tuple(segments),
            resident=self._mapped(self.program.resident, 0),
            transforms=(*self.program.transforms, self.how),
            elsewhere=tuple(elsewhere),
        )

    def _segment(self, index: int, segment: Segment) -> Segment:
        streams: dict[StreamId, tuple[Instruction, ...]] = {}
        used = {*segment.streams, *(place.stream for place in self.more.inserted if place.segment == index)}
        for stream in sorted(used, key=lambda stream: stream.rank):
            for gpu in self.more.gpus:
                code = tuple(self._code(index, stream, segment.streams.get(stream, ()), gpu))
                if code or stream in segment.streams:
                    streams[stream._replace(gpu=gpu)] = code
        if index in self.more.host:
            streams[ACCUMULATION] = tuple(self.more.host[index])
        ordered = {stream: streams[stream] for stream in sorted(streams, key=lambda stream: stream.rank)}
        return Segment(ordered, segment.repeat)

    def _code(self, index: int, stream: StreamId, code: tuple[Instruction, ...], gpu: int) -> list[Instruction]:
        """One stream as a GPU runs it."""
        new: list[Instruction] = []
        for position in range(len(code) + 1):
            for add in self.more.inserted.get(Place(index, stream, position), ()):
                new += add(gpu)
            if position < len(code):
                new += self._instruction(code[position], gpu)
        return new

    def _instruction(self, instruction: Instruction, gpu: int) -> list[Instruction]:
        """An instruction in the numbers of a GPU; nothing where the GPU does not have what it is about."""
        match instruction:
            case Launch(k, recompute, makes):
                kernel = self.parts.kernels[gpu][k]
                return [] if kernel is None else [Launch(kernel, recompute, self._mapped(makes, gpu))]
            case Signal(event):
                return [Signal(gpu * self.events + event)]
            case Await(event, lag):
                return [Await(gpu * self.events + event, lag)]
            case Acquire(blocks, space, offsets):
                there = [position for position, b in enumerate(blocks) if self.parts.blocks[gpu][b] is not None]
                places = None if offsets is None else tuple(offsets[position] for position in there)
                return [Acquire(self._mapped(blocks, gpu), space, places)] if there else []
            case Release(blocks, space):
                mine = self._mapped(blocks, gpu)
                return [Release(mine, space)] if mine else []
            case Provide(blocks, space):
                mine = self._mapped(blocks, gpu)
                return [Provide(mine, space)] if mine else []
            case CopyOut(b) | CopyIn(b):
                block = self.parts.blocks[gpu][b]
                return [] if block is None else [type(instruction)(block)]
            case Encode(b, form, space) | Decode(b, form, space):
                pair = self._mapped((b, form), gpu)
                return [type(instruction)(*pair, space)] if len(pair) == 2 else []

    def _mapped(self, blocks: tuple[int, ...], gpu: int) -> tuple[int, ...]:
        here = self.parts.blocks[gpu]
        return tuple(new for b in blocks if (new := here[b]) is not None)
