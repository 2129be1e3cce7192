"""Pages of blocks in chunks, which are evicted together; what is accessed, fetched and evicted of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from simgpu.errors import ProgramError


class Chunk:
    """Consecutive pages of a block that are evicted together.

    block: its number; index: of the chunk in it. Sets of pages are bit masks, the first page lowest. full: all pages;
    resident, dirty, on_host: the pages in that state; coming: those that have memory and are on their way to the GPU;
    by_host: those that the host has written since they were on the GPU. last: the block's last page if it is in this
    chunk, else 0; short: bytes by which this page is shorter than the others; padding: bytes of it that are alignment.
    """

    __slots__ = (
        "block",
        "by_host",
        "coming",
        "dirty",
        "full",
        "index",
        "last",
        "on_host",
        "padding",
        "resident",
        "short",
    )

    def __init__(self, block: int, index: int, full: int) -> None:
        self.block = block
        self.index = index
        self.full = full
        self.resident = self.coming = self.dirty = self.on_host = self.by_host = 0
        self.last = self.short = self.padding = 0


def chunks_of(b: int, size: int, padded: int, page: int, each: int) -> list[Chunk]:
    """The chunks of a block. size, padded: its bytes without and with padding; page: bytes; each: pages of a chunk.

    >>> [bin(chunk.full) for chunk in chunks_of(0, 450, 450, page=100, each=2)]
    ['0b11', '0b11', '0b1']
    """
    pages = -(-padded // page)
    chunks = [Chunk(b, index, (1 << min(each, pages - index * each)) - 1) for index in range(-(-pages // each))]
    if chunks:
        end = chunks[-1]
        end.last = (end.full + 1) >> 1
        end.short = pages * page - padded
        end.padding = min(padded - size, page - end.short)
    return chunks


class ResidentChunks:
    """The chunks with pages in device memory, in two orders, oldest first; a policy picks the one to evict.

    touched: by their last access. arrived: by the last arrival of a page; the driver's own list, because it sees faults
    but not accesses (nvidia-uvm/uvm_pmm_gpu.c, the section on eviction in its first comment). for_prefetch: whether a
    prefetch needs the memory, not a fault. uses: how far ahead the next use of a block is, for `next_use`; None for a
    policy that does not know it.
    """

    __slots__ = ("arrived", "for_prefetch", "touched", "uses")

    def __init__(self, uses: Callable[[int], int] | None = None) -> None:
        self.touched: OrderedDict[Chunk, None] = OrderedDict()
        self.arrived: OrderedDict[Chunk, None] = OrderedDict()
        self.for_prefetch = False
        self.uses = uses

    def next_use(self, chunk: Chunk) -> int:
        """How many kernels ahead the chunk's block is used next: 0 by the kernel that runs (or is the next to begin),
        `simgpu.graph.taskgraph.NEVER` if by none before it is released.

        Persistent blocks are used again in the next iteration. Kernels count in the trace's order, those of a part that
        repeats once. Raises `ProgramError` for a policy that does not declare that it knows the future.
        """
        if self.uses is None:
            raise ProgramError("the policy asks for a next use, and is not declared clairvoyant")
        return self.uses(chunk.block)


#: Picks the chunk to evict; for a prefetch, None if all are to stay.
Reclaim = Callable[[ResidentChunks], Chunk | None]

#: Pages of a chunk, and whether they are written.
PageAccess = tuple[Chunk, int, bool]


class WholeAccess(NamedTuple):
    """An access to all pages of a block in order, and whether they are written."""

    block: int
    written: bool


#: Pages to fetch, by chunk in the order of accesses, and those of them that are then written.
Batch = dict[Chunk, list[int]]

#: Bytes of consecutive pages by block.
Parts = list[tuple[int, int]]


def least_recently_used(residents: ResidentChunks) -> Chunk:
    """The default choice: LRU."""
    return next(iter(residents.touched))


class Migration(NamedTuple):
    """What it takes to serve a batch.

    evicted, fetched: bytes by block, in order. times: how often faults are served. host_pages: how many of the fetched
    pages the host has written.
    """

    evicted: Parts
    fetched: Parts
    times: int = 1
    host_pages: int = 0


class BatchTooLargeError(Exception):
    """A batch is larger than the memory. need: its bytes."""

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


def pages_before(pages: int, others: int) -> int:
    """The pages before the first of `others`, all if there is none.

    >>> bin(pages_before(0b110110, 0b001000)), bin(pages_before(0b110110, 0))
    ('0b110', '0b110110')
    """
    return pages & ((others & -others) - 1) if others else pages


def lowest_pages(pages: int, count: int) -> int:
    """The first `count` pages, all where there are fewer.

    >>> bin(lowest_pages(0b10110, 2)), bin(lowest_pages(0b1110, 2))
    ('0b110', '0b110')
    """
    if pages.bit_count() <= count:
        return pages
    first = (pages & -pages).bit_length() - 1
    if not pages & (pages + (1 << first)):
        # They are adjacent.
        return ((1 << count) - 1) << first
    remaining = pages
    for _ in range(count):
        remaining &= remaining - 1
    return pages ^ remaining


def append_part(parts: Parts, b: int, size: int) -> None:
    """Add bytes of a block, to the last part if it is of the same block."""
    if size and parts and parts[-1][0] == b:
        parts[-1] = b, parts[-1][1] + size
    elif size:
        parts.append((b, size))
