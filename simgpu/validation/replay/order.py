"""The order in which one host thread issues a program's instructions to the streams of a device.

It is the order in which the simulated machine came to the instructions: works end when the timeline says so, and
everything else follows at once by the machine's rule for one instant (`simgpu.machine.simulator`): releases, then
signals, then who waits in line for memory, then new requests, then starts; ties by stream. So a wait is issued behind
the signal that it is for, and requests for memory are issued in the order in which they were granted, first in, first
out in each memory.
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
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Instruction,
    Launch,
    Program,
    Release,
    Signal,
    Space,
)
from simgpu.timeline.model import SpanKind, Timeline

WORK = (Launch, CopyOut, CopyIn, Encode, Decode)

# What happens first at one instant.
_STEP_PAST, _RELEASE, _SIGNAL, _SERVE, _ACQUIRE, _START = range(6)
_URGENCY = {Release: _RELEASE, Signal: _SIGNAL, Acquire: _ACQUIRE, **dict.fromkeys(WORK, _START)}


class Step(NamedTuple):
    """One instruction to issue.

    stream: its place among the program's streams. nth: of a signal, that it is the nth of its event from the
    beginning; of a wait, that it is for that one, 0 or less where there is nothing to wait for.
    """

    iteration: int
    stream: int
    instruction: Instruction
    nth: int = 0


def issue_order(
    program: Program, graph: TaskGraph, timeline: Timeline, device: Pool, pinned: int | None = None
) -> Iterator[Step]:
    """Every instruction of every iteration of a timeline, in the order to issue them.

    program: for one GPU, without transforms; timeline: of its run. device: an empty pool such as the machine had;
    pinned: bytes of host memory that the node had, None without limit.

    Raises `ProgramError` where nothing can be issued any more, which the timeline of a program never leads to.

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
    """Where a stream is in its program."""

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
        """How often the segment has been repeated before, over all iterations."""
        return self.iteration * self._repeats[self.segment] + self.repetition

    def advance(self) -> None:
        """Go on to the next instruction; None where all is done."""
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
    """A pool, who waits for it in line, and what blocks ask of it."""

    def __init__(self, pool: Pool, sizes: tuple[int, ...]) -> None:
        self.pool = pool
        self.sizes = sizes
        self.line: deque[int] = deque()

    def take(self, blocks: tuple[int, ...], offsets: tuple[int, ...] | None = None) -> bool:
        return self.pool.acquire(self.pool.prepare(blocks, [self.sizes[b] for b in blocks], offsets))

    def give_back(self, blocks: tuple[int, ...]) -> None:
        self.pool.release(self.pool.prepare(blocks, [self.sizes[b] for b in blocks]))


class _Walk:
    def __init__(self, program: Program, graph: TaskGraph, timeline: Timeline, device: Pool, host: Pool) -> None:
        self.program = program
        self.memories = {Space.DEVICE: _Memory(device, graph.sizes), Space.HOST: _Memory(host, graph.copy_sizes)}
        for holding in program.initial_contents:
            self.memories[Space.HOST if holding.gpu is None else Space.DEVICE].take(holding.blocks)
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
            raise ProgramError(f"nothing can be issued any more, and not all is done: {text}")

    def _is_ready(self, stream: int, when: tuple[int, int]) -> None:
        instruction = self.places[stream].instruction
        if instruction is not None:
            heappush(self.ready, (when, _URGENCY.get(type(instruction), _STEP_PAST), stream))

    def _done(self, stream: int, nth: int = 0, *, until: tuple[int, int] | None = None) -> Step:
        """The step that a stream has now done; it goes on at once, or when its work has ended."""
        place = self.places[stream]
        assert place.instruction is not None
        step = Step(place.iteration, stream, place.instruction, nth)
        place.advance()
        self._is_ready(stream, self.now if until is None else until)
        return step

    def _do(self, stream: int) -> Step | None:
        """Do a stream's next instruction, or let it wait."""
        place = self.places[stream]
        match place.instruction:
            case Acquire(blocks, space, offsets):
                memory = self.memories[space]
                if memory.line or not memory.take(blocks, offsets):
                    memory.line.append(stream)
                    return None
            case Release(blocks, space):
                self.memories[space].give_back(blocks)
                self.freed = True
            case Await(event):
                target = self._target(place)
                if self.counts[event] < target:
                    self.waiters[event].append((target, stream))
                    return None
                return self._done(stream, target)
            case Signal(event):
                self.counts[event] += 1
                count = self.counts[event]
                waiting = self.waiters.pop(event, [])
                for target, other in waiting:
                    if target <= count:
                        self._is_ready(other, self.now)
                    else:
                        self.waiters[event].append((target, other))
                return self._done(stream, count)
            case instruction if isinstance(instruction, WORK):
                end = next(self.ends[stream])
                instant, round_ = self.now
                return self._done(stream, until=(end, round_ + 1 if end == instant else 0))
            case _:
                pass  # a value that is provided takes no time
        return self._done(stream)

    def _serve(self) -> Iterator[Step]:
        """Give memory to who waits in line for it."""
        for memory in self.memories.values():
            while memory.line:
                stream = memory.line[0]
                request = self.places[stream].instruction
                assert isinstance(request, Acquire)
                if not memory.take(request.blocks, request.offsets):
                    break
                memory.line.popleft()
                yield self._done(stream)

    def _target(self, place: _Place) -> int:
        """How often the event must have happened that a stream now waits for."""
        wait = place.instruction
        assert isinstance(wait, Await)
        index = self.signalled_in[wait.event]
        if index == place.segment:
            return place.number + 1 - wait.lag
        return (place.iteration + 1) * self.program.segments[index].repeat - wait.lag


def _ends_of(timeline: Timeline, stream: str) -> Iterator[int]:
    """When the works of a stream ended, in its own order, nanoseconds."""
    if stream not in timeline.streams:
        return iter(())
    mine = (timeline.stream == timeline.streams.index(stream)) & (timeline.kind < SpanKind.STALL_EVENT)
    ends: list[int] = timeline.end_ns[mine].tolist()
    return iter(ends)
