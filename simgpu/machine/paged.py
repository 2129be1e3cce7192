"""Unified Memory over time: kernels that stall until the pages they access have arrived.

A kernel accesses its pages first and computes afterwards, for its recorded duration: which part of it could overlap
with a batch of faults is not recorded, and the order matters only if another kernel uses memory or link meanwhile. A
batch takes the fault latency, as often as its faults are served, and the host's time for pages that it has written;
then the copies of evicted chunks, then those of fetched pages. Batches are served one after the other, first in, first
out; memory is reallocated when a batch begins to be served.

Where the program also migrates pages ahead of need (`simgpu.machine.paged_ahead`), a kernel waits for those of its
pages that are on their way, and faults only on those that are not. Copies for faults come before others that wait for
the link, and after a chunk that is passing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.machine.containers import Container
from simgpu.machine.implicit_streams import ImplicitStreams
from simgpu.machine.instants import InstantOrder, InstantPhase
from simgpu.machine.page_accesses import NextUses, block_accesses, page_accesses
from simgpu.machine.simulator import Events, KernelStep, Step, Stream
from simgpu.memory.chunks import Batch, BatchTooLargeError, Chunk, Parts, Reclaim
from simgpu.memory.paged_ahead import PrefetchingPool
from simgpu.memory.pool import CountingPool
from simgpu.memory.prefetching import Prefetcher
from simgpu.memory.transfer import copy_ns
from simgpu.program.instructions import DEVICE, HOST
from simgpu.program.paging import GROUP, Paged
from simgpu.timeline.streams import OWN_ENGINES
from simgpu.units import format_bytes


class Link:
    """The two directions of the GPU's link, for pages. rates: bytes per second of each, in the order of the engines.

    free_at: when each direction is free, as far as it is known; one for both where they exclude each other.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> link = Link(NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**9, 10**9)), None)
    >>> link.book("d2h", 0, 100), link.book("d2h", 50, 100), link.book("h2d", 50, 100)
    ((0, 100), (100, 200), (50, 150))
    """

    def __init__(self, node: NodeSpec, bandwidth: int | None) -> None:
        rates = node.link.d2h_bandwidth, node.link.h2d_bandwidth
        self.rates = dict(
            zip(OWN_ENGINES, rates if bandwidth is None else (min(r, bandwidth) for r in rates), strict=True)
        )
        self.latency_ns = node.link.latency_ns
        out, back = OWN_ENGINES
        exclusive = node.gpu.copy_engines == 1 or node.link.duplex is Duplex.HALF
        self._direction = {out: out, back: out if exclusive else back}
        self._free_at = dict.fromkeys(OWN_ENGINES, 0)

    def free_at(self, engine: str) -> int:
        """When this direction is free."""
        return self._free_at[self._direction[engine]]

    def book(self, engine: str, at: int, size: int, *, follows: bool = False) -> tuple[int, int]:
        """Copy some bytes as soon as the direction is free, not before a time; begin and end. follows: whether it
        belongs to a copy before, whose latency is the link's."""
        begin = max(at, self.free_at(engine))
        end = begin + copy_ns(size, self.rates[engine], 0 if follows else self.latency_ns)
        self._free_at[self._direction[engine]] = end
        return begin, end


@dataclass(slots=True)
class Migrated:
    """What migrated in an iteration: batches of faults, pages that they fetched, and bytes copied to the device and
    from it ahead of need."""

    batches: int = 0
    faults: int = 0
    prefetched: int = 0
    evicted_ahead: int = 0


class Moving(NamedTuple):
    """A chunk on its way: what succeeds when it is there, and the rank of the stream that shows it."""

    there: simpy.Event
    by: int


