"""Unified Memory over time: kernels that stall until the pages they touch have come.

A kernel visits its pages first and computes then, for its recorded duration: where between its faults it computes makes
no difference, unless another kernel uses memory or link at the same time, and which part of it could go on while a
batch of faults is under way is not recorded. A batch takes the fault latency; then what has to leave passes over the
link, and after it what comes. One batch is served after the other, first in, first out. Memory changes hands when
a batch begins to be served.
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
from simgpu.machine.code import COPY_IN, COPY_OUT
from simgpu.machine.implicit_streams import ImplicitStreams
from simgpu.machine.page_accesses import tours_of, visits_of
from simgpu.machine.stream import Stream, TimedMemory, unset
from simgpu.memory.paged import Batch, NoRoomError, PagedPool, Reclaim
from simgpu.memory.pool import CountingPool, Pool
from simgpu.memory.transfer import copy_ns
from simgpu.program.paging import Paged
from simgpu.timeline.model import MemoryCurve


class _Levels(list[int]):
    """Bytes in use after each change; the number of the change does not matter. live: the same without padding."""

    def __init__(self, memory: PagedMemory) -> None:
        super().__init__()
        self.memory = memory
        self.live: list[int] = []

    def append(self, _: int) -> None:
        live, used = self.memory.level()
        super().append(used)
        self.live.append(live)


class PagedMemory(TimedMemory):
    """A memory whose requests do not tell how much is in use, so that its log holds the levels themselves.

    level: bytes in use now, without and with padding.
    """

    __slots__ = ("level", "levels")

    def __init__(self, name: str, pool: Pool, level: Callable[[], tuple[int, int]]) -> None:
        super().__init__(name, pool)
        self.level = level
        self.changes = self.levels = _Levels(self)

    def note(self, now: int) -> None:
        """Log what is in use, where that is another level than before."""
        if not self.levels or self.levels[-1] != self.level()[1]:
            self.log(now, 0)

    def curve(self) -> MemoryCurve:
        """The use over time."""
        times, live, used = (np.array(column, dtype=np.int64) for column in (self.times, self.levels.live, self.levels))
        return MemoryCurve(times, live, used, self.pool.capacity)


@dataclass(slots=True, eq=False)
class _Kernel:
    """A kernel that visits its pages. batch: what it waits for, since when."""

    stream: Stream
    number: int
    walk: Iterator[Batch]
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
        self.away = PagedMemory("host", CountingPool(None), lambda: (pages.away, pages.away))
        self.memory: TimedMemory = self.device
        self.host: TimedMemory = self.away
        ways = node.link.d2h_bandwidth, node.link.h2d_bandwidth
        self.rates = ways if how.bandwidth is None else (min(ways[0], how.bandwidth), min(ways[1], how.bandwidth))
        self.latency_ns = node.link.latency_ns
        self.tours = tours_of(graph)
        self.queue: deque[_Kernel] = deque()
        self.busy = False
        self.counts: dict[int, tuple[int, int]] = {}

    def launch(self, kernel: int) -> Callable[[Stream, object], None]:
        """What begins that kernel."""

        def begin(stream: Stream, _: object) -> None:
            self._go_on(_Kernel(stream, kernel, self.pages.walk(visits_of(self.tours[kernel], self.pages))))

        return begin

    def notes(self, iteration: int) -> tuple[str, ...]:
        """What there is to say of an iteration."""
        batches, pages = self.counts.get(iteration, (0, 0))
        if not batches:
            return ()
        return (f"{pages:,} page faults in {batches:,} batches in the last iteration",)

    def _note(self) -> None:
        now = int(self.env.now)
        self.device.note(now)
        self.away.note(now)

    def _go_on(self, kernel: _Kernel) -> None:
        """It visits pages until some must come, or computes if all have been visited."""
        now = int(self.env.now)
        batch = next(kernel.walk, None)
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
        """Begin with the next batch in line; those that take no time are over at once."""
        while self.queue:
            kernel = self.queue.popleft()
            lasts = self._move(kernel)
            if lasts:
                self.env.timeout(lasts).callbacks.append(self._arrival(kernel))
                return
            self._came(kernel)
        self.busy = False

    def _arrival(self, kernel: _Kernel) -> Callable[[simpy.Event], None]:
        def arrive(_: simpy.Event) -> None:
            self._came(kernel)
            self._serve()
            self.settled()

        return arrive

    def _came(self, kernel: _Kernel) -> None:
        self.pages.arrive(kernel.batch)
        self._go_on(kernel)

    def _move(self, kernel: _Kernel) -> int:
        """Begin to serve a batch; returns how long it takes. Another kernel may have had all of its pages brought."""
        now, pages, stream = int(self.env.now), self.pages, kernel.stream
        wanted = next(iter(kernel.batch)).block
        try:
            out, back = pages.serve(kernel.batch)
        except NoRoomError as error:
            raise self._out_of_memory(kernel, error.need) from None
        if not kernel.batch:
            self.implicit.stall(stream, kernel.since, now, wanted)
            return 0
        self._note()
        batches, faults = self.counts.get(stream.iteration, (0, 0))
        faults += sum(absent.bit_count() for absent, _ in kernel.batch.values())
        self.counts[stream.iteration] = batches + 1, faults
        at = now + self.how.fault_latency_ns
        self.implicit.stall(stream, kernel.since, at, wanted)
        for kind, parts, rate in ((COPY_OUT, out, self.rates[0]), (COPY_IN, back, self.rates[1])):
            if parts:
                end = at + copy_ns(sum(size for _, size in parts), rate, self.latency_ns)
                self.implicit.copies(stream, kind, parts, at, end)
                self.implicit.stall(stream, at, end, wanted, kind)
                at = end
        return at - now

    def _out_of_memory(self, kernel: _Kernel, need: int) -> OutOfMemoryError:
        graph, pages = self.graph, self.pages
        asking = graph.kernels[kernel.number]
        what = f"a batch of faults of kernel {asking.id} ({asking.op})"
        wanted: Counter[str] = Counter()
        for chunk, (absent, _) in kernel.batch.items():
            wanted[graph.blocks[chunk.block].id] += pages.bytes_of(chunk, absent)
        largest = tuple(sorted(wanted.items(), key=lambda part: (-part[1], part[0])))
        free, limit = pages.limit - pages.used, pages.limit
        return OutOfMemoryError(what, self.memory.name, need, free, free, limit, int(self.env.now), largest, asking.id)
