"""Translate a checked program into machine code: sizes, durations and DRAM bandwidth are filled in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import CdmaSpec
from simgpu.machine.code import (
    ACQUIRE,
    AWAIT,
    COMPUTE,
    COPY,
    COPY_D2H,
    COPY_H2D,
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
)
from simgpu.machine.stream import TimedMemory
from simgpu.memory.pool import Request
from simgpu.memory.transfer import NANO
from simgpu.program.instructions import (
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Signal,
    Space,
)
from simgpu.program.paging import Paged
from simgpu.timeline.streams import StreamId


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
    devices: Sequence[TimedMemory],
    host: TimedMemory,
    demands: Sequence[int] | None = None,
    shared: SharedLink | None = None,
    *,
    driver: Driver | None = None,
    streams: tuple[StreamId, ...] | None = None,
) -> MachineCode:
    """The machine code of a checked program (`simgpu.program.check`); `graph` has the program's transforms applied.

    devices: the memory of each GPU. demands: DRAM bandwidth that each kernel takes, bytes per second, where copies
    depend on it. shared: of kernels that share the link to buddy memory. driver: of kernels whose blocks the program
    does not move. streams: the program's, and others that the machine shows things on.
    """
    streams = streams or program.streams
    linked = shared is not None
    code = MachineCode(streams, [[] for _ in streams], demands_vary=demands is not None, linked=linked)
    events = _number_events(program, code)
    repeats = [segment.repeat for segment in program.segments]
    initialize_allocates = isinstance(program.residency, Paged)
    translator = _Translator(
        graph, host, events, code.signal_work, repeats, demands, shared, driver or shared, initialize_allocates
    )
    for index, segment in enumerate(program.segments):
        for position, stream in enumerate(streams):
            instructions = segment.streams.get(stream, ())
            code.segments[position].append(translator.stream_code(instructions, index, devices[stream.gpu]))
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
    def __init__(
        self,
        graph: TaskGraph,
        host: TimedMemory,
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
        self.host = host
        self.events = events
        self.signal_work = signal_work
        self.repeats = repeats

    def stream_code(self, instructions: tuple[Instruction, ...], index: int, device: TimedMemory) -> StreamCode:
        """The code of one stream in segment `index`; `device` is the memory of the stream's GPU."""
        ops: list[Op] = []
        works: list[int] = []
        durations, demands = self.graph.durations, self.demands
        for instruction in instructions:
            if isinstance(instruction, Launch):
                kernel = instruction.kernel
                duration = durations[kernel]
                begin = None if self.driver is None else self.driver.launch(kernel)
                if begin is not None:
                    ops.append((DRIVEN_LAUNCH, begin, 0 if demands is None else demands[kernel]))
                else:
                    ops.append((LAUNCH, duration) if demands is None else (DRAM_LAUNCH, duration, demands[kernel]))
                works.append((RECOMPUTE if instruction.recompute else COMPUTE) + WORK * kernel)
            elif isinstance(instruction, Acquire) or (
                isinstance(instruction, Initialize) and self.initialize_allocates
            ):
                memory, request = self._request(instruction, device)
                ops.append((ACQUIRE, memory, request, memory.number(request, self._carved(instruction))))
            elif isinstance(instruction, Release):
                memory, request = self._request(instruction, device)
                ops.append((RELEASE, memory, request, memory.number(request, self._carved(instruction)) + 1))
            elif isinstance(instruction, Signal):
                event = self.events[instruction.event][0]
                self.signal_work[event] = works[-1] if works else -1
                ops.append((SIGNAL, event))
            elif isinstance(instruction, Await):
                ops.append(self._await(instruction, index))
            elif isinstance(instruction, CopyOut):
                ops.append(self._copy(OUT, instruction.host_block))
                works.append(COPY_D2H + WORK * instruction.host_block)
            elif isinstance(instruction, CopyIn):
                ops.append(self._copy(IN, instruction.block))
                works.append(COPY_H2D + WORK * instruction.block)
            elif isinstance(instruction, Encode):
                ops.append((LAUNCH, self.graph.encoded[instruction.into].encode_ns))
                works.append(ENCODE + WORK * instruction.into)
            elif isinstance(instruction, Decode):
                ops.append((LAUNCH, self.graph.encoded[instruction.source].decode_ns))
                works.append(DECODE + WORK * instruction.source)
            elif isinstance(instruction, Initialize):
                # Initializing a value takes no time and no memory.
                ops.append((PASS,))
            else:
                assert_never(instruction)  # `simgpu.program.check` has refused everything else
        ops.append((END,))
        return StreamCode(ops, works, self.repeats[index])

    def _carved(self, instruction: Acquire | Release | Initialize) -> int:
        """Bytes of buddy memory that its blocks own."""
        if self.graph.compressed is None or instruction.space is Space.HOST:
            return 0
        return self.graph.compressed.carved_by(instruction.blocks)

    def _copy(self, direction: int, block: int) -> Op:
        op = (COPY, direction, self.graph.copy_sizes[block], self.graph.blocks[block].bytes)
        overflow = 0 if self.shared is None else self.shared.overflow(block)
        return (*op, overflow) if overflow else op

    def _request(self, instruction: Acquire | Release | Initialize, device: TimedMemory) -> tuple[TimedMemory, Request]:
        memory, sizes = device, self.graph.sizes
        if instruction.space is Space.HOST:
            memory, sizes = self.host, self.graph.copy_sizes
        blocks = instruction.blocks
        offsets = instruction.offsets if isinstance(instruction, Acquire) else None
        return memory, memory.pool.prepare(blocks, [sizes[b] for b in blocks], offsets)

    def _await(self, instruction: Await, index: int) -> Op:
        event, where = self.events[instruction.event]
        if where == index:
            return (AWAIT, event, 1 - instruction.lag, 0)
        return (AWAIT, event, -instruction.lag, self.repeats[where])


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
