"""Algorithm 1 of moDNN: the schedule of one round, task by task, with predicted times.

It prefetches by section 5.2.2 and chooses convolution algorithms by their gain, section 5.2.3, equation 10. Offloading
schemes and addresses are in `memory`, the two streams and their clocks in `streams`.

Where the paper is open, this implementation decides:

* An offload begins right after the task that last wrote the block (figure 3) if the data stream is idle then: the
  schedule is static, so a copy that is decided later can still be placed where it overlaps best.
* A block whose value the host has is freed without a copy. A block written again after its offload is copied again.
* Inputs and labels are on the host when a round begins and are loaded like other data, so each round pays for its
  samples. They are never offloaded.
* A block that was not used since its creation stays only if it is used again in the same pass. Data that forward
  creates for backward only (statistics of a normalization, a mask) may be offloaded at once (section 3.2): its next use
  is far ahead.
* A prefetch for which memory is short may offload blocks, but none that its task or an earlier one needs; the scheme
  with the smallest delay of the waiting task is chosen.
* Where no neighbouring segments are large enough for a workspace, memory may be defragmented for it; equation 10
  charges the time.
* Of several blocks that a task lacks, those that fit are prefetched even if others do not fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from simgpu.errors import OutOfMemoryError
from simgpu.memory.addressed import AddressedPool
from simgpu.memory.pool import Request
from simgpu.policies.modnn.evictable import Delay, Evictable, Ints
from simgpu.policies.modnn.memory import NOTHING, WORKSPACE, DeviceMemory, Freed
from simgpu.policies.modnn.streams import AcquireWorkspace, Point, ReleaseWorkspace, StreamClock
from simgpu.policies.modnn.tasks import AS_RECORDED, Task, Tasks
from simgpu.program.instructions import DEVICE, HOST, Acquire, Copy, Initialize, Launch, Release
from simgpu.trace.model import AlgorithmChoice


class Transfer(NamedTuple):
    """A predicted copy: block, direction, start and end in nanoseconds from the round's begin."""

    block: int
    out: bool
    start: int
    end: int


