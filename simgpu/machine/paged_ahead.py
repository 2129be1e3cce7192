"""Pages that migrate ahead of need, on a copy stream: what `Copy` does in a program whose blocks are on demand.

To the device, it is `cudaMemPrefetchAsync`: the absent pages of the block migrate without faults, chunk by chunk, as
the driver goes from VA block to VA block (nvidia-uvm/uvm_migrate.c). Pages without a value get memory, as CUDA's
documentation says. The policy's `reclaim` picks chunks to evict for it; those for the next chunk are evicted while one
is fetched. If the policy keeps all, the prefetch waits until a kernel begins or ends and asks again; when no kernel is
under way, it ends without the rest. So it never blocks for good what waits for it, and pages that it lacks fault.

To the host, it evicts the chunks of the block; the memory of each is free when its last byte has been copied.

Neither pays the latency of a fault; the link's latency counts once for each block and direction. What a kernel that
computes has accessed before may be evicted at no cost to it (`simgpu.machine.paged`), so a policy's `reclaim` should
keep it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from simgpu.machine.containers import Cause
from simgpu.machine.implicit_streams import RESOURCES
from simgpu.machine.instants import InstantPhase
from simgpu.machine.paged import Moving, PageFaults
from simgpu.machine.simulator import Events, Stream
from simgpu.memory.chunks import Batch, Chunk, Migration, Parts
from simgpu.program.instructions import DEVICE
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import OWN_ENGINES

OUT, IN = OWN_ENGINES


class _Coming(NamedTuple):
    """A chunk that has memory: what is to arrive, what moves for it, and from when on it can be fetched."""

    chunk: Chunk
    batch: Batch
    migration: Migration
    ready_at: int


@dataclass(frozen=True, slots=True)
class PrefetchStep:
    """Fetch the absent pages of a block."""

    faults: PageFaults
    block: int

    def perform(self, stream: Stream) -> Events:
        """Chunk by chunk; the next one gets memory while one arrives."""
        yield stream.turn(InstantPhase.START)
        if self.faults.pages.is_whole(self.block):
            return
        prefetch = _Prefetch(self.faults, stream, self.block)
        while True:
            coming = yield from prefetch.begun()
            if coming is None:
                return
            while coming is not None:
                end = yield from prefetch.fetch(coming)
                following = prefetch.begin()
                yield stream.env.timeout(end - stream.env.instant)
                prefetch.arrive(coming)
                coming = following


class _Prefetch:
    """The prefetch of a block. chunks: those that may lack pages, in order. follows: the directions that it has used,
    and so has waited for the link's latency.
    """

    def __init__(self, faults: PageFaults, stream: Stream, block: int) -> None:
        self.faults = faults
        self.stream = stream
        self.env = stream.env
        self.chunks = deque(faults.pages.chunks(block))
        self.follows: set[str] = set()

    def begin(self) -> _Coming | None:
        """Begin with the next chunk that lacks pages: evict for it; None where there is none, or no memory now."""
        faults, pages = self.faults, self.faults.pages
        while self.chunks and not pages.absent(self.chunks[0]):
            self.chunks.popleft()
        if not self.chunks or self.chunks[0] in faults.moving:
            return None
        chunk, now = self.chunks[0], self.env.instant
        migration, batch = pages.prefetch(chunk)
        if batch:
            faults.moving[chunk] = Moving(self.env.event(), self.stream.rank)
        evicted_at = self._move(OUT, migration.evicted, now) if migration.evicted else now
        faults.evicting(pages.victims, evicted_at, faults.implicit.prefetch_evicts)
        faults.note()
        if not batch:
            return None
        self.chunks.popleft()
        return _Coming(chunk, batch, migration, max(evicted_at, now + migration.host_pages * faults.how.host_page_ns))

    def begun(self) -> Generator[simpy.Event, Any, _Coming | None]:
        """As `begin`, but wait for memory while kernels are under way."""
        faults, since = self.faults, self.env.instant
        while (coming := self.begin()) is None and self.chunks:
            if self.chunks[0] in faults.moving:
                yield faults.moving[self.chunks[0]].there
            elif faults.running:
                if faults.changed is None:
                    faults.changed = self.env.event()
                yield faults.changed
                yield self.env.timeout(0)  # let a kernel begin after one that has ended
            elif faults.moving:
                yield next(iter(faults.moving.values())).there
            else:
                break
        self.stream.waited(SpanKind.STALL_MEMORY, since, resource=RESOURCES.index(DEVICE))
        return coming

    def fetch(self, coming: _Coming) -> Generator[simpy.Event, Any, int]:
        """Begin to fetch a chunk as soon as it has its memory and the link is free; returns when it arrives."""
        implicit, since = self.faults.implicit, self.env.instant
        if coming.ready_at > since:
            yield self.env.timeout(coming.ready_at - since)
            self.stream.waited(
                SpanKind.STALL_EVENT, since, Cause(implicit.prefetch_evicts, implicit.first_block + coming.chunk.block)
            )
        if not coming.migration.fetched:
            return self.env.instant
        since = self.env.instant
        while (free_at := self.faults.link.free_at(IN)) > self.env.instant:
            yield self.env.timeout(free_at - self.env.instant)
        self.stream.waited(SpanKind.STALL_ENGINE, since)
        return self._move(IN, coming.migration.fetched, self.env.instant)

    def arrive(self, coming: _Coming) -> None:
        """The chunk has arrived."""
        faults = self.faults
        faults.pages.arrive_ahead(coming.batch)
        faults.moving.pop(coming.chunk).there.succeed()
        faults.note()
        faults.migrated[self.stream.iteration].prefetched += sum(size for _, size in coming.migration.fetched)

    def _move(self, engine: str, parts: Parts, at: int) -> int:
        """Copy parts of blocks; returns the end."""
        size = sum(size for _, size in parts)
        begin, end = self.faults.link.book(engine, at, size, follows=engine in self.follows)
        self.follows.add(engine)
        by = self.stream.rank if engine == IN else self.faults.implicit.prefetch_evicts
        self.faults.implicit.copies(self.stream, by, engine, parts, begin, end)
        return end


@dataclass(frozen=True, slots=True)
class EvictStep:
    """Evict the resident pages of a block."""

    faults: PageFaults
    block: int

    def perform(self, stream: Stream) -> Events:
        """Chunk by chunk, as the link is free."""
        yield stream.turn(InstantPhase.START)
        faults, env, follows = self.faults, stream.env, False
        for chunk in faults.pages.chunks(self.block):
            since = env.instant
            while chunk in faults.moving or faults.link.free_at(OUT) > env.instant:
                moving = faults.moving.get(chunk)
                yield moving.there if moving else env.timeout(faults.link.free_at(OUT) - env.instant)
            stream.waited(SpanKind.STALL_ENGINE, since)
            if not chunk.resident:
                continue
            pages, size = faults.pages.begin_eviction(chunk)
            there = env.event()
            faults.moving[chunk] = Moving(there, stream.rank)
            if size:
                begin, end = faults.link.book(OUT, env.instant, size, follows=follows)
                follows = True
                faults.note()
                yield env.timeout(end - begin)
                name = faults.implicit.first_block + self.block
                stream.worked(SpanKind.COPY, name, begin, size, RESOURCES.index(OUT))
            faults.pages.end_eviction(chunk, pages)
            del faults.moving[chunk]
            there.succeed()
            faults.note()
            faults.migrated[stream.iteration].evicted_ahead += size
