"""Device memory in pages on demand: which pages are resident, the order of their accesses, and what is evicted.

Pages are fetched by faults, in batches, and evicted by chunks, as in NVIDIA's driver (`simgpu.program.paging`). A
chunk is part of one block here, and blocks are packed: the last page of a block has only the block's remaining bytes,
so that blocks take no more memory than in a pool. A page is

* *new* until it gets its first value: a fault copies no bytes for it, and while memory is free it needs no fault,
  because frameworks cache freed memory and the driver does not unmap it;
* *resident*: *dirty* with the only valid copy, or clean with a valid copy on the host;
* *on the host* only.

An access to a resident page touches its chunk. Kernels access most blocks from end to end: a block that is resident
from end to end, or gets its first value in free memory, is one unit until someone looks at its chunks. Absent pages
that are accessed one after the other wait in a *batch*. It ends when it is full, or at the next resident page, because
a kernel goes no further than the first page that it waits for. Then the policy's hook picks chunks to evict, one at a
time, until the batch fits, and its pages are fetched. Chunks of the batch with resident pages are touched before that,
and all of its chunks after it.

With a prefetcher (`simgpu.memory.prefetching`), further pages of a batch's chunks are fetched with it, if memory can
hold so much at all; and a batch that begins in a chunk has all pages that the kernel accesses there one after the
other. Their faults are then served several times, with nothing between, and are one migration here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from simgpu.errors import ProgramError
from simgpu.memory.chunks import (
    Batch,
    BatchTooLargeError,
    Chunk,
    Migration,
    PageAccess,
    Reclaim,
    ResidentChunks,
    WholeAccess,
    chunks_of,
    least_recently_used,
    lowest_pages,
    pages_before,
)
from simgpu.memory.device_chunks import DeviceChunks
from simgpu.memory.pool import Request, aligned
from simgpu.memory.prefetching import Prefetcher, with_prefetched


class PagedPool(DeviceChunks):
    """The pages of all blocks in a memory of `capacity` bytes, None for unlimited.

    sizes: of every block, bytes. page, chunk: bytes; fault_batch: pages; first_touch, write_back_clean: as in
    `simgpu.program.paging.Paged`. prefetcher: None for no prefetching. reclaim: the hook; uses: see `ResidentChunks`.
    As a `Pool` it grants every request: acquiring blocks initializes them, in free memory or else on the host, and
    releasing them frees their pages in both.

    >>> pool = PagedPool([150, 100], 200, page=100, chunk=100, fault_batch=1)
    >>> def moved(b):
    ...     for batch in pool.access(pool.all_pages(b, written=True)):
    ...         migration = pool.serve(batch)
    ...         pool.arrive(batch)
    ...         yield migration.evicted, migration.fetched
    >>> [*moved(0)], pool.used  # nothing has to be evicted: no fault
    ([], 150)
    >>> [*moved(1)], pool.used
    ([([(0, 100)], [])], 150)
    >>> [*moved(0)], pool.used
    ([([(0, 50)], [(0, 100)]), ([(1, 100)], [(0, 50)])], 150)
    """

    def __init__(
        self,
        sizes: Sequence[int],
        capacity: int | None,
        alignment: int = 1,
        *,
        page: int,
        chunk: int,
        fault_batch: int,
        prefetcher: Prefetcher | None = None,
        first_touch: bool = False,
        write_back_clean: bool = True,
        reclaim: Reclaim = least_recently_used,
        uses: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(capacity, page, write_back_clean=write_back_clean, reclaim=reclaim, uses=uses)
        self.sizes = sizes
        self.alignment = alignment
        self.pages_of_chunk = chunk // page
        self.fault_batch = fault_batch
        self.prefetcher = prefetcher
        self.first_touch = first_touch
        self._chunks: dict[int, list[Chunk]] = {}
        # Blocks known to be resident from end to end. The orders of chunks lack the arrivals and accesses in the other
        # two, oldest first; accesses say whether the block was written.
        self._whole: set[int] = set()
        self._arrived: dict[int, None] = {}
        self._accessed: dict[int, bool] = {}
        self._sizes: dict[int, tuple[int, int]] = {}

    # --- blocks ---------------------------------------------------------------------------------------------

    def chunks(self, b: int) -> list[Chunk]:
        """The chunks of a block, which are created at the first call."""
        self._settle()
        if b not in self._chunks:
            self._chunks[b] = self._new(b)
        return self._chunks[b]

    @property
    def residents(self) -> ResidentChunks:
        """The chunks with pages in device memory, in both orders."""
        self._settle()
        return self._residents

    def _new(self, b: int) -> list[Chunk]:
        size = self.sizes[b]
        return chunks_of(b, size, aligned(size, self.alignment), self.page, self.pages_of_chunk)

    def all_pages(self, b: int, *, written: bool) -> Iterator[WholeAccess]:
        """Accesses to all pages of a block in order."""
        yield WholeAccess(b, written)

    # --- accesses ---------------------------------------------------------------------------------------------

    def access(self, accesses: Iterable[PageAccess | WholeAccess]) -> Iterator[Batch]:
        """Access pages in order. Each batch must be served and have arrived before the next one is requested."""
        batch: Batch = {}
        free_slots = self.fault_batch
        for access in accesses:
            if isinstance(access, WholeAccess):
                b, written = access
                full = not free_slots and all(chunk.block != b for chunk in batch)
                if batch and (full or b in self._whole):
                    yield batch
                    batch, free_slots = {}, self.fault_batch
                if self._access_whole(b, written, waiting=bool(batch), free=not self.first_touch):
                    continue
                parts = [(chunk, chunk.full, written) for chunk in self.chunks(b)]
            else:
                parts = [access]
            for chunk, pages, written in parts:
                remaining = pages
                while remaining:
                    is_next_here = remaining & -remaining & chunk.resident
                    full = not free_slots and chunk not in batch
                    if batch and (is_next_here or full):
                        # The batch may evict this chunk, so look at it again afterwards.
                        yield batch
                        batch, free_slots = {}, self.fault_batch
                        continue
                    reached, free_slots = self._access_part(batch, chunk, remaining, written, free_slots)
                    remaining &= ~reached
                    if not free_slots and not self._is_walked(batch, chunk):
                        yield batch
                        batch, free_slots = {}, self.fault_batch
        if batch:
            yield batch

    def _access_part(self, batch: Batch, chunk: Chunk, pages: int, written: bool, free_slots: int) -> tuple[int, int]:
        """Access pages of a chunk up to the first one that differs; returns those, and the free slots of the batch."""
        here = pages & chunk.resident
        if pages & -pages & here:
            reached = pages_before(pages, pages & ~here)
            self._touch(chunk, reached, written)
            return reached, free_slots
        run = pages_before(pages, here)
        entry = batch.get(chunk)
        waiting = run & entry[0] if entry else 0
        walked = self._is_walked(batch, chunk)
        slots = self.pages_of_chunk if walked else free_slots
        new, faulting = self._split(chunk, run & ~waiting, slots, free=not self.first_touch)
        free_slots = max(free_slots - faulting.bit_count(), 0)
        # Pages behind the one that fills a batch are accessed after the batch has arrived.
        reached = run if free_slots or walked else run & ((1 << faulting.bit_length()) - 1)
        if entry and written:
            entry[1] |= waiting & reached
        self._allocate(chunk, new)
        self._add(batch, chunk, faulting, written)
        return reached, free_slots

    def _is_walked(self, batch: Batch, chunk: Chunk) -> bool:
        """Whether faults in a chunk are served until the kernel has all pages there: it is the first of a batch."""
        alone = not batch or (len(batch) == 1 and chunk in batch)
        return alone and self.prefetcher is not None and self.bytes_of(chunk, chunk.full) <= self.limit

    # --- whole blocks ---------------------------------------------------------------------------------------

    def _access_whole(self, b: int, written: bool, *, waiting: bool, free: bool) -> bool:
        """Access a block that is resident from end to end, or can be allocated so; False if it is not.

        waiting: whether pages wait in a batch, which ends at a resident page. free: whether new pages need no fault.
        """
        if not self.sizes[b]:
            return True
        if b not in self._whole:
            if b not in self._chunks:
                return free and self._enter_whole(b)
            if waiting or any(chunk.resident != chunk.full for chunk in self._chunks[b]):
                return False
            self._whole.add(b)
        self._accessed[b] = self._accessed.pop(b, False) or written
        return True

    def _enter_whole(self, b: int) -> bool:
        """Allocate a new block in free memory; False if it does not fit."""
        used, live = self._size_of(b)
        if used > self.limit - self.used:
            return False
        self._whole.add(b)
        self._arrived[b] = None
        self._accessed[b] = True
        self.used += used
        self.live += live
        self.high_water = max(self.high_water, self.used)
        return True

    def _release_whole(self, b: int) -> None:
        used, live = self._size_of(b)
        self.used -= used
        self.live -= live
        self._whole.remove(b)
        self._arrived.pop(b, None)
        self._accessed.pop(b, None)
        for chunk in self._chunks.pop(b, ()):
            self._forget(chunk)

    def _size_of(self, b: int) -> tuple[int, int]:
        """Bytes of a block as all of its pages count them, with and without padding."""
        if b not in self._sizes:
            used = aligned(self.sizes[b], self.alignment)
            last_page = used - (used - 1) // self.page * self.page
            self._sizes[b] = used, used - min(used - self.sizes[b], last_page)
        return self._sizes[b]

    def _settle(self) -> None:
        """Bring the chunks and their orders up to date with the accesses to whole blocks."""
        if not self._accessed:
            return
        touched, arrived = self._residents.touched, self._residents.arrived
        for b in self._arrived:
            self._chunks[b] = self._new(b)
            for chunk in self._chunks[b]:
                chunk.resident = chunk.full
                arrived[chunk] = None
        for b, written in self._accessed.items():
            for chunk in self._chunks[b]:
                if written:
                    chunk.dirty = chunk.full
                touched[chunk] = None
                touched.move_to_end(chunk)
        self._arrived.clear()
        self._accessed.clear()

    # --- parts of chunks --------------------------------------------------------------------------------------

    def _split(self, chunk: Chunk, absent: int, free_slots: int, *, free: bool) -> tuple[int, int]:
        """Divide absent pages, in order, into new ones that fit into free memory and ones that fault, up to a batch.

        free: whether new pages need no fault there.
        """
        room, new = self.limit - self.used, absent & ~(chunk.on_host | chunk.coming) if free else 0
        smallest = self.page - chunk.short if new & chunk.last else self.page
        if not new or room < smallest:
            return 0, lowest_pages(absent, free_slots)
        # Whole pages in order, as many as fit; then the block's last page, which may be shorter.
        fitting = lowest_pages(new & ~chunk.last, room // self.page)
        if new & chunk.last and self.bytes_of(chunk, fitting | chunk.last) <= room:
            fitting |= chunk.last
        faulting = absent & ~fitting
        if faulting.bit_count() < free_slots:
            return fitting, faulting
        faulting = lowest_pages(faulting, free_slots)
        return fitting & ((1 << faulting.bit_length()) - 1), faulting

    def _touch(self, chunk: Chunk, present: int, written: bool) -> None:
        """Record an access to resident pages."""
        if present:
            self.residents.touched.move_to_end(chunk)
            if written:
                chunk.dirty |= present

    def _allocate(self, chunk: Chunk, new: int) -> None:
        """Allocate memory for pages that get a value."""
        if new:
            self._enter(chunk, new)
            chunk.resident |= new
            chunk.dirty |= new
            self._mark_arrived(chunk)

    def _add(self, batch: Batch, chunk: Chunk, faulting: int, written: bool) -> None:
        if faulting:
            before, dirty = batch.pop(chunk, (0, 0))
            batch[chunk] = [before | faulting, dirty | faulting if written else dirty]

    # --- batches --------------------------------------------------------------------------------------------

    def serve(self, batch: Batch) -> Migration:
        """Evict chunks until the absent pages of a batch fit, and allocate these. None of them may be on its way.

        Raises `BatchTooLargeError` if they can never fit.
        """
        for chunk in [*batch]:
            pages, dirty = batch[chunk]
            chunk.dirty |= dirty & chunk.resident
            if absent := pages & ~chunk.resident:
                batch[chunk] = [absent, dirty & absent]
            else:
                del batch[chunk]
        times = 1
        if self.prefetcher is not None and batch:
            served, more = with_prefetched(self.prefetcher, batch, self.fault_batch)
            if self._bytes_of_batch(more) <= self.limit - self.in_flight:
                times = served
                batch.update(more)
        need = self._bytes_of_batch(batch)
        if need > self.limit:
            raise BatchTooLargeError(need)
        self._touch_resident(batch)
        evicted = self._make_room(need)
        fetched, host_pages = self._allocate_batch(batch)
        self.serving = need
        return Migration(evicted, fetched, times, host_pages)

    def _evict(self, chunk: Chunk) -> int:
        self._whole.discard(chunk.block)
        return super()._evict(chunk)

    # --- as a pool ------------------------------------------------------------------------------------------

    def prepare(self, blocks: Sequence[int], sizes: Sequence[int], offsets: Sequence[int] | None = None) -> Request:
        """A request for these blocks. Raises `ProgramError` for offsets: there are no addresses here."""
        if offsets is not None:
            raise ProgramError("a program with offsets requires pool='addressed'; Unified Memory has no addresses")
        padded = sum(aligned(size, self.alignment) for size in sizes)
        return sum(sizes), padded, tuple(zip(blocks, sizes, strict=True)), None

    def acquire(self, request: Request) -> bool:
        """Initialize blocks: absent pages are allocated in order while memory is free, the others are on the host."""
        for b, _ in request[2]:
            if self._access_whole(b, written=True, waiting=False, free=True):
                continue
            for chunk in self.chunks(b):
                absent = chunk.full & ~(chunk.resident | chunk.coming)
                self.host_only -= self.bytes_of(chunk, absent & chunk.on_host)
                chunk.on_host &= ~absent
                chunk.by_host &= ~absent
                allocated, remaining = self._split(chunk, absent, absent.bit_count(), free=True)
                self._touch(chunk, chunk.resident, written=True)
                self._allocate(chunk, allocated)
                chunk.on_host |= remaining
                chunk.by_host |= remaining
                self.host_only += self.bytes_of(chunk, remaining)
        return True

    def release(self, request: Request) -> None:
        """Free all pages of blocks, on the device and on the host; their values are lost."""
        for b, _ in request[2]:
            if b in self._whole:
                self._release_whole(b)
                continue
            for chunk in self._chunks.pop(b, ()):
                self.host_only -= self.bytes_of(chunk, chunk.on_host & ~chunk.resident)
                if chunk.resident:
                    self._drop(chunk)

    @property
    def largest_hole(self) -> int:
        """Bytes that are free, -1 in unlimited memory."""
        return -1 if self.capacity is None else self.capacity - self.used

    def state(self) -> Hashable:
        """The location of every page, and both orders of chunks."""
        residents = self.residents
        stored = sorted(
            (chunk.block, chunk.index, chunk.on_host & ~chunk.resident, chunk.by_host)
            for chunks in self._chunks.values()
            for chunk in chunks
            if chunk.on_host & ~chunk.resident
        )
        touched = tuple((chunk.block, chunk.index, chunk.resident, chunk.dirty) for chunk in residents.touched)
        return touched, tuple((chunk.block, chunk.index) for chunk in residents.arrived), tuple(stored)