@dataclass
class Schedule:
    """The schedule of one round by algorithm 1.

    pool: contains only the permanently resident blocks. events: numbers for the program's events. starts[i]: start of
    task i; chosen[k]: the algorithm of kernel k; defragmented: tasks before which memory was defragmented.
    """

    tasks: Tasks
    pool: AddressedPool
    events: Iterator[int]
    algorithms: str = "gain"
    starts: list[int] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    chosen: dict[int, str] = field(default_factory=dict)
    defragmented: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.compute, self.data = StreamClock(self.events), StreamClock(self.events)
        self.memory = DeviceMemory(self.tasks, self.pool)
        assert self.pool.capacity is not None, "moDNN plans for a budget"
        self.capacity = self.pool.capacity - self.pool.used
        self.offloaded: set[int] = set()
        self._needed_next: list[tuple[int, int]] = []
        self._in_host_memory: set[int] = set()

    def run(self) -> None:
        """Schedule all tasks in order."""
        self._receive_inputs()
        for index, task in enumerate(self.tasks.tasks):
            self._prepare(index, task)
            duration, workspace = self._choose(index, task)
            self._prefetch(index, duration)
            self._execute(index, task, duration, workspace)

    def _receive_inputs(self) -> None:
        if host_inputs := self.tasks.host_inputs:
            self.data.do(Acquire(host_inputs, HOST))
            self.data.do(Initialize(host_inputs, HOST))
            self._in_host_memory.update(host_inputs)
            self.memory.on_host.update(host_inputs)
            self._mark_offloaded(host_inputs, -1)

    def _mark_offloaded(self, blocks: Iterable[int], index: int) -> None:
        """Note blocks that are needed later but not in device memory."""
        for b in blocks:
            self.offloaded.add(b)
            use = self.tasks.next_use(b, index)
            assert use is not None, "a block without a next use is freed, not offloaded"
            heappush(self._needed_next, (use, b))

    # --- lines 3 to 8: inputs and outputs ---------------------------------------------------------------------

    def _prepare(self, index: int, task: Task) -> None:
        missing = (*(b for b in task.inputs if b not in self.memory.present), *task.outputs)
        for count, b in enumerate(missing):
            if not self._free_space(self.memory.request(b), index, task):
                for acquired in missing[:count]:
                    self.memory.release(acquired)
                self._defragment(index, task)
                return
            self.memory.acquire(b)
        self._load(task, missing)
        self._await_latest(self.memory.arriving.pop(b) for b in task.inputs if b in self.memory.arriving)

    def _await_latest(self, points: Iterable[Point]) -> None:
        """Make the compute stream wait for the last of these points of the data stream, which implies the others."""
        last = max(points, key=lambda point: point.order, default=None)
        if last is not None:
            self.compute.wait(last)
            self.memory.freed = [freed for freed in self.memory.freed if freed.point.order > self.compute.reached]

    def _free_space(self, request: Request, index: int, task: Task) -> bool:
        """Make contiguous memory available for a request, by offloading if necessary; False if that is impossible."""
        if self._has_space(request):
            return True
        scheme = self.memory.scheme(request[1], task.touched, self.data.now, self._delay)
        if scheme is None:
            return False
        self._evict(scheme.blocks, index - 1)
        return True

    def _has_space(self, request: Request) -> bool:
        return request[1] == 0 or self.pool.largest_hole >= request[1]

    def _delay(self, offloaded_ns: Ints) -> Ints:
        """The delay of the next task if it waits for offloads that end at these times (figure 3)."""
        delay: Ints = np.maximum(0, offloaded_ns - self.compute.now)
        return delay

    def _evict(self, blocks: tuple[int, ...], index: int) -> None:
        """Free the memory of blocks for the task after `index`, which waits for the copies."""
        if self._offload(blocks):
            self.compute.wait(self.data.point())
        self._await_latest(self.memory.arriving[b] for b in blocks if b in self.memory.arriving)
        if blocks:
            self.compute.do(Release(blocks))
        for b in blocks:
            self.memory.release(b)
        self._mark_offloaded(blocks, index)

    def _offload(self, blocks: Iterable[int]) -> bool:
        """Offload the blocks that the host lacks; False if there are none."""
        lacking = [b for b in blocks if b not in self.memory.on_host]
        for b in lacking:
            self.data.wait(self.memory.written[b])
            if b not in self._in_host_memory:
                self._in_host_memory.add(b)
                self.data.do(Acquire((b,), HOST))
            self._copy(b, out=True)
            self.memory.on_host.add(b)
        return bool(lacking)

    def _copy(self, b: int, *, out: bool) -> None:
        start = self.data.now
        if out:
            self.data.do(Copy(b, DEVICE, HOST), self.tasks.out_ns[b])
        else:
            self.data.do(Copy(b, HOST, DEVICE), self.tasks.in_ns[b])
        self.transfers.append(Transfer(b, out, start, self.data.now))

    def _load(self, task: Task, missing: tuple[int, ...]) -> None:
        """Acquire memory for blocks whose addresses are fixed, and load those that have a value."""
        if not missing:
            return
        freed_after = [self.memory.freed_after.pop(b) for b in missing if b in self.memory.freed_after]
        self._await_latest(
            (*freed_after, *(point for b in missing for point in self.memory.freed_in(*self.memory.span(b))))
        )
        self.compute.do(Acquire(missing, offsets=tuple(self.memory.offset(b) for b in missing)))
        if task.host_written:
            self.compute.do(Initialize(task.host_written))
            self.memory.written.update(dict.fromkeys(task.host_written, self.compute.point()))
        loaded = [b for b in missing if b in self.offloaded]
        if loaded:
            self.data.wait(self.compute.point())
            for b in loaded:
                self._copy(b, out=False)
            self.compute.wait(self.data.point())
            self.offloaded.difference_update(loaded)

    def _defragment(self, index: int, task: Task) -> None:
        """Offload everything, then load what the task needs (section 5.2.1)."""
        memory = self.memory
        self.defragmented.append(index)
        # Outputs that have an address already, but no value yet, are placed again.
        placed = tuple(b for b in task.outputs if b in memory.present)
        if placed:
            self.compute.do(Release(placed))
        for b in placed:
            memory.release(b)
        present = memory.in_order()
        self._evict(present, index - 1)
        for b in task.touched:
            if not memory.acquire(b):
                raise self._too_small(task)
        self._load(task, task.touched)

    def _defragmentation_ns(self, task: Task) -> int:
        """The delay of the task if everything is offloaded and its inputs are loaded again."""
        values = [b for b in self.memory.in_order() if b not in task.outputs]
        begin = max(self.memory.offloaded_at(values, self.data.now), self.data.now, self.compute.now)
        return begin + sum(self.tasks.in_ns[b] for b in task.inputs) - self.compute.now

    def _too_small(self, task: Task) -> OutOfMemoryError:
        graph, sizes = self.tasks.graph, self.tasks.sizes
        kernel = graph.kernels[task.kernel]
        holders = sorted(((graph.blocks[b].id, sizes[b]) for b in task.touched), key=lambda h: (-h[1], h[0]))
        need, hole = sum(size for _, size in holders), self.pool.largest_hole
        waiting = f"kernel {kernel.id} ({kernel.op}) with all resident blocks"
        capacity = self.pool.capacity or 0
        return OutOfMemoryError(
            waiting, "device", need, self.capacity, hole, capacity, self.compute.now, tuple(holders), kernel.id
        )

    # --- lines 9 to 14: convolution algorithms ----------------------------------------------------------------

    def _choose(self, index: int, task: Task) -> tuple[int, Request | None]:
        """The task's duration and its acquired workspace."""
        if not task.choices:
            return self.tasks.graph.durations[task.kernel], None
        base = smallest_workspace(task.choices)
        choice = base if self.algorithms == "smallest" else None
        if self.algorithms != "smallest":
            choices = task.choices[:1] if self.algorithms == "fastest" else task.choices
            choice = best(self._candidates(index, task, choices), base.duration_ns)
        if choice is None:
            choice = base
        request = self.pool.prepare([WORKSPACE], [choice.workspace_bytes])
        if not self._free_space(request, index, task):
            if not self._fits_in_empty_memory(task, request):
                choice = base
                request = self.pool.prepare([WORKSPACE], [choice.workspace_bytes])
            self._defragment(index, task)
        if not self.pool.acquire(request):
            raise self._too_small(task)
        offset = self.pool.address(WORKSPACE) or 0
        self._await_latest(self.memory.freed_in(offset, offset + request[1]))
        self.compute.do(AcquireWorkspace(task.kernel, offset))
        if choice.algorithm != AS_RECORDED:
            self.chosen[task.kernel] = choice.algorithm
        return choice.duration_ns, request

    def _candidates(self, index: int, task: Task, choices: Iterable[AlgorithmChoice]) -> list[AlgorithmCandidate]:
        """The algorithms whose workspace fits, with their penalties."""
        pending = self._next_prefetch(index)
        missing = pending[1] if pending and should_start(self.tasks, index, *pending) else ()
        candidates = []
        evictable: Evictable | None = None
        for choice in choices:
            request = self.pool.prepare([WORKSPACE], [choice.workspace_bytes])
            scheme = NOTHING
            if not self._has_space(request):
                evictable = evictable or self.memory.evictable(task.touched, self.data.now)
                scheme = evictable.scheme(request[1], self._delay)
            if scheme is not None:
                free_at, delayed = self.memory.on_trial(request, scheme.blocks, missing)
                delay = max(scheme.delay, free_at - self.compute.now)
            elif self._fits_in_empty_memory(task, request):
                delay, delayed = self._defragmentation_ns(task), self._unplaceable(task, request, missing)
            else:
                continue
            candidates.append(AlgorithmCandidate(choice, delay, sum(self.tasks.in_ns[b] for b in delayed)))
        return candidates

    def _unplaceable(self, task: Task, workspace: Request, missing: Iterable[int]) -> list[int]:
        """The blocks to prefetch that do not fit in memory together with the task's own blocks."""
        available = self.capacity - sum(self.tasks.sizes[b] for b in task.touched) - workspace[1]
        failed = []
        for b in missing:
            if self.tasks.sizes[b] <= available:
                available -= self.tasks.sizes[b]
            else:
                failed.append(b)
        return failed

    def _fits_in_empty_memory(self, task: Task, workspace: Request) -> bool:
        """Whether the task's blocks and this workspace fit in otherwise empty memory."""
        return sum(self.tasks.sizes[b] for b in task.touched) + workspace[1] <= self.capacity

    # --- lines 15 to 27: prefetching --------------------------------------------------------------------------

    def _next_prefetch(self, index: int) -> tuple[int, tuple[int, ...]] | None:
        """The next task that needs offloaded blocks, and these blocks."""
        while self._needed_next:
            use, b = self._needed_next[0]
            if b in self.offloaded and use > index and use == self.tasks.next_use(b, index):
                return use, tuple(each for each in self.tasks.tasks[use].inputs if each in self.offloaded)
            heappop(self._needed_next)
        return None

    def _prefetch(self, index: int, duration: int) -> None:
        while (pending := self._next_prefetch(index)) is not None:
            use, missing = pending
            if not should_start(self.tasks, index, use, missing):
                return
            if not will_fit(self.tasks, self.memory, index, use, self.capacity):
                return
            expected = self.compute.now + duration + self.tasks.fast[use] - self.tasks.fast[index + 1]
            needed = {b for each in self.tasks.tasks[index : use + 1] for b in each.touched}
            for b in missing:
                if not self._fetch(b, index, needed, expected):
                    return

    def _fetch(self, b: int, index: int, needed: Collection[int], expected: int) -> bool:
        """Begin to fetch a block for a task that should start at `expected`; False where it does not fit.

        needed: blocks of that task and all earlier ones, which must stay.
        """
        boundary = self.compute.point()
        if not self.memory.acquire(b):
            scheme = self.memory.scheme(self.memory.request(b)[1], needed, self.data.now, self._lateness(b, expected))
            if scheme is None:
                return False
            self._evict_behind(scheme.blocks, boundary, index)
            self.memory.acquire(b)
        self.data.wait(boundary)
        self.data.do(Acquire((b,), offsets=(self.memory.offset(b),)))
        self._copy(b, out=False)
        self.memory.arriving[b] = self.data.point()
        self.memory.freed_after.pop(b, None)
        self.offloaded.discard(b)
        return True

    def _lateness(self, b: int, expected: int) -> Delay:
        """The delay of a fetch by the times at which the offloads before it end."""

        def late(offloaded_ns: Ints) -> Ints:
            begin = np.maximum(offloaded_ns, max(self.data.now, self.compute.now))
            delay: Ints = np.maximum(0, begin + (self.tasks.in_ns[b] - expected))
            return delay

        return late

    def _evict_behind(self, blocks: tuple[int, ...], boundary: Point, index: int) -> None:
        """Free the memory of blocks on the data stream, so that the current task does not wait."""
        self._offload(blocks)
        self.data.wait(boundary)
        self.data.do(Release(blocks))
        free = self.data.point()
        for b in blocks:
            self.memory.freed.append(Freed(*self.memory.span(b), free))
            self.memory.release(b)
            self.memory.freed_after[b] = free
        self._mark_offloaded(blocks, index)

    # --- lines 28 to 31: execution ----------------------------------------------------------------------------

    def _execute(self, index: int, task: Task, duration: int, workspace: Request | None) -> None:
        memory, compute = self.memory, self.compute
        self.starts.append(compute.now)
        compute.do(Launch(task.kernel), duration)
        memory.unused.difference_update(task.inputs, task.saved)
        if workspace is not None:
            self.pool.release(workspace)
            compute.do(ReleaseWorkspace(task.kernel))
        if task.dying:
            compute.do(Release(task.dying))
        for b in task.dying:
            memory.release(b)
        end = compute.point()
        for b in task.writes:
            memory.written[b] = end
            memory.on_host.discard(b)


