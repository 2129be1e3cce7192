"""Unified Memory over time: kernels that stall until the pages they access have arrived.

A kernel accesses its pages first and computes afterwards, for its recorded duration: which part of it could overlap
with a batch of faults is not recorded, and the order matters only if another kernel uses memory or link meanwhile. A
batch takes the fault latency, then the copies of evicted chunks, then those of fetched pages. Batches are served one
after the other, first in, first out; memory is reallocated when a batch begins to be served.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import simpy

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.code import COPY_D2H, COPY_H2D
from simgpu.machine.implicit_streams import ImplicitStreams
from simgpu.machine.page_accesses import block_accesses, page_accesses
from simgpu.machine.stream import Stream, TimedMemory, unset
from simgpu.memory.paged import Batch, BatchTooLargeError, PagedPool, Reclaim
from simgpu.memory.pool import CountingPool, Pool
from simgpu.memory.transfer import copy_ns
from simgpu.program.paging import Paged
from simgpu.timeline.model import MemoryCurve


class _Levels(list[int]):
    """Bytes in use after each change; the appended numbers are ignored. live: the same without padding."""

    def __init__(self, memory: PagedMemory) -> None:
        super().__init__()
        self.memory = memory
        self.live: list[int] = []

    def append(self, _: int) -> None:
        live, used = self.memory.level()
        super().append(used)
        self.live.append(live)


class PagedMemory(TimedMemory):
    """A memory whose requests do not determine its use, so that its log contains the levels of use.

    level: bytes in use now, without and with padding.
    """

    __slots__ = ("level", "levels")

    def __init__(self, name: str, pool: Pool, level: Callable[[], tuple[int, int]]) -> None:
        super().__init__(name, pool)
        self.level = level
        self.changes = self.levels = _Levels(self)

    def note(self, now: int) -> None:
        """Log the bytes in use, if they have changed."""
        if not self.levels or self.levels[-1] != self.level()[1]:
            self.log(now, 0)

    def curve(self, name: str, gpu: int) -> MemoryCurve:
        """The use over time, with the memory's name and GPU in the timeline."""
        times, live, used = (np.array(column, dtype=np.int64) for column in (self.times, self.levels.live, self.levels))
        return MemoryCurve(times, live, used, self.pool.capacity, name, gpu)


@dataclass(slots=True, eq=False)
class _Kernel:
    """A kernel that accesses its pages. batch: the faults it waits for; since: when its wait began."""

    stream: Stream
    number: int
    batches: Iterator[Batch]
    batch: Batch = field(default_factory=dict)
    since: int = 0