class PageFaults:
    """Serves the page faults of a GPU's kernels, as a `simgpu.machine.implicit_streams.Residency`.

    ahead: whether the program migrates pages ahead of need. server: serves one batch at a time. moving: chunks that are
    on their way, to the device ahead of need or from it. running: kernels under way; changed: succeeds when one begins
    or ends, None while nobody waits for it. migrated: by iteration.
    """

    def __init__(
        self,
        env: InstantOrder,
        graph: TaskGraph,
        node: NodeSpec,
        how: Paged,
        implicit: ImplicitStreams,
        capacity: int | None,
        reclaim: Reclaim,
        *,
        ahead: bool = False,
        sees_future: bool = False,
    ) -> None:
        self.env = env
        self.graph = graph
        self.how = how
        self.implicit = implicit
        self.ahead = ahead
        self.next_uses = NextUses(graph)
        self.pages = PrefetchingPool(
            graph.sizes,
            capacity,
            node.gpu.alignment,
            page=how.page,
            chunk=how.chunk,
            fault_batch=how.pages_per_batch,
            prefetcher=Prefetcher(max(GROUP // how.page, 1), how.prefetch) if how.prefetch else None,
            first_touch=how.first_touch,
            write_back_clean=how.write_back_clean,
            reclaim=reclaim,
            uses=self.next_uses.ahead if sees_future else None,
        )
        self.memory = Container(DEVICE, self.pages)
        # What is only on the host: `note` sets its bytes.
        self.host = Container(HOST, CountingPool(None))
        self.link = Link(node, how.bandwidth)
        self.accesses = block_accesses(graph)
        self.server = simpy.Resource(env)
        self.moving: dict[Chunk, Moving] = {}
        self.running = 0
        self.changed: simpy.Event | None = None
        self.migrated: defaultdict[int, Migrated] = defaultdict(Migrated)

    def step(self, kernel: KernelStep) -> Step:
        """The step of a kernel."""
        return _FaultingKernelStep(self, kernel)

    def notes(self, iteration: int) -> tuple[str, ...]:
        """Notes on an iteration."""
        each = self.migrated[iteration]
        notes = []
        if each.batches:
            notes.append(f"{each.faults:,} pages in {each.batches:,} batches of page faults in the last iteration")
        for size, what in ((each.prefetched, "prefetched"), (each.evicted_ahead, "evicted ahead of need")):
            if size:
                notes.append(f"{format_bytes(size)} {what} in the last iteration")
        return tuple(notes)

    def note(self) -> None:
        """Log the bytes in use, if they have changed."""
        host = self.host.pool
        host.live = host.used = self.pages.host_only
        for memory in (self.memory, self.host):
            if not memory.used or memory.used[-1] != memory.pool.used:
                memory.log(self.env.instant)

    def kernel_changed(self, running: int, kernel: int) -> None:
        """A kernel has begun (1) or ended (-1); `kernel` is the one that runs, or the next."""
        self.running += running
        self.next_uses.kernel = kernel
        if self.changed is not None:
            changed, self.changed = self.changed, None
            changed.succeed()

    # --- faults ---------------------------------------------------------------------------------------------

    def serve(self, stream: Stream, k: int, batch: Batch, since: int) -> int:
        """Begin to serve a batch that a kernel has waited for; returns how long that takes, 0 if all of its pages have
        been fetched meanwhile."""
        missing = next(iter(batch)).block
        moves, at = self._begun(stream, k, batch, since)
        for engine, parts in moves:
            at = self._copy(stream, engine, parts, at, missing)
        return at - self.env.instant

    def serve_while_migrating(self, stream: Stream, k: int, batch: Batch, since: int) -> Events:
        """As `serve`, where others migrate ahead of need: they may use the link until the copies begin."""
        missing, env = next(iter(batch)).block, self.env
        since = yield from self._await_moving(stream, batch, since)
        moves, at = self._begun(stream, k, batch, since)
        for engine, parts in moves:
            yield env.timeout(at - env.instant)
            at = self._copy(stream, engine, parts, at, missing)
            if engine == OWN_ENGINES[0]:
                self.evicting(self.pages.victims, at, self.implicit.copies_of[stream.rank][engine])
        yield env.timeout(at - env.instant)

    def _begun(self, stream: Stream, k: int, batch: Batch, since: int) -> tuple[list[tuple[str, Parts]], int]:
        """What is copied for a batch, by engine, and when that begins."""
        missing, now = next(iter(batch)).block, self.env.instant
        try:
            evicted, fetched, times, host_pages = self.pages.serve(batch)
        except BatchTooLargeError as error:
            raise self._out_of_memory(k, batch, error.need) from None
        if not batch:
            self.implicit.stall(stream, since, now, missing)
            return [], now
        self.note()
        migrated = self.migrated[stream.iteration]
        migrated.batches += times
        migrated.faults += sum(absent.bit_count() for absent, _ in batch.values())
        at = now + times * self.how.fault_latency_ns + host_pages * self.how.host_page_ns
        self.implicit.stall(stream, since, at, missing)
        out, back = OWN_ENGINES
        moves = [(out, evicted)] if evicted else []
        if fetched:
            moves.append((back, fetched))
        return moves, at

    def _copy(self, stream: Stream, engine: str, parts: Parts, at: int, missing: int) -> int:
        """Copy parts of blocks for a kernel, which waits for it; returns the end."""
        begin, end = self.link.book(engine, at, sum(size for _, size in parts))
        by = self.implicit.copies_of[stream.rank][engine]
        self.implicit.copies(stream, by, engine, parts, begin, end)
        self.implicit.stall(stream, at, end, missing, by)
        return end

    def _await_moving(self, stream: Stream, batch: Batch, since: int) -> Generator[simpy.Event, Any, int]:
        """Wait until none of a batch's chunks is on its way, and the rest does not have to wait for memory; returns
        since when the kernel waits for that rest.

        Prefetches that can begin at this instant begin before a fault is served.
        """
        while True:
            yield self.env.timeout(0)
            chunk = next((chunk for chunk in batch if chunk in self.moving), None)
            if chunk is None and not self.pages.can_serve(batch):
                chunk = next(iter(self.moving), None)
            if chunk is None:
                return since
            there, by = self.moving[chunk]
            yield there
            self.implicit.stall(stream, since, self.env.instant, chunk.block, by)
            since = self.env.instant

    def evicting(self, chunks: Iterable[Chunk], until: int, by: int) -> None:
        """Chunks are on their way to the host until a time. by: the stream that shows it."""
        if until == self.env.instant:
            return
        evicted = [chunk for chunk in chunks if chunk not in self.moving]
        there = self.env.process(self._evicting(evicted, until - self.env.instant))
        self.moving.update(dict.fromkeys(evicted, Moving(there, by)))

    def _evicting(self, chunks: Iterable[Chunk], duration: int) -> Events:
        yield self.env.timeout(duration)
        for chunk in chunks:
            del self.moving[chunk]

    def _out_of_memory(self, k: int, batch: Batch, need: int) -> OutOfMemoryError:
        graph, pages = self.graph, self.pages
        kernel = graph.kernels[k]
        what = f"a batch of faults of kernel {kernel.id} ({kernel.op})"
        missing: Counter[str] = Counter()
        for chunk, (absent, _) in batch.items():
            missing[graph.blocks[chunk.block].id] += pages.bytes_of(chunk, absent)
        largest = tuple(sorted(missing.items(), key=lambda part: (-part[1], part[0])))
        free, limit = pages.limit - pages.used, pages.limit
        return OutOfMemoryError(what, self.memory.name, need, free, free, limit, int(self.env.now), largest, kernel.id)


@dataclass(frozen=True, slots=True)
class _FaultingKernelStep:
    """Run a kernel after all of its accesses."""

    faults: PageFaults
    kernel: KernelStep

    def perform(self, stream: Stream) -> Events:
        yield stream.turn(InstantPhase.START)
        faults, k = self.faults, self.kernel.name
        faults.kernel_changed(1, k)
        for batch in faults.pages.access(page_accesses(faults.accesses[k], faults.pages)):
            faults.note()
            since = stream.env.instant
            with faults.server.request() as server:
                yield server
                if faults.ahead:
                    yield from faults.serve_while_migrating(stream, k, batch, since)
                elif duration := faults.serve(stream, k, batch, since):
                    yield stream.env.timeout(duration)
                faults.pages.arrive(batch)
        faults.note()
        waits = self.kernel.perform(stream)
        if waits is not None:
            yield from waits
        faults.kernel_changed(-1, k + 1)
