"""Device memory by pages: which pages of a block are there, in which order they were touched, what leaves for what.

Pages come by faults, one at a time, and leave by chunks, as in NVIDIA's driver (`simgpu.program.paging`). A chunk is
part of one block here, and blocks are packed: the last page of a block is as long as what is left of it, so that
blocks take no more memory together than in a pool. A page is

* *fresh* until it gets its first value: a fault brings no bytes for it, and while memory is free it needs no fault,
  because a framework keeps what it frees, and the driver what is mapped;
* *here*, with the only good copy (*dirty*) or one that is as good on the host;
* *stored* on the host alone.

A visit to a page that is here touches its chunk. Pages that are not, and that are visited one after the other, wait in
a *batch*; it ends when it is full, or with the next page that is here, since a kernel goes no further than the first
page that it waits for. Then chunks leave until there is room, one at a time and each chosen by the policy's hook, and
the pages of the batch come. Chunks of the batch that have pages here are touched before that, and all of them when it
has come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from simgpu.errors import ProgramError
from simgpu.memory.pool import UNLIMITED, Request, aligned


class Chunk:
    """Consecutive pages of a block that leave together.

    block: its number; index: of the chunk in it. Sets of pages are bits, the first page lowest. full: its pages; here,
    dirty, stored: which of them are that. last: the block's last page if it is in this chunk, else 0; short: bytes
    that this page is shorter than the others; padding: bytes of it that are alignment.
    """

    __slots__ = ("block", "dirty", "full", "here", "index", "last", "padding", "short", "stored")

    def __init__(self, block: int, index: int, full: int) -> None:
        self.block = block
        self.index = index
        self.full = full
        self.here = self.dirty = self.stored = 0
        self.last = self.short = self.padding = 0


class Residents(NamedTuple):
    """The chunks that have pages in device memory: by their last touch, and by when a page last came, oldest first.

    The driver's own list is the second one: it hears of faults, not of touches (nvidia-uvm/uvm_pmm_gpu.c, the chapter
    on eviction in its first comment).
    """

    touched: OrderedDict[Chunk, None]
    arrived: OrderedDict[Chunk, None]


#: Picks the chunk that leaves.
Reclaim = Callable[[Residents], Chunk]

#: Pages of some chunks, and whether a chunk's are written.
Visit = tuple[Chunk, int, bool]

#: Pages that wait to come, by chunk, and those of them that are then written, in the order of visits.
Batch = dict[Chunk, list[int]]

#: Bytes of consecutive pages by block.
Parts = list[tuple[int, int]]


def least_recently_touched(residents: Residents) -> Chunk:
    """The usual choice: LRU."""
    return next(iter(residents.touched))


class Migration(NamedTuple):
    """What a batch moves: bytes that leave and bytes that come, by block, in order."""

    out: Parts
    back: Parts


class NoRoomError(Exception):
    """A batch is larger than the memory. need: its bytes."""

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


class PagedPool:
    """The pages of all blocks in a memory of `capacity` bytes, None for unlimited.

    sizes: of every block, bytes. page, chunk: bytes; fault_batch: pages; write_back_clean: as in
    `simgpu.program.paging.Paged`. reclaim: the hook. live, used: bytes of device memory, without and with padding;
    away: bytes whose values are on the host alone. As a `Pool` it never makes anybody wait: acquiring blocks gives them
    their values, in free memory or else on the host, and releasing them lets go of their pages anywhere.

    >>> pool = PagedPool([150, 100], 200, page=100, chunk=100, fault_batch=1)
    >>> def moved(b):
    ...     for batch in pool.walk(pool.whole(b, written=True)):
    ...         yield pool.serve(batch)
    ...         pool.arrive(batch)
    >>> [*moved(0)], pool.used  # nothing has to leave: no fault
    ([], 150)
    >>> [*moved(1)], pool.used
    ([Migration(out=[(0, 100)], back=[])], 150)
    >>> [*moved(0)], pool.used
    ([Migration(out=[(0, 50)], back=[(0, 100)]), Migration(out=[(1, 100)], back=[(0, 50)])], 150)
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
        write_back_clean: bool = True,
        reclaim: Reclaim = least_recently_touched,
    ) -> None:
        self.sizes = sizes
        self.capacity = capacity
        self.limit = UNLIMITED if capacity is None else capacity
        self.alignment = alignment
        self.page = page
        self.pages_of_chunk = chunk // page
        self.fault_batch = fault_batch
        self.write_back_clean = write_back_clean
        self.reclaim = reclaim
        self.residents = Residents(OrderedDict(), OrderedDict())
        self.live = 0
        self.used = 0
        self.away = 0
        self.high_water = 0
        self._chunks: dict[int, list[Chunk]] = {}

    # --- blocks ---------------------------------------------------------------------------------------------

    def chunks(self, b: int) -> list[Chunk]:
        """The chunks of a block, which has a place from now on if it had none."""
        found = self._chunks.get(b)
        if found is None:
            found = self._chunks[b] = self._new(b)
        return found

    def _new(self, b: int) -> list[Chunk]:
        size = aligned(self.sizes[b], self.alignment)
        pages, each = -(-size // self.page), self.pages_of_chunk
        chunks = [Chunk(b, index, (1 << min(each, pages - index * each)) - 1) for index in range(-(-pages // each))]
        if chunks:
            end = chunks[-1]
            end.last = (end.full + 1) >> 1
            end.short = pages * self.page - size
            end.padding = min(size - self.sizes[b], self.page - end.short)
        return chunks

    def whole(self, b: int, *, written: bool) -> Iterator[Visit]:
        """Visits to all pages of a block in order."""
        for chunk in self.chunks(b):
            yield chunk, chunk.full, written

    def bytes_of(self, chunk: Chunk, pages: int) -> int:
        """Bytes of some pages of a chunk."""
        size = pages.bit_count() * self.page
        return size - chunk.short if pages & chunk.last else size

    # --- visits ---------------------------------------------------------------------------------------------

    def walk(self, visits: Iterable[Visit]) -> Iterator[Batch]:
        """Visit pages in order. Each batch that is given must have been served and have arrived before the next is
        asked for."""
        batch: Batch = {}
        room = self.fault_batch
        for chunk, pages, written in visits:
            rest = pages
            while rest:
                here = rest & chunk.here
                if rest & -rest & here:
                    if batch:
                        # It may leave for what it waits for; so it is looked at anew.
                        yield batch
                        batch, room = {}, self.fault_batch
                        continue
                    reached = _before(rest, rest & ~here)
                    self._visit(chunk, reached, written)
                else:
                    run = _before(rest, here)
                    entry = batch.get(chunk)
                    waiting = run & entry[0] if entry else 0
                    fresh, faulting = self._split(chunk, run & ~waiting, room)
                    room -= faulting.bit_count()
                    # What lies behind the page that fills a batch is visited when the batch has come.
                    reached = run if room else run & ((1 << faulting.bit_length()) - 1)
                    if entry and written:
                        entry[1] |= waiting & reached
                    self._make(chunk, fresh)
                    self._add(batch, chunk, faulting, written)
                rest &= ~reached
                if not room:
                    yield batch
                    batch, room = {}, self.fault_batch
        if batch:
            yield batch

    def _split(self, chunk: Chunk, absent: int, room: int) -> tuple[int, int]:
        """Of absent pages in order: the fresh ones that find free memory, and those that fault, up to the page that
        leaves no room in the batch."""
        free, fresh = self.limit - self.used, absent & ~chunk.stored
        smallest = self.page - chunk.short if fresh & chunk.last else self.page
        if not fresh or free < smallest:
            return 0, _lowest(absent, room)
        if fresh == absent and self.bytes_of(chunk, absent) <= free:
            return absent, 0
        taken = faulting = 0
        while absent and room:
            page = absent & -absent
            absent ^= page
            size = self.bytes_of(chunk, page)
            if page & fresh and size <= free:
                taken |= page
                free -= size
            else:
                faulting |= page
                room -= 1
        return taken, faulting

    def _visit(self, chunk: Chunk, present: int, written: bool) -> None:
        """Touch pages that are here."""
        if present:
            self.residents.touched.move_to_end(chunk)
            if written:
                chunk.dirty |= present

    def _make(self, chunk: Chunk, fresh: int) -> None:
        """Give memory to pages that get a value."""
        if fresh:
            self._enter(chunk, fresh)
            chunk.here |= fresh
            chunk.dirty |= fresh
            self._came(chunk)

    def _add(self, batch: Batch, chunk: Chunk, faulting: int, written: bool) -> None:
        if faulting:
            before, dirty = batch.pop(chunk, (0, 0))
            batch[chunk] = [before | faulting, dirty | faulting if written else dirty]

    # --- batches --------------------------------------------------------------------------------------------

    def serve(self, batch: Batch) -> Migration:
        """Make room for what of a batch is still absent, and take it. Raises `NoRoomError` where it can never fit."""
        for chunk in [*batch]:
            pages, dirty = batch[chunk]
            chunk.dirty |= dirty & chunk.here
            if absent := pages & ~chunk.here:
                batch[chunk] = [absent, dirty & absent]
            else:
                del batch[chunk]
        need = sum(self.bytes_of(chunk, pages) for chunk, (pages, _) in batch.items())
        if need > self.limit:
            raise NoRoomError(need)
        touched = self.residents.touched
        for chunk in batch:
            if chunk.here:
                touched.move_to_end(chunk)
        out: Parts = []
        while self.limit - self.used < need:
            victim = self.reclaim(self.residents)
            if type(victim) is not Chunk or victim not in touched:
                raise ProgramError("the policy's reclaim picks a chunk that is not in device memory")
            _append(out, victim.block, self._evict(victim))
        back: Parts = []
        for chunk, (pages, _) in batch.items():
            self._enter(chunk, pages)
            brought = self.bytes_of(chunk, pages & chunk.stored)
            self.away -= brought
            _append(back, chunk.block, brought)
        return Migration(out, back)

    def arrive(self, batch: Batch) -> None:
        """What was served is here."""
        for chunk, (pages, dirty) in batch.items():
            chunk.here |= pages
            chunk.dirty |= dirty | (pages & ~chunk.stored)
            self._came(chunk)

    def _evict(self, chunk: Chunk) -> int:
        """A chunk's pages leave; returns how many bytes are copied for that."""
        copied = self.bytes_of(chunk, chunk.here if self.write_back_clean else chunk.dirty)
        chunk.stored |= chunk.here
        self.away += self.bytes_of(chunk, chunk.here)
        self._drop(chunk)
        return copied

    def _came(self, chunk: Chunk) -> None:
        for order in self.residents:
            order[chunk] = None
            order.move_to_end(chunk)

    def _drop(self, chunk: Chunk) -> None:
        self._count(chunk, chunk.here, -1)
        chunk.here = chunk.dirty = 0
        for order in self.residents:
            order.pop(chunk, None)

    def _enter(self, chunk: Chunk, pages: int) -> None:
        self._count(chunk, pages, 1)
        self.high_water = max(self.high_water, self.used)

    def _count(self, chunk: Chunk, pages: int, sign: int) -> None:
        size = self.bytes_of(chunk, pages)
        self.used += sign * size
        self.live += sign * (size - (chunk.padding if pages & chunk.last else 0))

    # --- as a pool ------------------------------------------------------------------------------------------

    def prepare(self, blocks: Sequence[int], sizes: Sequence[int], offsets: Sequence[int] | None = None) -> Request:
        """A request for these blocks. Raises `ProgramError` for offsets: there are no addresses here."""
        if offsets is not None:
            raise ProgramError("a program that gives offsets needs the addressed pool, not pages on demand")
        padded = sum(aligned(size, self.alignment) for size in sizes)
        return sum(sizes), padded, tuple(zip(blocks, sizes, strict=True)), None

    def acquire(self, request: Request) -> bool:
        """Give blocks their values: absent pages take free memory in order, and lie on the host where there is none."""
        for b, _ in request[2]:
            for chunk in self.chunks(b):
                absent = chunk.full & ~chunk.here
                self.away -= self.bytes_of(chunk, absent & chunk.stored)
                chunk.stored &= ~absent
                taken, left = self._split(chunk, absent, absent.bit_count())
                self._visit(chunk, chunk.here, written=True)
                self._make(chunk, taken)
                chunk.stored |= left
                self.away += self.bytes_of(chunk, left)
        return True

    def release(self, request: Request) -> None:
        """Let go of all pages of blocks, here and on the host; their values are lost."""
        for b, _ in request[2]:
            for chunk in self._chunks.pop(b, ()):
                self.away -= self.bytes_of(chunk, chunk.stored & ~chunk.here)
                if chunk.here:
                    self._drop(chunk)

    @property
    def largest_hole(self) -> int:
        """Bytes that are free, -1 in unlimited memory."""
        return -1 if self.capacity is None else self.capacity - self.used

    def state(self) -> Hashable:
        """Which pages are where, and both orders of chunks."""
        stored = sorted(
            (chunk.block, chunk.index, chunk.stored & ~chunk.here)
            for chunks in self._chunks.values()
            for chunk in chunks
            if chunk.stored & ~chunk.here
        )
        touched = tuple((chunk.block, chunk.index, chunk.here, chunk.dirty) for chunk in self.residents.touched)
        return touched, tuple((chunk.block, chunk.index) for chunk in self.residents.arrived), tuple(stored)


def _before(pages: int, others: int) -> int:
    """The pages in front of the first of the others, all if there is none.

    >>> bin(_before(0b110110, 0b001000)), bin(_before(0b110110, 0))
    ('0b110', '0b110110')
    """
    return pages & ((others & -others) - 1) if others else pages


def _lowest(pages: int, count: int) -> int:
    """The first `count` pages, all where there are fewer.

    >>> bin(_lowest(0b10110, 2))
    '0b110'
    """
    if pages.bit_count() <= count:
        return pages
    rest = pages
    for _ in range(count):
        rest &= rest - 1
    return pages ^ rest


def _append(parts: Parts, b: int, size: int) -> None:
    """Add bytes of a block, to the last part where that is of the same block."""
    if size and parts and parts[-1][0] == b:
        parts[-1] = b, parts[-1][1] + size
    elif size:
        parts.append((b, size))
