"""Which chunks are in device memory, how many bytes they take, and which of them leave: the base of `PagedPool`."""

from __future__ import annotations

from collections.abc import Callable

from simgpu.errors import ProgramError
from simgpu.memory.chunks import Batch, Chunk, Parts, Reclaim, ResidentChunks, append_part
from simgpu.memory.pool import UNLIMITED


class DeviceChunks:
    """Device memory in chunks of pages. capacity: bytes, None for unlimited; page: bytes of one.

    live, used: bytes of device memory, without and with padding; high_water: the most that were used. serving: those of
    the batch of faults that is being served; in_flight: others on their way. Neither can be evicted. host_only: bytes
    whose values are only on the host. victims: the chunks that were evicted last, together.
    """

    def __init__(
        self,
        capacity: int | None,
        page: int,
        *,
        write_back_clean: bool,
        reclaim: Reclaim,
        uses: Callable[[int], int] | None,
    ) -> None:
        self.capacity = capacity
        self.limit = UNLIMITED if capacity is None else capacity
        self.page = page
        self.write_back_clean = write_back_clean
        self.reclaim = reclaim
        self._residents = ResidentChunks(uses)
        self.live = self.used = self.high_water = 0
        self.serving = self.in_flight = self.host_only = 0
        self.victims: list[Chunk] = []

    @property
    def residents(self) -> ResidentChunks:
        """The chunks with pages in device memory, in both orders."""
        return self._residents

    def bytes_of(self, chunk: Chunk, pages: int) -> int:
        """Bytes of some pages of a chunk."""
        size = pages.bit_count() * self.page
        return size - chunk.short if pages & chunk.last else size

    def _touch_resident(self, batch: Batch) -> None:
        """Record accesses to chunks of a batch that have resident pages."""
        touched = self.residents.touched
        for chunk in batch:
            if chunk.resident:
                touched.move_to_end(chunk)

    def _make_room(self, need: int) -> Parts:
        """Evict chunks until `need` bytes are free, for a prefetch as far as the policy lets them go."""
        evicted: Parts = []
        self.victims = []
        while self.limit - self.used < need:
            residents = self.residents
            victim = self.reclaim(residents)
            if victim is None and residents.for_prefetch:
                break
            if type(victim) is not Chunk or victim not in residents.touched:
                raise ProgramError("the policy's reclaim picks a chunk that is not in device memory")
            self.victims.append(victim)
            append_part(evicted, victim.block, self._evict(victim))
        return evicted

    def _allocate_batch(self, batch: Batch) -> tuple[Parts, int]:
        """Allocate the pages of a batch; what is fetched for them, and how many of them the host has written."""
        fetched: Parts = []
        host_pages = 0
        for chunk, (pages, _) in batch.items():
            self._enter(chunk, pages)
            chunk.coming |= pages
            host_pages += (pages & chunk.by_host).bit_count()
            chunk.by_host &= ~pages
            copied = self.bytes_of(chunk, pages & chunk.on_host)
            self.host_only -= copied
            append_part(fetched, chunk.block, copied)
        return fetched, host_pages

    def _bytes_of_batch(self, batch: Batch) -> int:
        return sum(self.bytes_of(chunk, pages) for chunk, (pages, _) in batch.items())

    def arrive(self, batch: Batch) -> None:
        """Mark the pages of a served batch as resident."""
        self.serving = 0
        self._mark_resident(batch)

    def _mark_resident(self, batch: Batch) -> None:
        for chunk, (pages, dirty) in batch.items():
            chunk.coming &= ~pages
            chunk.resident |= pages
            chunk.dirty |= dirty | (pages & ~chunk.on_host)
            self._mark_arrived(chunk)

    def _evict(self, chunk: Chunk) -> int:
        """Evict a chunk; returns how many bytes are copied to the host."""
        size = self.bytes_of(chunk, chunk.resident)
        copied = size if self.write_back_clean else self.bytes_of(chunk, chunk.dirty)
        chunk.on_host |= chunk.resident
        self.host_only += size
        self._drop(chunk)
        return copied

    def _mark_arrived(self, chunk: Chunk) -> None:
        residents = self.residents
        touched, arrived = residents.touched, residents.arrived
        touched[chunk] = arrived[chunk] = None
        touched.move_to_end(chunk)
        arrived.move_to_end(chunk)

    def _drop(self, chunk: Chunk) -> None:
        self._count(chunk, chunk.resident, -1)
        self._forget(chunk)

    def _forget(self, chunk: Chunk) -> None:
        chunk.resident = chunk.dirty = 0
        self._residents.touched.pop(chunk, None)
        self._residents.arrived.pop(chunk, None)

    def _enter(self, chunk: Chunk, pages: int) -> None:
        self._count(chunk, pages, 1)
        self.high_water = max(self.high_water, self.used)

    def _count(self, chunk: Chunk, pages: int, sign: int) -> None:
        size = self.bytes_of(chunk, pages)
        self.used += sign * size
        self.live += sign * (size - (chunk.padding if pages & chunk.last else 0))
