"""Capuchin's measured iteration: passive mode, in which blocks are evicted and fetched on demand only. It measures when
each block is accessed and when memory is at its peak.

Public summaries agree on the first iteration: when an allocation fails, tensors from the list of accesses are evicted
to the host; an access to an evicted tensor faults and fetches it. Each access is recorded with the start and the end of
its computation. The accesses of all iterations are the same, so the planner can replay them.

Where the summaries are open, this implementation decides:

* The least recently accessed block is evicted first, and only as many as the request needs. Of the blocks that one
  kernel accesses, reads come before writes, each in listed order.
* Copies are synchronous in both directions: compute waits for them (one summary calls the offload asynchronous).
* A kernel's inputs are fetched before memory for its results is acquired; its own blocks are not evicted for it.
* Any block that is not persistent and will be used again can be evicted: gradients too, weights and the batch not.
* The host copy is dropped when the block is fetched, so a block that is evicted again is copied again.
* Times exclude the stalls of fetching on demand, so that they are those of an iteration with enough memory; only one
  re-implementation does so (tinyflow subtracts the time of evictions).
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
    DEVICE,
    H2D,
    HOST,
    Acquire,
    Await,
    Copy,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import StreamId


class Use(NamedTuple):
    """A kernel accesses a block from `start_ns` to `end_ns` of the iteration, without stalls of swapping."""

    kernel: int
    start_ns: int
    end_ns: int


class PeakWindow(NamedTuple):
    """The memory peak: the first and last kernel at the maximum, the start and end of these (ns), and the bytes."""

    first: int
    last: int
    start_ns: int
    end_ns: int
    bytes: int


@dataclass(frozen=True)
class Accesses:
    """The measured iteration.

    starts_ns[k], ends_ns[k]: start and end of kernel k, without stalls. demand[k]: bytes in use while it runs if
    nothing is evicted. swapping_ns: time that swapping on demand added to the iteration.
    """

    graph: TaskGraph
    starts_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    demand: tuple[int, ...]
    swapping_ns: int

    def uses(self, b: int) -> tuple[Use, ...]:
        """The accesses of a block, in order."""
        return tuple(Use(k, self.starts_ns[k], self.ends_ns[k]) for k in self.graph.uses[b])

    @cached_property
    def peak(self) -> PeakWindow:
        """The memory peak."""
        most = max(self.demand)
        at = [k for k, held in enumerate(self.demand) if held == most]
        return PeakWindow(at[0], at[-1], self.starts_ns[at[0]], self.ends_ns[at[-1]], most)


def passive_run(context: PlanContext) -> Accesses:
    """The accesses of an iteration that runs in passive mode.

    Raises `InputError` for a trace with several compute streams or without the reads of its kernels, and
    `OutOfMemoryError` where even passive mode cannot run within the budget.
    """
    graph, alignment = context.graph, context.node.gpu.alignment
    require_one_stream(graph, "capuchin")
    trial = context.trial(passive_of(context))
    durations = _measured(trial.timeline, graph)
    ends = tuple(accumulate(durations))
    starts = tuple(end - duration for end, duration in zip(ends, durations, strict=True))
    return Accesses(graph, starts, ends, demand(graph, alignment), trial.iteration_ns - sum(durations))


def _measured(timeline: Timeline, graph: TaskGraph) -> tuple[int, ...]:
    """The duration of each kernel in the last iteration of a run, ns."""
    last = len(timeline.iteration_ends_ns) - 1
    # The run may have kernels that the graph of the policy does not have, of the host or of an exchange between GPUs.
    on_gpu = timeline.stream == timeline.streams.index(str(COMPUTE))
    numbers = np.array([graph.kernel_number.get(name, -1) for name in timeline.names], dtype=np.int64)[timeline.name]
    mine = on_gpu & (timeline.kind == SpanKind.COMPUTE) & (timeline.iteration == last) & (numbers >= 0)
    durations = np.zeros(len(graph.kernels), dtype=np.int64)
    durations[numbers[mine]] = (timeline.end_ns - timeline.start_ns)[mine]
    return tuple(durations.tolist())


def passive_of(context: PlanContext) -> Program:
    """`passive_program` in this context."""
    graph = context.graph
    return passive_program(graph, context.budget, context.node.gpu.alignment, context.resident(graph))


def passive_program(graph: TaskGraph, budget: int, alignment: int = 1, never: Collection[int] = ()) -> Program:
    """An iteration within `budget` bytes in which blocks are evicted when memory is short, and fetched when used.

    graph: on one compute stream. alignment: of the allocator, bytes. never: blocks that are not evicted. Where a kernel
    does not fit even with everything evicted, the program still acquires the memory, and its run ends out of memory.

    Raises `InputError` for a trace without the reads of its kernels.

    >>> from simgpu.program.text import listing
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9, 4], [10, 14, 18, 6], [100, 200, 300, 250]))
    >>> plenty, short = passive_program(graph, 850), passive_program(graph, 650)
    >>> "copy x2 from device to host" in listing(plenty, graph), "copy x2 from device to host" in listing(short, graph)
    (False, True)
    """
    resident = lower(graph, Placement())
    passive = _Passive(graph, resident, budget, alignment, never)
    return replace(resident, segments=tuple(passive.segment(each) for each in resident.segments))


def demand(graph: TaskGraph, alignment: int = 1) -> tuple[int, ...]:
    """Bytes in use while each kernel runs if nothing is ever evicted.

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
    """Replays the compute stream of a program without eviction, and adds evictions and fetches.

    pool: memory in use; unlimited, so that planning continues where the run will end out of memory. recent: blocks on
    the device that are not persistent, the least recently accessed first. on_host: evicted blocks. stay: those that are
    not evicted.
    """

    def __init__(
        self, graph: TaskGraph, resident: Program, budget: int, alignment: int, never: Collection[int]
    ) -> None:
        self.graph = graph
        self.stay = {b for b, block in enumerate(graph.blocks) if block.persistent}.union(never)
        self.budget = budget
        self.pool = CountingPool(None, alignment)
        _acquire(self.pool, graph, resident.resident)
        self.code: defaultdict[StreamId, list[Instruction]] = defaultdict(list)
        self.recent: dict[int, None] = {}
        self.on_host: set[int] = set()
        self.events = 0

    def segment(self, segment: Segment) -> Segment:
        """A segment with evictions and fetches."""
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
            if b not in self.stay:
                self.recent.pop(b, None)
                self.recent[b] = None

    def _fetch(self, k: int) -> None:
        """Fetch the evicted blocks that kernel k accesses."""
        missing = tuple(b for b in dict.fromkeys((*self.graph.reads[k], *self.graph.writes[k])) if b in self.on_host)
        if missing:
            self._evict_for(missing, k)
            _acquire(self.pool, self.graph, missing)
            self.code[COMPUTE].append(Acquire(missing))
            copies = [step for b in missing for step in (Copy(b, HOST, DEVICE), Release((b,), HOST))]
            self._copy(H2D, copies)
            self.on_host.difference_update(missing)
            self._access(missing)

    def _evict_for(self, blocks: Sequence[int], k: int) -> None:
        """Evict blocks that kernel k does not access until these fit."""
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
            self._copy(D2H, [step for b in victims for step in (Acquire((b,), HOST), Copy(b, DEVICE, HOST))])
            self.code[COMPUTE].append(Release(tuple(victims)))
            _release(self.pool, self.graph, victims)
            self.on_host.update(victims)
            for b in victims:
                del self.recent[b]

    def _can_evict(self, b: int, k: int, touched: Collection[int]) -> bool:
        return b not in touched and self.graph.sizes[b] > 0 and self.graph.next_use(b, k) is not None

    def _padded(self, blocks: Sequence[int]) -> int:
        """Bytes of blocks, padding included."""
        return self.pool.prepare(blocks, [self.graph.sizes[b] for b in blocks])[1]

    def _copy(self, stream: StreamId, copies: Sequence[Instruction]) -> None:
        """Copy on a stream while compute waits."""
        begin, end = self.events, self.events + 1
        self.events += 2
        self.code[COMPUTE] += [Signal(begin), Await(end)]
        self.code[stream] += [Await(begin), *copies, Signal(end)]


def _with_next_kernel(code: Sequence[Instruction]) -> Iterator[tuple[Instruction, int]]:
    """Each instruction with the kernel that it launches or that is launched next; after the last launch, its kernel."""
    launches = [instruction.kernel for instruction in code if isinstance(instruction, Launch)]
    number = 0
    for instruction in code:
        yield instruction, launches[min(number, len(launches) - 1)]
        number += isinstance(instruction, Launch)