class AlgorithmCandidate(NamedTuple):
    """An algorithm with its penalties (ns): offloading for its workspace, and prefetches that it delays."""

    choice: AlgorithmChoice
    offloading_ns: int
    delayed_ns: int

    def gain(self, base_ns: int) -> int:
        """Equation 10, nanoseconds. base_ns: duration of the algorithm with the least workspace.

        >>> AlgorithmCandidate(AlgorithmChoice("F1", "fft", 60, 500), offloading_ns=10, delayed_ns=5).gain(100)
        25
        """
        return base_ns - self.choice.duration_ns - self.offloading_ns - self.delayed_ns


def smallest_workspace(choices: tuple[AlgorithmChoice, ...]) -> AlgorithmChoice:
    """Equation 10's base algorithm: the smallest workspace, and the fastest of those."""
    return min(choices, key=lambda choice: (choice.workspace_bytes, choice.duration_ns, choice.algorithm))


def best(candidates: list[AlgorithmCandidate], base_ns: int) -> AlgorithmChoice | None:
    """The candidate of maximum gain; of equal ones the one with the smaller workspace, then the first by name."""
    if not candidates:
        return None
    winner = min(candidates, key=lambda c: (-c.gain(base_ns), c.choice.workspace_bytes, c.choice.algorithm))
    return winner.choice


