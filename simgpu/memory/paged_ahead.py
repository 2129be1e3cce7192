"""Pages on demand that may also migrate ahead of their use, as `cudaMemPrefetchAsync` lets them, chunk by chunk.

A chunk that is prefetched has memory, and its pages are on their way, until they arrive; chunks are evicted for it as
for a fault. A chunk that is evicted ahead of need keeps its memory until its last byte has left.
"""

from __future__ import annotations

from collections.abc import Hashable

from simgpu.memory.chunks import Batch, Chunk, Migration
from simgpu.memory.paged import PagedPool


class PrefetchingPool(PagedPool):
    """A `PagedPool` with migrations ahead of need.

    >>> pool = PrefetchingPool([100, 100], 100, page=100, chunk=100, fault_batch=1)
    >>> pool.acquire(pool.prepare([0, 1], [100, 100]))  # the second block stays on the host
    True
    >>> (chunk,) = pool.chunks(1)
    >>> migration, batch = pool.prefetch(chunk)
    >>> migration.evicted, migration.fetched, pool.absent(chunk)
    ([(0, 100)], [(1, 100)], 0)
    >>> pool.arrive_ahead(batch)
    >>> pool.begin_eviction(chunk), pool.used
    ((1, 100), 100)
    >>> pool.end_eviction(chunk, 1)
    >>> pool.used
    0
    """

    def is_whole(self, b: int) -> bool:
        """Whether a block is known to be resident from end to end."""
        return b in self._whole

    def absent(self, chunk: Chunk) -> int:
        """The pages of a chunk that are neither resident nor on their way."""
        return chunk.full & ~(chunk.resident | chunk.coming)

    def prefetch(self, chunk: Chunk) -> tuple[Migration, Batch]:
        """Begin to fetch the absent pages of a chunk; new ones get memory. Returns what moves, and what will arrive:
        nothing if too much is on its way, or the policy keeps too many chunks.
        """
        self.victims = []
        pages = self.absent(chunk)
        need = self.bytes_of(chunk, pages)
        if need > self.limit - self.in_flight - self.serving:
            return Migration([], []), {}
        batch: Batch = {chunk: [pages, 0]}
        self._touch_resident(batch)
        self._residents.for_prefetch = True
        evicted = self._make_room(need)
        self._residents.for_prefetch = False
        if self.limit - self.used < need:
            return Migration(evicted, []), {}
        fetched, host_pages = self._allocate_batch(batch)
        self.in_flight += need
        return Migration(evicted, fetched, host_pages=host_pages), batch

    def arrive_ahead(self, batch: Batch) -> None:
        """Mark the pages of a prefetched chunk as resident."""
        self.in_flight -= self._bytes_of_batch(batch)
        self._mark_resident(batch)

    def can_serve(self, batch: Batch) -> bool:
        """Whether memory can be had for the absent pages of a batch now, or never."""
        need = sum(self.bytes_of(chunk, pages & ~chunk.resident) for chunk, (pages, _) in batch.items())
        return need <= self.limit - self.in_flight or need > self.limit

    def begin_eviction(self, chunk: Chunk) -> tuple[int, int]:
        """Begin to evict a chunk: the pages that leave, and how many bytes are copied. They keep their memory."""
        pages = chunk.resident
        size = self.bytes_of(chunk, pages)
        copied = self._evict(chunk)
        self._count(chunk, pages, 1)
        self.in_flight += size
        return pages, copied

    def end_eviction(self, chunk: Chunk, pages: int) -> None:
        """Release the memory of pages that have left."""
        self.in_flight -= self.bytes_of(chunk, pages)
        self._count(chunk, pages, -1)

    def state(self) -> Hashable:
        """As that of `PagedPool`, with the pages that are on their way."""
        coming = [
            (chunk.block, chunk.index, chunk.coming)
            for chunks in self._chunks.values()
            for chunk in chunks
            if chunk.coming
        ]
        return super().state(), tuple(sorted(coming))
