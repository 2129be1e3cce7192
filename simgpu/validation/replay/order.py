"""The order in which one host thread issues a program's instructions to the streams of a device.

It is the order in which the simulated machine reached the instructions: work ends as in the timeline, and everything
else follows at once by the machine's rule for one instant (`simgpu.machine.instants`): releases, signals, queued
memory requests, new requests, starts; ties by stream. So a wait is issued after its signal, and memory requests are
issued in the order of their grants, first in, first out in each memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.memory.pool import CountingPool, Pool
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    WORK,
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
from simgpu.timeline.model import SpanKind, Timeline

# Order within one instant.
_STEP_PAST, _RELEASE, _SIGNAL, _SERVE, _ACQUIRE, _START = range(6)
_URGENCY = {Release: _RELEASE, Signal: _SIGNAL, Acquire: _ACQUIRE, **dict.fromkeys(WORK, _START)}


class Step(NamedTuple):
    """One instruction to issue.

    stream: index among the program's streams.
    nth: of a signal, its number among all signals of its event, from 1; of a wait, the number of the signal it waits
        for, 0 or less if it need not wait.
    """

    iteration: int
    stream: int
    instruction: Instruction
    nth: int = 0


def issue_order(
    program: Program, graph: TaskGraph, timeline: Timeline, device: Pool, pinned: int | None = None
) -> Iterator[Step]:
    """Yields every instruction of every iteration of a timeline, in the order to issue them.

    program: for one GPU, without transforms.
    timeline: of the program's run.
    device: an empty pool of the same kind and size as in the run.
    pinned: bytes of the node's pinned host memory, None without limit.

    Raises `ProgramError` on a deadlock, which cannot occur with the timeline of the program's own run.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.machine.run import run_program
    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> program = lower(graph, Placement())
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> timeline = run_program(program, graph, node, budget=1000, iterations=1).timeline
    >>> [type(step.instruction).__name__ for step in issue_order(program, graph, timeline, CountingPool(1000))]
    ['Acquire', 'Launch', 'Acquire', 'Launch', 'Release']
    """
    return _Walk(program, graph, timeline, device, CountingPool(pinned)).steps()


class _Place:
    """The position of a stream in its program."""

    def __init__(self, program: Program, stream: int, iterations: int) -> None:
        self._codes = [segment.streams.get(program.streams[stream], ()) for segment in program.segments]
        self._repeats = [segment.repeat for segment in program.segments]
        self._iterations = iterations
        self.iteration = self.segment = self.repetition = 0
        self._pc = -1
        self.instruction: Instruction | None = None
        self.advance()

    @property
    def number(self) -> int:
        """Number of completed repetitions of the segment, over all iterations."""
        return self.iteration * self._repeats[self.segment] + self.repetition

    def advance(self) -> None:
        """Advances to the next instruction, None at the end of the program."""
        self._pc += 1
        while self._pc == len(self._codes[self.segment]):
            self._pc = 0
            self.repetition += 1
            if self.repetition == self._repeats[self.segment]:
                self.repetition = 0
                self.segment += 1
            if self.segment == len(self._codes):
                self.segment = 0
                self.iteration += 1
            if self.iteration == self._iterations:
                self.instruction = None
                return
        self.instruction = self._codes[self.segment][self._pc]


class _Memory:
    """A pool, the sizes of its blocks, and the queue of streams that wait for memory."""

    def __init__(self, pool: Pool, sizes: tuple[int, ...]) -> None:
        self.pool = pool
        self.sizes = sizes
        self.queue: deque[int] = deque()

    def take(self, blocks: tuple[int, ...], offsets: tuple[int, ...] | None = None) -> bool:
        return self.pool.acquire(self.pool.prepare(blocks, [self.sizes[b] for b in blocks], offsets))

    def release(self, blocks: tuple[int, ...]) -> None:
        self.pool.release(self.pool.prepare(blocks, [self.sizes[b] for b in blocks]))


class _Walk:
    """Walks a program as its timeline says, as an `Effects` of its instructions. stream: the one that acts; result: its
    step, None while it must wait."""

    def __init__(self, program: Program, graph: TaskGraph, timeline: Timeline, device: Pool, host: Pool) -> None:
        self.program = program
        self.memories = {DEVICE: _Memory(device, graph.sizes), HOST: _Memory(host, graph.copy_sizes)}
        for holding in program.initial_contents:
            self.memories[holding.memory].take(holding.blocks)
        iterations = len(timeline.iteration_ends_ns)
        streams = range(len(program.streams))
        self.places = [_Place(program, stream, iterations) for stream in streams]
        self.ends = [_ends_of(timeline, str(stream)) for stream in program.streams]
        self.signalled_in = {
            instruction.event: index
            for index, segment in enumerate(program.segments)
            for code in segment.streams.values()
            for instruction in code
            if isinstance(instruction, Signal)
        }
        self.counts: Counter[int] = Counter()
        self.waiters: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        # Work that takes no time ends in a later round of the same instant.
        self.now = (0, 0)
        self.freed = False
        self.stream = 0
        self.result: Step | None = None
        self.ready: list[tuple[tuple[int, int], int, int]] = []
        for stream in streams:
            self._is_ready(stream, self.now)
        heapify(self.ready)

    def steps(self) -> Iterator[Step]:
        while self.ready or self.freed:
            if self.freed and (not self.ready or self.ready[0][:2] >= (self.now, _SERVE)):
                self.freed = False
                yield from self._serve()
                continue
            self.now, _, stream = heappop(self.ready)
            step = self._do(stream)
            if step is not None:
                yield step
        stuck = [stream for stream, place in enumerate(self.places) if place.instruction is not None]
        if stuck:
            text = ", ".join(f"{self.program.streams[s]} at {self.places[s].instruction}" for s in stuck)
            raise ProgramError(f"deadlock: no instruction can be issued, waiting: {text}")

    def _is_ready(self, stream: int, when: tuple[int, int]) -> None:
        instruction = self.places[stream].instruction
        if instruction is not None:
            heappush(self.ready, (when, _URGENCY.get(type(instruction), _STEP_PAST), stream))

    def _done(self, stream: int, nth: int = 0, *, until: tuple[int, int] | None = None) -> Step:
        """The step that a stream has just done; the stream continues at once, or when its work ends."""
        place = self.places[stream]
        assert place.instruction is not None
        step = Step(place.iteration, stream, place.instruction, nth)
        place.advance()
        self._is_ready(stream, self.now if until is None else until)
        return step

    def _do(self, stream: int) -> Step | None:
        """Executes a stream's next instruction, or queues the stream; None if it must wait."""
        self.stream = stream
        self.result = None
        instruction = self.place.instruction
        assert instruction is not None
        instruction.apply(self)
        return self.result

    @property
    def place(self) -> _Place:
        """Where the stream is."""
        return self.places[self.stream]

    def acquires(self, acquire: Acquire) -> None:
        """Memory, or a place in its queue."""
        memory = self.memories[acquire.memory]
        if memory.queue or not memory.take(acquire.blocks, acquire.offsets):
            memory.queue.append(self.stream)
        else:
            self.result = self._done(self.stream)

    def releases(self, release: Release) -> None:
        """Memory for those in the queue."""
        self.memories[release.memory].release(release.blocks)
        self.freed = True
        self.result = self._done(self.stream)

    def initializes(self, initialize: Initialize) -> None:
        """Takes no time."""
        self.result = self._done(self.stream)

    def signals(self, signal: Signal) -> None:
        """Streams that have waited for this signal go on."""
        self.counts[signal.event] += 1
        count = self.counts[signal.event]
        for target, other in self.waiters.pop(signal.event, []):
            if target <= count:
                self._is_ready(other, self.now)
            else:
                self.waiters[signal.event].append((target, other))
        self.result = self._done(self.stream, count)

    def awaits(self, wait: Await) -> None:
        """Go on, or wait for a later signal."""
        target = self._target(wait)
        if self.counts[wait.event] < target:
            self.waiters[wait.event].append((target, self.stream))
        else:
            self.result = self._done(self.stream, target)

    def runs(self, launch: Launch) -> None:
        """The stream goes on at the kernel's end in the timeline."""
        self._works()

    def moves(self, work: Copy | Encode | Decode, source: Location, target: Location) -> None:
        """The same for a copy or a codec."""
        self._works()

    def _works(self) -> None:
        end = next(self.ends[self.stream])
        instant, round_ = self.now
        self.result = self._done(self.stream, until=(end, round_ + 1 if end == instant else 0))

    def _serve(self) -> Iterator[Step]:
        """Grants memory to queued requests."""
        for memory in self.memories.values():
            while memory.queue:
                stream = memory.queue[0]
                request = self.places[stream].instruction
                assert isinstance(request, Acquire)
                if not memory.take(request.blocks, request.offsets):
                    break
                memory.queue.popleft()
                yield self._done(stream)

    def _target(self, wait: Await) -> int:
        """Number of signals of its event that the stream's wait requires."""
        place = self.place
        index = self.signalled_in[wait.event]
        if index == place.segment:
            return place.number + 1 - wait.lag
        return (place.iteration + 1) * self.program.segments[index].repeat - wait.lag


def _ends_of(timeline: Timeline, stream: str) -> Iterator[int]:
    """End times of a stream's work in stream order, nanoseconds."""
    if stream not in timeline.streams:
        return iter(())
    is_work = (timeline.stream == timeline.streams.index(stream)) & (timeline.kind < SpanKind.STALL_EVENT)
    ends: list[int] = timeline.end_ns[is_work].tolist()
    return iter(ends)
