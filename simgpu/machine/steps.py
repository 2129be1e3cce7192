"""The steps of a checked program: sizes, durations and DRAM bandwidth are filled in."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.buddy import SharedBuddyLink
from simgpu.machine.containers import BlockRequest, Cause, Memories
from simgpu.machine.dram import DemandingKernelStep
from simgpu.machine.engines import IN, OUT, CopyStep, Engines
from simgpu.machine.implicit_streams import Residency
from simgpu.machine.instants import InstantOrder
from simgpu.machine.launches import launch_numbers, launched, threads_of
from simgpu.machine.log import Entry
from simgpu.machine.paged import PageFaults
from simgpu.machine.paged_ahead import EvictStep, PrefetchStep
from simgpu.machine.simulator import (
    AcquireStep,
    AwaitStep,
    EmptyStep,
    KernelStep,
    Part,
    ProgramEvent,
    ReleaseStep,
    SignalStep,
    Step,
    Stream,
)
from simgpu.program.instructions import (
    DEVICE,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    Initialize,
    Launch,
    Location,
    Program,
    Release,
    Signal,
)
from simgpu.program.paging import Paged
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import StreamId


def streams_of(
    env: InstantOrder,
    program: Program,
    graph: TaskGraph,
    node: NodeSpec,
    streams: tuple[StreamId, ...],
    memories: Memories,
    engines: Engines,
    *,
    demands: Sequence[int] | None = None,
    shared: SharedBuddyLink | None = None,
    residency: Residency | None = None,
) -> list[Stream]:
    """The streams of a checked program (`simgpu.program.check`); `graph` has the program's transforms applied.

    streams: the program's, and others that the machine shows things on. demands: DRAM bandwidth that each kernel takes,
    bytes per second, where copies depend on it. shared: the link to buddy memory, where kernels share it. residency:
    runs the kernels of a program that acquires no memory.
    """
    events: dict[int, tuple[ProgramEvent, int]] = {
        instruction.event: (ProgramEvent(segment.repeat), index)
        for index, segment in enumerate(program.segments)
        for code in segment.streams.values()
        for instruction in code
        if isinstance(instruction, Signal)
    }
    writer = _StepWriter(graph, node, memories, engines, events, demands, shared, residency)
    writer.initializing_allocates = isinstance(program.residency, Paged)
    entries: list[Entry] = []
    threads = threads_of(program, node.host)
    made = []
    for rank, stream in enumerate(streams):
        parts = []
        thread = threads.get(stream.gpu) if stream.role == "compute" else None
        for index, segment in enumerate(program.segments):
            writer.begin(rank, stream.gpu, index)
            code = segment.streams.get(stream, ())
            for instruction in code:
                instruction.apply(writer)
            steps = writer.steps
            if thread is not None and code:
                numbers = launch_numbers(segment, stream.gpu)[stream]
                steps = launched(steps, code, thread, numbers, blocking=node.host.waits_for_copies)
            parts.append(Part(steps, segment.repeat))
        first = rank == 0 or streams[rank - 1].gpu != stream.gpu
        memory = memories.devices[stream.gpu] if first else None
        made.append(Stream(env, stream, rank, parts, entries, memory, thread=thread))
    return made


class _StepWriter:
    """Writes the steps of one stream in one segment after the other, as an `Effects` of its instructions.

    events: by event, with the segments that signal them.
    """

    def __init__(
        self,
        graph: TaskGraph,
        node: NodeSpec,
        memories: Memories,
        engines: Engines,
        events: dict[int, tuple[ProgramEvent, int]],
        demands: Sequence[int] | None,
        shared: SharedBuddyLink | None,
        residency: Residency | None,
    ) -> None:
        self.graph = graph
        self.memories = memories
        self.engines = engines
        self.events = events
        self.demands = demands
        self.shared = shared
        self.residency = residency
        # Whether initializing a block allocates its pages, as far as memory is free.
        self.initializing_allocates = False
        # By source and target: the position of the link, and the direction.
        self.routes: dict[tuple[str, str], tuple[int, int]] = {}
        for number, link in enumerate(node.links):
            first, second = link.ends
            self.routes |= {(first, second): (number, OUT), (second, first): (number, IN)}
        self.requests: dict[tuple[object, ...], BlockRequest] = {}
        self.begin(0, 0, 0)

    def begin(self, rank: int, gpu: int, segment: int) -> None:
        """Begin with the instructions of a stream in a segment."""
        self.rank, self.gpu, self.segment = rank, gpu, segment
        self.steps: list[Step] = []
        # The last work, as a position in the timeline's names.
        self.last = -1

    def runs(self, launch: Launch) -> None:
        """A kernel for its duration, or as a component runs it."""
        self.last = k = launch.kernel
        kernel = KernelStep(SpanKind.RECOMPUTE if launch.recompute else SpanKind.COMPUTE, k, self.graph.durations[k])
        demand = 0 if self.demands is None else self.demands[k]
        step: Step | None = None
        if self.residency is not None:
            step = self.residency.step(kernel)
        elif self.shared is not None:
            step = self.shared.step(kernel, demand, self.engines, self.gpu)
        if step is None:
            step = kernel if self.demands is None else DemandingKernelStep(kernel, self.engines.dram[self.gpu], demand)
        self.steps.append(step)

    def moves(self, work: Copy | Encode | Decode, source: Location, target: Location) -> None:
        """A copy with its bytes, or a codec with its time."""
        encoded = self.graph.encoded
        if isinstance(work, Copy):
            self._copy(work)
        elif isinstance(work, Encode):
            self._codec(SpanKind.ENCODE, target.block, encoded[target.block].encode_ns)
        else:
            self._codec(SpanKind.DECODE, source.block, encoded[source.block].decode_ns)

    def acquires(self, acquire: Acquire) -> None:
        """A request for memory."""
        self._take(acquire, acquire.offsets)

    def releases(self, release: Release) -> None:
        """The end of a request."""
        memory = self.memories.of(self.gpu, release.memory)
        self.steps.append(ReleaseStep(memory, self._request(release), self.memories, Cause(self.rank, self.last)))

    def initializes(self, initialize: Initialize) -> None:
        """Initializing a value takes no time, and memory only where that allocates pages."""
        if self.initializing_allocates:
            self._take(initialize)
        else:
            self.steps.append(EmptyStep())

    def signals(self, signal: Signal) -> None:
        """A signal, and the work before it."""
        event, _ = self.events[signal.event]
        event.cause = Cause(self.rank, self.last)
        self.steps.append(SignalStep(event))

    def awaits(self, wait: Await) -> None:
        """A wait for as many signals as the repetitions need."""
        event, where = self.events[wait.event]
        self.steps.append(AwaitStep(event, wait.lag, where == self.segment))

    def _codec(self, kind: SpanKind, form: int, duration: int) -> None:
        self.last = self._name(form)
        self.steps.append(KernelStep(kind, self.last, duration))

    def _copy(self, copy: Copy) -> None:
        block = copy.copied
        if isinstance(self.residency, PageFaults):
            migrates = PrefetchStep if copy.dst == DEVICE else EvictStep
            self.steps.append(migrates(self.residency, block))
            return
        link, direction = self.routes[copy.src, copy.dst]
        partly_there = self.shared is not None and DEVICE in (copy.src, copy.dst)
        overflow = self.shared.overflow(block) if self.shared is not None and partly_there else 0
        lane, resource = self.engines.lanes[self.gpu][link][direction], len(self.memories.names) + 2 * link + direction
        self.last = self._name(block)
        size, raw = self.graph.copy_sizes[block], self.graph.blocks[block].bytes
        self.steps.append(CopyStep(lane, size, raw, overflow, self.last, resource))

    def _name(self, block: int) -> int:
        return len(self.graph.kernels) + block

    def _take(self, instruction: Acquire | Initialize, offsets: tuple[int, ...] | None = None) -> None:
        memory = self.memories.of(self.gpu, instruction.memory)
        resource = self.memories.names.index(instruction.memory)
        self.steps.append(AcquireStep(memory, self._request(instruction, offsets), resource))

    def _request(
        self, instruction: Acquire | Release | Initialize, offsets: tuple[int, ...] | None = None
    ) -> BlockRequest:
        """What some blocks need, made once."""
        key = self.gpu, instruction.memory, instruction.blocks, offsets
        request = self.requests.get(key)
        if request is None:
            pool, sizes = self.memories.of(self.gpu, instruction.memory).pool, self.graph.sizes_in(instruction.memory)
            prepared = pool.prepare(instruction.blocks, [sizes[b] for b in instruction.blocks], offsets)
            request = self.requests[key] = BlockRequest(prepared, self._carved(instruction))
        return request

    def _carved(self, instruction: Acquire | Release | Initialize) -> int:
        """Bytes of buddy memory that its blocks own."""
        if self.graph.compressed is None or instruction.memory != DEVICE:
            return 0
        return self.graph.compressed.carved_by(instruction.blocks)
