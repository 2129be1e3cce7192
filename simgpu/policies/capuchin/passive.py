"""Capuchin's measured iteration: passive mode, in which blocks are evicted and fetched on demand only, and what it
measures, when every block is accessed and when memory is at its peak.

Public summaries agree that the first iteration runs like this: where memory cannot be had, tensors are taken from the
list of accesses and evicted to the host; an access to an evicted tensor faults and fetches it. An access is noted with
its time at the start and at the end of each computation. The accesses of an iteration are the same every time, so the
planner can follow them and write down what would happen.

Where the summaries are open, this implementation decides:

* The least recently accessed block is evicted first, and only as many as the request needs. Where one kernel touches
  several blocks, what it reads counts as accessed before what it writes, each in listed order.
* Copies are synchronous both ways: compute waits for them (one summary calls the copy out asynchronous).
* What a kernel reads or writes is fetched before memory for its results is taken; blocks that the kernel touches are
  not evicted for it.
* Any block that is not persistent and is still to be used can be evicted: gradients too, weights and the batch not.
* The copy on the host is dropped when the block is fetched, so a block that is evicted again is copied again.
* Times leave out the stalls of fetching on demand, so that they are those of an iteration with enough memory; only a
  re-implementation says so (tinyflow takes the time of evictions off its clock).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.memory.pool import CountingPool
from simgpu.policies.base import PlanContext, require_one_stream
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    H2D,
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
    Space,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import StreamId


class Use(NamedTuple):
    """A kernel touches a block from `start_ns` to `end_ns` of the iteration, stalls of swapping left out."""

    kernel: int
    start_ns: int
    end_ns: int


class Peak(NamedTuple):
    """From the first kernel that runs when most memory is asked for to the last: kernels, and their times (ns)."""

    first: int
    last: int
    start_ns: int
    end_ns: int
    bytes: int


@dataclass(frozen=True)
class Accesses:
    """The measured iteration.

    starts_ns[k], ends_ns[k]: of each kernel, stalls left out. demand[k]: bytes that would be held while it runs if
    nothing was evicted. swapping_ns: what swapping on demand added to the iteration.
    """

    graph: TaskGraph
    starts_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    demand: tuple[int, ...]
    swapping_ns: int

    def uses(self, b: int) -> tuple[Use, ...]:
        """When a block is accessed, in order."""
        return tuple(Use(k, self.starts_ns[k], self.ends_ns[k]) for k in self.graph.uses[b])

    @cached_property
    def peak(self) -> Peak:
        """When most memory is asked for, the first and last moment of it."""
        most = max(self.demand)
        at = [k for k, held in enumerate(self.demand) if held == most]
        return Peak(at[0], at[-1], self.starts_ns[at[0]], self.ends_ns[at[-1]], most)


def passive_run(context: PlanContext) -> Accesses:
    """Run an iteration in passive mode and tell its accesses.

    Raises `InputError` for a trace with several compute streams or without what its kernels read, and
    `OutOfMemoryError` where even passive mode cannot run within the budget.
    """
    graph, alignment = context.graph, context.node.gpu.alignment
    require_one_stream(graph, "capuchin")
    trial = context.trial(passive_program(graph, context.budget, alignment))
    durations = _measured(trial.timeline, graph)
    ends = tuple(accumulate(durations))
    starts = tuple(end - duration for end, duration in zip(ends, durations, strict=True))
    return Accesses(graph, starts, ends, demand(graph, alignment), trial.iteration_ns - sum(durations))


def _measured(timeline: Timeline, graph: TaskGraph) -> tuple[int, ...]:
    """How long each kernel ran in the last iteration of a run, ns."""
    last = len(timeline.iteration_ends_ns) - 1
    mine = (timeline.kind == SpanKind.COMPUTE) & (timeline.iteration == last)
    durations = np.zeros(len(graph.kernels), dtype=np.int64)
    numbers = [graph.kernel_number[timeline.names[name]] for name in timeline.name[mine].tolist()]
    durations[numbers] = (timeline.end_ns - timeline.start_ns)[mine]
    return tuple(durations.tolist())


def passive_program(graph: TaskGraph, budget: int, alignment: int = 1) -> Program:
    """An iteration within `budget` bytes in which blocks are evicted when memory is short, and fetched when used.

    graph: on one compute stream. alignment: of the allocator, bytes. Where even evicting everything does not make
    room for a kernel, the program asks for the memory all the same, and its run ends out of memory.

    Raises `InputError` where the recording does not tell what kernels read.

    >>> from simgpu.program.text import listing
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9, 4], [10, 14, 18, 6], [100, 200, 300, 250]))
    >>> plenty, short = passive_program(graph, 850), passive_program(graph, 650)
    >>> "copy out x2" in listing(plenty, graph), "copy out x2" in listing(short, graph)
    (False, True)
    """
    resident = lower(graph, Placement())
    passive = _Passive(graph, resident, budget, alignment)
    return replace(resident, segments=tuple(passive.segment(each) for each in resident.segments))


def demand(graph: TaskGraph, alignment: int = 1) -> tuple[int, ...]:
    """Bytes that are held while each kernel runs if nothing is ever evicted.

    >>> from simgpu.trace.chain import chain
    >>> demand(TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300])))
    (300, 600, 600, 600, 300, 100)
    """
    program = lower(graph, Placement())
    pool = CountingPool(None, alignment)
    _acquire(pool, graph, program.resident)
    used = [0] * len(graph.kernels)
    for segment in program.segments:
        for instruction in segment.streams[COMPUTE]:
            if isinstance(instruction, Acquire):
                _acquire(pool, graph, instruction.blocks)
            elif isinstance(instruction, Release):
                _release(pool, graph, instruction.blocks)
            elif isinstance(instruction, Launch):
                used[instruction.kernel] = pool.used
    return tuple(used)


def _acquire(pool: CountingPool, graph: TaskGraph, blocks: Sequence[int]) -> None:
    pool.acquire(pool.prepare(blocks, [graph.sizes[b] for b in blocks]))


def _release(pool: CountingPool, graph: TaskGraph, blocks: Sequence[int]) -> None:
    pool.release(pool.prepare(blocks, [graph.sizes[b] for b in blocks]))


class _Passive:
    """Follows the compute stream as it is with all blocks resident, and adds what memory asks for.

    pool: what is held, of unlimited size, so that the planner can go on where the machine will not. recent: blocks on
    the device that may be evicted some day, the least recently accessed first. away: blocks on the host.
    """

    def __init__(self, graph: TaskGraph, resident: Program, budget: int, alignment: int) -> None:
        self.graph = graph
        self.budget = budget
        self.pool = CountingPool(None, alignment)
        _acquire(self.pool, graph, resident.resident)
        self.code: defaultdict[StreamId, list[Instruction]] = defaultdict(list)
        self.recent: dict[int, None] = {}
        self.on_host: set[int] = set()
        self.events = 0

    def segment(self, segment: Segment) -> Segment:
        """A segment with copies."""
        for instruction, k in _with_next_kernel(segment.streams[COMPUTE]):
            if isinstance(instruction, Acquire):
                self._fetch(k)
                self._evict_for(instruction.blocks, k)
                _acquire(self.pool, self.graph, instruction.blocks)
                self._access(instruction.blocks)
            elif isinstance(instruction, Launch):
                self._fetch(k)
                self._access((*self.graph.reads[k], *self.graph.writes[k]))
            elif isinstance(instruction, Release):
                _release(self.pool, self.graph, instruction.blocks)
                for b in instruction.blocks:
                    self.recent.pop(b, None)
            self.code[COMPUTE].append(instruction)
        streams = {stream: tuple(self.code[stream]) for stream in sorted(self.code, key=lambda stream: stream.rank)}
        self.code.clear()
        return Segment(streams, segment.repeat)

    def _access(self, blocks: Sequence[int]) -> None:
        for b in blocks:
            if not self.graph.blocks[b].persistent:
                self.recent.pop(b, None)
                self.recent[b] = None

    def _fetch(self, k: int) -> None:
        """Bring back what kernel k touches."""
        missing = tuple(b for b in dict.fromkeys((*self.graph.reads[k], *self.graph.writes[k])) if b in self.on_host)
        if missing:
            self._evict_for(missing, k)
            _acquire(self.pool, self.graph, missing)
            self.code[COMPUTE].append(Acquire(missing))
            copies = [step for b in missing for step in (CopyIn(b), Release((b,), Space.HOST))]
            self._copy(H2D, copies)
            self.on_host.difference_update(missing)
            self._access(missing)

    def _evict_for(self, blocks: Sequence[int], k: int) -> None:
        """Evict as many blocks as kernel k does not touch until there is room for these."""
        lacking = self.pool.used + self._padded(blocks) - self.budget
        victims = []
        touched = {*self.graph.reads[k], *self.graph.writes[k]}
        for b in self.recent:
            if lacking <= 0:
                break
            if self._can_evict(b, k, touched):
                victims.append(b)
                lacking -= self._padded((b,))
        if victims:
            self._copy(D2H, [step for b in victims for step in (Acquire((b,), Space.HOST), CopyOut(b))])
            self.code[COMPUTE].append(Release(tuple(victims)))
            _release(self.pool, self.graph, victims)
            self.on_host.update(victims)
            for b in victims:
                del self.recent[b]

    def _can_evict(self, b: int, k: int, touched: Collection[int]) -> bool:
        return b not in touched and self.graph.sizes[b] > 0 and self.graph.next_use(b, k) is not None

    def _padded(self, blocks: Sequence[int]) -> int:
        """Bytes of memory that blocks take together, padding included."""
        return self.pool.prepare(blocks, [self.graph.sizes[b] for b in blocks])[1]

    def _copy(self, stream: StreamId, copies: Sequence[Instruction]) -> None:
        """Have a stream copy while compute waits."""
        begin, end = self.events, self.events + 1
        self.events += 2
        self.code[COMPUTE] += [Signal(begin), Await(end)]
        self.code[stream] += [Await(begin), *copies, Signal(end)]


def _with_next_kernel(code: Sequence[Instruction]) -> Iterator[tuple[Instruction, int]]:
    """Each instruction with the kernel that it launches or that is launched next; the last one's where none is."""
    launches = [instruction.kernel for instruction in code if isinstance(instruction, Launch)]
    number = 0
    for instruction in code:
        yield instruction, launches[min(number, len(launches) - 1)]
        number += isinstance(instruction, Launch)
