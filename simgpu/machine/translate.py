"""Translate a checked program into machine code: sizes, durations and DRAM bandwidth are filled in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import CdmaSpec, NodeSpec
from simgpu.machine.code import (
    ACQUIRE,
    AWAIT,
    COMPUTE,
    COPY,
    DECODE,
    DRAM_LAUNCH,
    DRIVEN_LAUNCH,
    ENCODE,
    END,
    IN,
    LAUNCH,
    OUT,
    PASS,
    RECOMPUTE,
    RELEASE,
    SIGNAL,
    WORK,
    MachineCode,
    Op,
    StreamCode,
    copy_kind,
)
from simgpu.machine.stream import Memories
from simgpu.memory.transfer import NANO
from simgpu.program.instructions import (
    DEVICE,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    Initialize,
    Instruction,
    Launch,
    Location,
    Program,
    Release,
    Signal,
)
from simgpu.program.paging import Paged
from simgpu.timeline.streams import StreamId, engine


class Driver(Protocol):
    """Runs kernels whose time is not only their recorded duration."""

    def launch(self, kernel: int) -> Callable[[Any, Any], None] | None:
        """The function that starts a kernel, given its stream and copy engines; None for its recorded duration."""
        ...


class SharedLink(Driver, Protocol):
    """The link to buddy memory where kernels do not have it to themselves."""

    def overflow(self, block: int) -> int:
        """Bytes of a block in buddy memory."""
        ...


def translate(
    program: Program,
    graph: TaskGraph,
    node: NodeSpec,
    memories: Memories,
    demands: Sequence[int] | None = None,
    shared: SharedLink | None = None,
    *,
    driver: Driver | None = None,
    streams: tuple[StreamId, ...] | None = None,
) -> MachineCode:
    """The machine code of a checked program (`simgpu.program.check`); `graph` has the program's transforms applied.

    demands: DRAM bandwidth that each kernel takes, bytes per second, where copies
    depend on it. shared: of kernels that share the link to buddy memory. driver: of kernels whose blocks the program
    does not move. streams: the program's, and others that the machine shows things on.
    """
    streams = streams or program.streams
    linked = shared is not None
    ends = [way for link in node.links for way in (link.ends, (link.ends[1], link.ends[0]))]
    engines = tuple(engine(*way) for way in ends)
    code = MachineCode(streams, [[] for _ in streams], engines, demands_vary=demands is not None, linked=linked)
    events = _number_events(program, code)
    repeats = [segment.repeat for segment in program.segments]
    initialize_allocates = isinstance(program.residency, Paged)
    translator = _Translator(
        graph,
        node,
        memories,
        events,
        code.signal_work,
        repeats,
        demands,
        shared,
        driver or shared,
        initialize_allocates,
    )
    for index, segment in enumerate(program.segments):
        for position, stream in enumerate(streams):
            instructions = segment.streams.get(stream, ())
            code.segments[position].append(translator.stream_code(instructions, index, stream.gpu))
    return code


def _number_events(program: Program, code: MachineCode) -> dict[int, tuple[int, int]]:
    """For each event of the program its number here and the segment that signals it."""
    events: dict[int, tuple[int, int]] = {}
    for index, segment in enumerate(program.segments):
        for position, stream in enumerate(code.streams):
            for instruction in segment.streams.get(stream, ()):
                if type(instruction) is Signal:
                    events[instruction.event] = (len(events), index)
                    code.signaller.append(position)
    code.signal_work = [-1] * len(events)
    return events


class _Translator:
    """Writes the machine code of one stream after the other, as an `Effects` of its instructions."""

    def __init__(
        self,
        graph: TaskGraph,
        node: NodeSpec,
        memories: Memories,
        events: dict[int, tuple[int, int]],
        signal_work: list[int],
        repeats: Sequence[int],
        demands: Sequence[int] | None,
        shared: SharedLink | None,
        driver: Driver | None,
        initialize_allocates: bool,
    ) -> None:
        self.demands = demands
        self.shared = shared
        self.driver = driver
        # Whether initializing a block allocates its pages, as far as memory is free.
        self.initialize_allocates = initialize_allocates
        self.graph = graph
        self.memories = memories
        self.events = events
        self.signal_work = signal_work
        self.repeats = repeats
        # By source and target: the position of the link, and the direction.
        self.routes: dict[tuple[str, str], tuple[int, int]] = {}
        for number, link in enumerate(node.links):
            first, second = link.ends
            self.routes |= {(first, second): (number, OUT), (second, first): (number, IN)}
        self.requests: dict[tuple[object, ...], tuple[Op, Op]] = {}
        self.ops: list[Op] = []
        self.works: list[int] = []
        self.segment = self.gpu = 0

    def stream_code(self, instructions: tuple[Instruction, ...], segment: int, gpu: int) -> StreamCode:
        """The code of one stream of a GPU in a segment."""
        self.ops, self.works, self.segment, self.gpu = [], [], segment, gpu
        for instruction in instructions:
            instruction.apply(self)
        self.ops.append((END,))
        return StreamCode(self.ops, self.works, self.repeats[segment])

    def runs(self, launch: Launch) -> None:
        """A kernel with its duration, or one that a driver runs."""
        kernel, demands = launch.kernel, self.demands
        duration = self.graph.durations[kernel]
        begin = None if self.driver is None else self.driver.launch(kernel)
        if begin is not None:
            self.ops.append((DRIVEN_LAUNCH, begin, 0 if demands is None else demands[kernel]))
        else:
            self.ops.append((LAUNCH, duration) if demands is None else (DRAM_LAUNCH, duration, demands[kernel]))
        self.works.append((RECOMPUTE if launch.recompute else COMPUTE) + WORK * kernel)

    def moves(self, work: Copy | Encode | Decode, source: Location, target: Location) -> None:
        """A copy with its bytes, or a codec with its time."""
        encoded = self.graph.encoded
        if isinstance(work, Copy):
            self._copy(work)
        elif isinstance(work, Encode):
            self.ops.append((LAUNCH, encoded[target.block].encode_ns))
            self.works.append(ENCODE + WORK * target.block)
        else:
            self.ops.append((LAUNCH, encoded[source.block].decode_ns))
            self.works.append(DECODE + WORK * source.block)

    def acquires(self, acquire: Acquire) -> None:
        """A request for memory."""
        self.ops.append(self._request(acquire, acquire.offsets)[0])

    def releases(self, release: Release) -> None:
        """The end of a request."""
        self.ops.append(self._request(release)[1])

    def initializes(self, initialize: Initialize) -> None:
        """Initializing a value takes no time, and memory only where that allocates pages."""
        if not self.initialize_allocates:
            self.ops.append((PASS,))
            return
        self.ops.append(self._request(initialize)[0])

    def signals(self, signal: Signal) -> None:
        """A signal, and the work before it."""
        event = self.events[signal.event][0]
        self.signal_work[event] = self.works[-1] if self.works else -1
        self.ops.append((SIGNAL, event))

    def awaits(self, wait: Await) -> None:
        """A wait for as many signals as the repetitions need."""
        event, where = self.events[wait.event]
        if where == self.segment:
            self.ops.append((AWAIT, event, 1 - wait.lag, 0))
        else:
            self.ops.append((AWAIT, event, -wait.lag, self.repeats[where]))

    def _carved(self, instruction: Acquire | Release | Initialize) -> int:
        """Bytes of buddy memory that its blocks own."""
        if self.graph.compressed is None or instruction.memory != DEVICE:
            return 0
        return self.graph.compressed.carved_by(instruction.blocks)

    def _copy(self, copy: Copy) -> None:
        block = copy.copied
        link, direction = self.routes[copy.src, copy.dst]
        op = (COPY, link, direction, self.graph.copy_sizes[block], self.graph.blocks[block].bytes)
        partly_there = self.shared is not None and DEVICE in (copy.src, copy.dst)
        overflow = self.shared.overflow(block) if self.shared is not None and partly_there else 0
        self.ops.append((*op, overflow) if overflow else op)
        self.works.append(copy_kind(link, direction) + WORK * block)

    def _request(
        self, instruction: Acquire | Release | Initialize, offsets: tuple[int, ...] | None = None
    ) -> tuple[Op, Op]:
        """The ops that acquire and release some blocks, made once."""
        key = self.gpu, instruction.memory, instruction.blocks, offsets
        ops = self.requests.get(key)
        if ops is None:
            memory, sizes = self.memories.of(self.gpu, instruction.memory), self.graph.sizes_in(instruction.memory)
            request = memory.pool.prepare(instruction.blocks, [sizes[b] for b in instruction.blocks], offsets)
            number = memory.number(request, self._carved(instruction))
            ops = (ACQUIRE, memory, request, number), (RELEASE, memory, request, number + 1)
            self.requests[key] = ops
        return ops


def dram_demands(graph: TaskGraph, cdma: CdmaSpec) -> list[int] | None:
    """DRAM bandwidth that each kernel takes, bytes per second; None where no kernel's is recorded.

    A kernel without a record among others that have one takes the engine's constant.
    """
    if all(kernel.dram_bytes is None for kernel in graph.kernels):
        return None
    return [
        cdma.kernel_bandwidth if kernel.dram_bytes is None else kernel.dram_bytes * NANO // max(duration, 1)
        for kernel, duration in zip(graph.kernels, graph.durations, strict=True)
    ]
