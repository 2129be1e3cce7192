"""The pages that a kernel accesses, in order.

A kernel accesses its blocks one after the other, first those it reads, in listed order; a block that it reads and
writes counts once. Each block is accessed from end to end, unless the trace has an access pattern for it
(`simgpu.trace.model.Access`) with order, start and length. Repeated accesses to a page count once while the pattern
stays within the same pages, because thread blocks process neighbouring entries together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from simgpu.compression.buddy.metadata_cache import Ints
from simgpu.compression.buddy.streams import EntryAccesses, seed_of, stream_of
from simgpu.compression.codecs.entries import ENTRY_BYTES
from simgpu.graph.taskgraph import NEVER, TaskGraph
from simgpu.memory.chunks import PageAccess, WholeAccess
from simgpu.memory.paged import PagedPool
from simgpu.trace.model import Access, AccessOrder

#: A block, whether it is written, and its recorded access pattern, None for all of it in order.
BlockAccess = tuple[int, bool, EntryAccesses | None]


def block_accesses(graph: TaskGraph) -> list[tuple[BlockAccess, ...]]:
    """For each kernel the blocks that it accesses.

    >>> from simgpu.trace.chain import chain
    >>> block_accesses(TaskGraph.of(chain([5], [7], [100])))
    [((0, False, None), (1, True, None)), ((0, False, None), (1, False, None), (2, True, None))]
    """
    recorded = {(access.kernel, access.block, access.write): access for access in graph.trace.accesses}
    return [tuple(_block_accesses(graph, k, recorded)) for k in range(len(graph.kernels))]


def _block_accesses(
    graph: TaskGraph, k: int, recorded: Mapping[tuple[str, str, bool], Access]
) -> Iterator[BlockAccess]:
    kernel, reads, writes = graph.kernels[k].id, graph.reads[k], graph.writes[k]

    def walk(b: int, written: bool) -> EntryAccesses | None:
        access = recorded.get((kernel, graph.blocks[b].id, written))
        return None if access is None else _walk(access, graph.sizes[b])

    once = {b for b in reads if b in writes and walk(b, False) is None and walk(b, True) is None}
    for b in dict.fromkeys(reads):
        yield b, b in once, walk(b, False)
    for b in dict.fromkeys(writes):
        if b not in once:
            yield b, True, walk(b, True)


def _walk(access: Access, size: int) -> EntryAccesses:
    seed, entries = seed_of(access.kernel, access.block), -(-size // ENTRY_BYTES)
    order, sectors = access.order, access.sectors
    return EntryAccesses(0, entries, access.write, order, sectors, access.entries, access.stride, seed, access.first)


class NextUses:
    """How far ahead the next use of each block is. kernel: the one that runs, or the next to begin.

    >>> from simgpu.trace.chain import chain
    >>> uses = NextUses(TaskGraph.of(chain([5, 5], [7, 7], [100, 100])))  # F1 F2 B2 B1: x1 is used by F1 and B1
    >>> uses.kernel = 1
    >>> uses.ahead(0)
    2
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.kernel = 0
        self._graph = graph
        self._listed_at = -1
        self._known: dict[int, int] = {}

    def ahead(self, b: int) -> int:
        """In kernels, 0 for the one that runs; `NEVER` where the block is released before."""
        if self._listed_at != self.kernel:
            self._listed_at = self.kernel
            self._known.clear()
        if b not in self._known:
            self._known[b] = self._ahead(b)
        return self._known[b]

    def _ahead(self, b: int) -> int:
        uses = self._graph.uses[b]
        index = bisect_left(uses, self.kernel)
        if index < len(uses):
            return uses[index] - self.kernel
        if uses and self._graph.blocks[b].persistent:
            return len(self._graph.kernels) + uses[0] - self.kernel
        return NEVER


def pages_of(walk: EntryAccesses, page: int) -> Ints:
    """The pages of a block that an access pattern reaches, in order, none twice in a row. page: bytes.

    Sequential and strided: one pass; neighbouring columns of a strided pattern that reach the same pages count as one.
    Random: entries are drawn as in `simgpu.compression.buddy.streams`, which shortens long patterns.

    >>> walk = EntryAccesses(0, 16, False, AccessOrder.STRIDED, 4, accesses=16, stride=8)
    >>> pages_of(walk, 4 * ENTRY_BYTES).tolist()
    [0, 2, 1, 3]
    """
    each = page // ENTRY_BYTES
    if not (walk.entries and walk.accesses):
        return np.zeros(0, dtype=np.int64)
    if walk.order is AccessOrder.STRIDED:
        pages = _strided(walk, each)
    elif walk.order is AccessOrder.RANDOM:
        pages = stream_of([walk], each).lines
    else:
        pages = stream_of([replace(walk, accesses=min(walk.accesses, walk.entries))], each).lines
    return pages[np.flatnonzero(np.diff(pages, prepend=-1))]


def _strided(walk: EntryAccesses, each: int) -> Ints:
    """Pages of `each` entries, one access for as many columns in each row.

    A page that is reached only by other entries, at the end of the block or of the pattern, is accessed at the first
    of its entries.
    """
    stride = min(walk.stride, walk.entries)
    rows = np.arange(0, walk.entries, stride)
    # The first `longer` columns have an entry in every row; the others have one less.
    longer = walk.entries - int(rows[-1])

    def accessed(entries: Ints) -> tuple[Ints, Ints]:
        """Which of these entries, counted from the first one, are accessed: their pages, and their places in order."""
        row, column = np.divmod(entries, stride)
        place = column * rows.size + row - np.maximum(column - longer, 0)
        reached = (entries < walk.entries) & (place < walk.accesses)
        return (walk.begin + entries[reached]) % walk.entries // each, place[reached]

    pages, places = accessed((np.arange(0, stride, each)[:, None] + rows[: walk.accesses]).ravel())
    more, between = accessed((np.arange(0, walk.entries, each) - walk.begin) % walk.entries)
    lacking = ~np.isin(more, pages)
    order = np.argsort(np.concatenate([places, between[lacking]]), kind="stable")
    ordered: Ints = np.concatenate([pages, more[lacking]])[order]
    return ordered


def page_accesses(accesses: Sequence[BlockAccess], pool: PagedPool) -> Iterator[PageAccess | WholeAccess]:
    """The page accesses of a kernel, generated on demand."""
    for b, written, walk in accesses:
        if walk is None:
            yield from pool.all_pages(b, written=written)
        elif pool.chunks(b):
            yield from _irregular(b, walk, pool)


def _irregular(b: int, walk: EntryAccesses, pool: PagedPool) -> Iterator[PageAccess]:
    """Page after page, consecutive pages of a chunk together.

    If all pages are resident, each chunk once at its last access, which has the same effect.
    """
    chunks, each = pool.chunks(b), pool.pages_of_chunk
    pages = pages_of(walk, pool.page)
    if not pages.size:
        return
    if all(chunk.resident == chunk.full for chunk in chunks):
        accessed, from_end = np.unique((pages // each)[::-1], return_index=True)
        bits = dict.fromkeys(accessed.tolist(), 0)
        for page in np.unique(pages).tolist():
            bits[page // each] |= 1 << page % each
        for index in accessed[np.argsort(-from_end)].tolist():
            yield chunks[index], bits[index], walk.write
        return
    breaks = (np.diff(pages) != 1) | (pages[1:] % each == 0)
    firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    lengths = np.diff(firsts, append=pages.size)
    for page, length in zip(pages[firsts].tolist(), lengths.tolist(), strict=True):
        yield chunks[page // each], ((1 << length) - 1) << page % each, walk.write
