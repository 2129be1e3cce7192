"""The data-parallel program of several GPUs, derived from the program of one, and the exchange `host`.

The exchange `host` (moDNN, section 6.2, figure 8) overlaps with the last sub-batch. When the last sub-batch has
computed a gradient, the program's own copy-out stream offloads it; when those of all GPUs are on the host, its cores
add them and update the weight; the copy-in stream fetches the new weight after the GPU's last use of the old one. GPUs
wait for each other only at the iteration's end.

Copy streams run in order, so the position of a copy decides what it delays. A gradient is inserted before the first
copy that began, in a trial run on one GPU, when the gradient was computed or later. A weight is inserted before the
first copy that began when the host was expected to have updated it: gradients are offloaded one after the other, each
at a GPU's fair share of its link and switch, and the host handles them in that order. Ordering by these times also
prevents deadlocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from simgpu.errors import ProgramError
from simgpu.graph.replicate import Exchange, Replicas, Replicate, replicas
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.transfer import copy_ns
from simgpu.program.exchange import ACCUMULATION, Additions, Predicted, check_not_moved, gather
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    InitialContents,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.text import Place
from simgpu.timeline.model import Timeline
from simgpu.timeline.streams import StreamId


def replicated(program: Program, graph: TaskGraph, node: NodeSpec, how: Replicate, trial: Timeline) -> Program:
    """The program of all GPUs.

    program: of one GPU, on its share of the batch. graph: the one it was planned for, without its transforms; it names
    the exchanged blocks (`simgpu.graph.updates.exchanging`).
    trial: a run of the program on one GPU, whose times decide the positions of the exchange's copies. With the exchange
    `host`, weights and optimizer state are in host memory, and GPUs hold no optimizer state. With `none`, any program
    is replicated as it is, and GPUs wait for each other at the end of an iteration.

    Raises `InputError` for a program that moves weights or their gradients itself or releases a gradient before the
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
    how = replace(how, by_host=_encoded_by_host(program))
    parts = replicas(one, how)
    if how.exchange is Exchange.NONE:
        if program.segments[-1].repeat > 1:
            program = replace(program, segments=(*program.segments, Segment({})))
        more = Additions(program, parts, first_event=how.gpus * events_of(program))
        more.finish(lambda gpu: [])
        return _Writer(program, parts, more, how).program_of_all()
    check_not_moved(program, parts)
    original, split_segment = program, None
    if how.exchange is Exchange.HOST:
        split_segment = _segment_of(program, parts.end - 1)
        program = with_last_repetition_split(program, split_segment)
        split_segment = split_segment if len(program.segments) > len(original.segments) else None
    if program.segments[-1].repeat > 1:
        program = replace(program, segments=(*program.segments, Segment({})))
    more = Additions(program, parts, first_event=how.gpus * events_of(program))
    times = Predicted(original, trial, split_segment)
    if how.exchange is Exchange.HOST:
        on_host(more, node, times)
    else:
        gather(more, times)
    return _Writer(program, parts, more, how).program_of_all()