def should_start(tasks: Tasks, now: int, task: int, missing: Iterable[int]) -> bool:
    """Equation 9: whether fetching a task's missing blocks would delay it if it began only after task `now`.

    The task's expected start is the sum of the fastest times up to it plus all delays so far. The current time contains
    these delays too, so it suffices to compare the transfers with the fastest times of the tasks in between.
    """
    return sum(tasks.in_ns[b] for b in missing) > tasks.fast[task] - tasks.fast[now + 1]


def will_fit(tasks: Tasks, memory: DeviceMemory, now: int, task: int, capacity: int) -> bool:
    """Whether all tasks after `now` up to `task` are likely to run without defragmentation.

    The paper's assumption: from before task `now` on, every block can be offloaded except those that were not used
    since they were created or fetched, and all missing blocks are fetched in time and thus used. capacity: bytes for
    data blocks.
    """
    unused = set(memory.unused)
    for index in range(now, task + 1):
        each = tasks.tasks[index]
        if index > now:
            workspace = min((choice.workspace_bytes for choice in each.choices), default=0)
            if sum(tasks.sizes[b] for b in unused.union(each.touched)) + workspace > capacity:
                return False
        unused.update(each.outputs)
        unused.difference_update(each.inputs, each.dying, each.saved)
    return True
