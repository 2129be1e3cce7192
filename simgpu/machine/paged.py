"""Unified Memory over time: kernels that stall until the pages they access have arrived.

A kernel accesses its pages first and computes afterwards, for its recorded duration: which part of it could overlap
with a batch of faults is not recorded, and the order matters only if another kernel uses memory or link meanwhile. A
batch takes the fault latency, as often as its faults are served, and the host's time for pages that it has written;
then the copies of evicted chunks, then those of fetched pages. Batches are served one after the other, first in, first
out; memory is reallocated when a batch begins to be served.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import simpy

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.containers import Container
from simgpu.machine.implicit_streams import ImplicitStreams
from simgpu.machine.instants import InstantOrder, InstantPhase
from simgpu.machine.page_accesses import block_accesses, page_accesses
from simgpu.machine.simulator import Events, KernelStep, Step, Stream
from simgpu.memory.chunks import Batch, BatchTooLargeError, Reclaim
from simgpu.memory.paged import PagedPool
from simgpu.memory.pool import CountingPool
from simgpu.memory.prefetching import Prefetcher
from simgpu.memory.transfer import copy_ns
from simgpu.program.instructions import DEVICE, HOST
from simgpu.program.paging import GROUP, Paged
from simgpu.timeline.streams import OWN_ENGINES


class PageFaults:
    """Serves the page faults of a GPU's kernels, as a `simgpu.machine.implicit_streams.Residency`.

    server: serves one batch at a time. counts: batches and pages by iteration.
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
    ) -> None:
        self.env = env
        self.graph = graph
        self.how = how
        self.implicit = implicit
        self.pages = PagedPool(
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
        )
        self.memory = Container(DEVICE, self.pages)
        # What is only on the host: `note` sets its bytes.
        self.host = Container(HOST, CountingPool(None))
        link_rates = node.link.d2h_bandwidth, node.link.h2d_bandwidth
        self.rates = (
            link_rates
            if how.bandwidth is None
            else (min(link_rates[0], how.bandwidth), min(link_rates[1], how.bandwidth))
        )
        self.latency_ns = node.link.latency_ns
        self.accesses = block_accesses(graph)
        self.server = simpy.Resource(env)
        self.counts: dict[int, tuple[int, int]] = {}

    def step(self, kernel: KernelStep) -> Step:
        """The step of a kernel."""
        return _FaultingKernelStep(self, kernel)

    def notes(self, iteration: int) -> tuple[str, ...]:
        """Notes on an iteration."""
        batches, pages = self.counts.get(iteration, (0, 0))
        if not batches:
            return ()
        return (f"{pages:,} pages in {batches:,} batches of page faults in the last iteration",)

    def note(self) -> None:
        """Log the bytes in use, if they have changed."""
        host = self.host.pool
        host.live = host.used = self.pages.host_only
        for memory in (self.memory, self.host):
            if not memory.used or memory.used[-1] != memory.pool.used:
                memory.log(self.env.instant)

    def serve(self, stream: Stream, k: int, batch: Batch, since: int) -> int:
        """Begin to serve a batch that a kernel has waited for; returns how long that takes, 0 if other kernels have
        fetched all of its pages."""
        now, pages = self.env.instant, self.pages
        missing = next(iter(batch)).block
        try:
            evicted, fetched, times, host_pages = pages.serve(batch)
        except BatchTooLargeError as error:
            raise self._out_of_memory(k, batch, error.need) from None
        if not batch:
            self.implicit.stall(stream, since, now, missing)
            return 0
        self.note()
        batches, faults = self.counts.get(stream.iteration, (0, 0))
        faults += sum(absent.bit_count() for absent, _ in batch.values())
        self.counts[stream.iteration] = batches + times, faults
        at = now + times * self.how.fault_latency_ns + host_pages * self.how.host_page_ns
        self.implicit.stall(stream, since, at, missing)
        for engine, parts, rate in zip(OWN_ENGINES, (evicted, fetched), self.rates, strict=True):
            if parts:
                end = at + copy_ns(sum(size for _, size in parts), rate, self.latency_ns)
                self.implicit.copies(stream, engine, parts, at, end)
                self.implicit.stall(stream, at, end, missing, engine)
                at = end
        return at - now

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
        for batch in faults.pages.access(page_accesses(faults.accesses[k], faults.pages)):
            faults.note()
            since = stream.env.instant
            with faults.server.request() as server:
                yield server
                duration = faults.serve(stream, k, batch, since)
                if duration:
                    yield stream.env.timeout(duration)
                faults.pages.arrive(batch)
        faults.note()
        yield from self.kernel.perform(stream)