class PageFaults:
    """Serves the page faults of a GPU's kernels, as a `simgpu.machine.implicit_streams.ResidencyDriver`.

    counts: batches and pages by iteration.
    """

    def __init__(
        self,
        env: simpy.Environment,
        graph: TaskGraph,
        node: NodeSpec,
        how: Paged,
        implicit: ImplicitStreams,
        capacity: int | None,
        reclaim: Reclaim,
    ) -> None:
        self.env = env
        self.graph = graph
        self.how = how
        self.implicit = implicit
        self.settled: Callable[[], None] = unset
        self.pages = PagedPool(
            graph.sizes,
            capacity,
            node.gpu.alignment,
            page=how.page,
            chunk=how.chunk,
            fault_batch=how.fault_batch,
            write_back_clean=how.write_back_clean,
            reclaim=reclaim,
        )
        pages = self.pages
        self.device = PagedMemory("device", pages, lambda: (pages.live, pages.used))
        self.host_only = PagedMemory("host", CountingPool(None), lambda: (pages.host_only, pages.host_only))
        self.memory: TimedMemory = self.device
        self.host: TimedMemory = self.host_only
        link_rates = node.link.d2h_bandwidth, node.link.h2d_bandwidth
        self.rates = (
            link_rates
            if how.bandwidth is None
            else (min(link_rates[0], how.bandwidth), min(link_rates[1], how.bandwidth))
        )
        self.latency_ns = node.link.latency_ns
        self.accesses = block_accesses(graph)
        self.queue: deque[_Kernel] = deque()
        self.busy = False
        self.counts: dict[int, tuple[int, int]] = {}

    def launch(self, kernel: int) -> Callable[[Stream, object], None]:
        """The function that starts a kernel."""

        def begin(stream: Stream, _: object) -> None:
            self._continue(_Kernel(stream, kernel, self.pages.access(page_accesses(self.accesses[kernel], self.pages))))

        return begin

    def notes(self, iteration: int) -> tuple[str, ...]:
        """Notes on an iteration."""
        batches, pages = self.counts.get(iteration, (0, 0))
        if not batches:
            return ()
        return (f"{pages:,} page faults in {batches:,} batches in the last iteration",)

    def _note(self) -> None:
        now = int(self.env.now)
        self.device.note(now)
        self.host_only.note(now)

    def _continue(self, kernel: _Kernel) -> None:
        """The kernel accesses pages until it must wait for some, or computes after all accesses."""
        now = int(self.env.now)
        batch = next(kernel.batches, None)
        self._note()
        if batch is None:
            kernel.stream.starts.append(now)
            kernel.stream.arm(self.graph.durations[kernel.number])
            return
        kernel.batch, kernel.since = batch, now
        self.queue.append(kernel)
        if not self.busy:
            self.busy = True
            self._serve()

    def _serve(self) -> None:
        """Begin to serve the next batch in the queue; batches that take no time end at once."""
        while self.queue:
            kernel = self.queue.popleft()
            duration = self._move(kernel)
            if duration:
                self.env.timeout(duration).callbacks.append(self._arrival(kernel))
                return
            self._arrived(kernel)
        self.busy = False

    def _arrival(self, kernel: _Kernel) -> Callable[[simpy.Event], None]:
        def arrive(_: simpy.Event) -> None:
            self._arrived(kernel)
            self._serve()
            self.settled()

        return arrive

    def _arrived(self, kernel: _Kernel) -> None:
        self.pages.arrive(kernel.batch)
        self._continue(kernel)

    def _move(self, kernel: _Kernel) -> int:
        """Begin to serve a batch; returns how long it takes, 0 if other kernels have fetched all of its pages."""
        now, pages, stream = int(self.env.now), self.pages, kernel.stream
        missing = next(iter(kernel.batch)).block
        try:
            evicted, fetched = pages.serve(kernel.batch)
        except BatchTooLargeError as error:
            raise self._out_of_memory(kernel, error.need) from None
        if not kernel.batch:
            self.implicit.stall(stream, kernel.since, now, missing)
            return 0
        self._note()
        batches, faults = self.counts.get(stream.iteration, (0, 0))
        faults += sum(absent.bit_count() for absent, _ in kernel.batch.values())
        self.counts[stream.iteration] = batches + 1, faults
        at = now + self.how.fault_latency_ns
        self.implicit.stall(stream, kernel.since, at, missing)
        for kind, parts, rate in ((COPY_D2H, evicted, self.rates[0]), (COPY_H2D, fetched, self.rates[1])):
            if parts:
                end = at + copy_ns(sum(size for _, size in parts), rate, self.latency_ns)
                self.implicit.copies(stream, kind, parts, at, end)
                self.implicit.stall(stream, at, end, missing, kind)
                at = end
        return at - now

    def _out_of_memory(self, running: _Kernel, need: int) -> OutOfMemoryError:
        graph, pages = self.graph, self.pages
        kernel = graph.kernels[running.number]
        what = f"a batch of faults of kernel {kernel.id} ({kernel.op})"
        missing: Counter[str] = Counter()
        for chunk, (absent, _) in running.batch.items():
            missing[graph.blocks[chunk.block].id] += pages.bytes_of(chunk, absent)
        largest = tuple(sorted(missing.items(), key=lambda part: (-part[1], part[0])))
        free, limit = pages.limit - pages.used, pages.limit
        return OutOfMemoryError(what, self.memory.name, need, free, free, limit, int(self.env.now), largest, kernel.id)