def _encoded_by_host(program: Program) -> tuple[int, ...]:
    """Encoded forms that host streams encode or decode."""
    forms = set()
    for segment in program.segments:
        for code in segment.streams.values():
            for instruction in code:
                if isinstance(instruction, Encode | Decode) and instruction.memory == HOST:
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
        others = [InitialContents(DEVICE, self._mapped(self.program.resident, gpu), gpu) for gpu in self.more.gpus[1:]]
        # Only without an exchange may a program have contents in other memories.
        others += [
            InitialContents(each.memory, self._mapped(each.blocks, gpu), gpu if each.memory == DEVICE else 0)
            for each in self.program.other_contents
            for gpu in self.more.gpus
        ]
        if self.how.exchange is Exchange.HOST:
            updates = self.parts.updates
            home = tuple(b for update in updates for b in (update.weight, *update.state))
            others.append(InitialContents(HOST, home))
        return replace(
            self.program,
            segments=tuple(segments),
            resident=self._mapped(self.program.resident, 0),
            transforms=(*self.program.transforms, self.how),
            other_contents=tuple(others),
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

    def _code(self, index: int, stream: StreamId, code: Sequence[Instruction], gpu: int) -> list[Instruction]:
        """One stream as a GPU runs it."""
        new: list[Instruction] = []
        for position in range(len(code) + 1):
            for add in self.more.inserted.get(Place(index, stream, position), ()):
                new += add(gpu)
            if position < len(code):
                new += self._instruction(code[position], gpu)
        return new

    def _instruction(self, instruction: Instruction, gpu: int) -> list[Instruction]:
        """An instruction with a GPU's own numbers; empty where the GPU does not have its blocks."""
        match instruction:
            case Launch(k, recompute, makes):
                kernel = self.parts.kernels[gpu][k]
                return [] if kernel is None else [Launch(kernel, recompute, self._mapped(makes, gpu))]
            case Signal(event):
                return [Signal(gpu * self.events + event)]
            case Await(event, lag):
                return [Await(gpu * self.events + event, lag)]
            case Acquire(blocks, memory, offsets):
                there = [position for position, b in enumerate(blocks) if self.parts.blocks[gpu][b] is not None]
                places = None if offsets is None else tuple(offsets[position] for position in there)
                return [Acquire(self._mapped(blocks, gpu), memory, places)] if there else []
            case Release(blocks, memory):
                mine = self._mapped(blocks, gpu)
                return [Release(mine, memory)] if mine else []
            case Initialize(blocks, memory):
                mine = self._mapped(blocks, gpu)
                return [Initialize(mine, memory)] if mine else []
            case Copy(b, src, dst, into):
                copied = self._mapped((b,) if into is None else (b, into), gpu)
                complete = len(copied) == 1 + (into is not None)
                return [Copy(copied[0], src, dst, *copied[1:])] if complete else []
            case Encode(b, form, memory) | Decode(b, form, memory):
                pair = self._mapped((b, form), gpu)
                return [type(instruction)(*pair, memory)] if len(pair) == 2 else []

    def _mapped(self, blocks: tuple[int, ...], gpu: int) -> tuple[int, ...]:
        here = self.parts.blocks[gpu]
        return tuple(new for b in blocks if (new := here[b]) is not None)


class _Use(NamedTuple):
    """computed: where a weight's gradient is computed; last: the last uses of the weight after that."""

    computed: Place
    last: tuple[Place, ...]


@dataclass(frozen=True)
class _Expected:
    """Times (ns) at which a gradient is computed and at which its weight can be fetched."""

    computed: int
    back: int


def on_host(more: Additions, node: NodeSpec, trial: Predicted) -> None:
    """Add moDNN's exchange. The last repetition of the last sub-batch must be a segment of its own."""
    uses = [_use(more, u) for u in range(len(more.parts.updates))]
    expected = _expected(more, uses, node, trial)
    for u, use in enumerate(uses):
        more.after(use.computed, more.signals("computed", u))
        for place in use.last:
            more.after(place, more.signals("free", u, place.stream))
    since = more.since
    gradients = [(expected[u].computed, 0, u) for u in range(len(uses))]
    weights = [(expected[u].back, 1, u) for u in range(len(uses))]
    reached: dict[StreamId, Place] = {}
    for time, fetches, u in sorted([*gradients, *weights]):
        stream = more.back if fetches else more.out
        place = more.behind(trial.place(since, stream, time), [uses[u].computed, *(uses[u].last if fetches else ())])
        place = reached[stream] = max(place, reached.get(stream, place))
        more.inserted[place].append(partial(_receive, more, u, uses[u]) if fetches else partial(_send, more, u))
    for *_, u in sorted(gradients):
        more.host[since] += _accumulate(more, u)
    *_, latest = max(weights)
    more.finish(lambda gpu: [Await(more.event("back", latest, gpu))])


def _use(more: Additions, u: int) -> _Use:
    graph, parts, update = more.parts.graph, more.parts, more.parts.updates[u]
    before = [(k, number) for k, number in enumerate(parts.kernels[0][: parts.end]) if number is not None]
    writers = [k for k, number in before if update.gradient in graph.writes[number]]
    readers = [k for k, number in before if update.weight in graph.reads[number]]
    computed = max(more.launches([writers[-1]]).values())
    last = more.launches(readers).values()
    return _Use(computed, tuple(sorted(p for p in last if p.stream != computed.stream or p > computed)))


def _expected(more: Additions, uses: list[_Use], node: NodeSpec, trial: Predicted) -> list[_Expected]:
    """The times at which gradients are computed and weights can be fetched, by the trial and the machine's rates."""
    graph, parts = more.parts.graph, more.parts
    gpus = len(more.gpus)
    behind = [(s, sum(gpu < gpus for gpu in s.gpus)) for s in node.switches]
    shares = [s.d2h_bandwidth // count for s, count in behind if count]
    rate = max(min([node.link.d2h_bandwidth, *shares]), 1)
    computed = [trial.end(use.computed) for use in uses]
    back = [0] * len(uses)
    arrived = updated = 0
    for u in sorted(range(len(uses)), key=lambda u: (computed[u], u)):
        size = graph.copy_sizes[parts.updates[u].gradient]
        arrived = max(arrived, computed[u]) + copy_ns(size, rate, node.link.latency_ns)
        updated = max(updated, arrived) + graph.durations[parts.updating[u]]
        back[u] = max([updated, *(trial.end(place) for place in uses[u].last)])
    return [_Expected(*times) for times in zip(computed, back, strict=True)]


def _send(more: Additions, u: int, gpu: int) -> list[Instruction]:
    block = more.gradient(u, gpu)
    return [
        Await(more.event("computed", u, gpu)),
        Acquire((block,), HOST),
        Copy(block, DEVICE, HOST),
        Signal(more.event("sent", u, gpu)),
    ]


def _accumulate(more: Additions, u: int) -> list[Instruction]:
    gradients = tuple(more.gradient(u, gpu) for gpu in more.gpus)
    return [
        *(Await(more.event("sent", u, gpu)) for gpu in more.gpus),
        Launch(more.parts.updating[u]),
        Release(gradients, HOST),
        Signal(more.event("updated", u)),
    ]


def _receive(more: Additions, u: int, use: _Use, gpu: int) -> list[Instruction]:
    return [
        Await(more.event("updated", u)),
        *(Await(more.event("free", u, place.stream, gpu)) for place in use.last),
        Copy(more.parts.updates[u].weight, HOST, DEVICE),
        Signal(more.event("back", u, gpu)),
    ]


def with_last_repetition_split(program: Program, index: int) -> Program:
    """The same program with the last repetition of segment `index` as a separate segment after the others.

    Events that it signals get new numbers there. Waits for earlier repetitions wait for the segment that signals the
    event now; a wait for more than one repetition earlier may become a wait for a later one.

    >>> from simgpu.program.instructions import COMPUTE, D2H
    >>> code = {COMPUTE: (Await(1, lag=1), Signal(0)), D2H: (Await(0), Signal(1))}
    >>> first, last = with_last_repetition_split(Program((Segment(code, repeat=3),)), 0).segments
    >>> first.repeat, first.streams[COMPUTE]
    (2, (Await(event=1, lag=1), Await(event=3, lag=1), Signal(event=0)))
    >>> last.streams[COMPUTE], last.streams[D2H]
    ((Await(event=1, lag=0), Signal(event=2)), (Await(event=2, lag=0), Signal(event=3)))
    """
    segment = program.segments[index]
    if segment.repeat == 1:
        return program
    split = _Split(program, index)
    first = Segment(split.streams(segment, split.in_first), segment.repeat - 1)
    last = Segment(split.streams(segment, split.in_last))
    others = [
        each if number == index else Segment(split.streams(each, split.in_other_segments), each.repeat)
        for number, each in enumerate(program.segments)
    ]
    return replace(program, segments=(*others[:index], first, last, *others[index + 1 :]))


class _Split:
    """new[e]: the number of event e of the segment in its last repetition. repeat: of the original segment."""

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
            # The repetition before the first one is the last one of the previous iteration.
            return [instruction, Await(self.new[instruction.event], 1)]
        return [Await(instruction.event, instruction.lag - 1)]

    def in_last(self, instruction: Instruction) -> list[Instruction]:
        """An instruction of the last repetition."""
        if isinstance(instruction, Signal):
            return [Signal(self.new[instruction.event])]
        return self.in_other_segments(instruction)

    def in_other_segments(self, instruction: Instruction) -> list[Instruction]:
        """An instruction of another segment, whose waits count repetitions before the segment's last one."""
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
