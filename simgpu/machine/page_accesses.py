"""Which pages a kernel visits, in which order.

A kernel goes through its blocks one after the other, those it reads first, in listed order; a block that it reads and
writes once. Each is walked through from end to end, unless the trace tells of another walk
(`simgpu.trace.model.Access`), which gives the order, where it begins and how far it goes. How often the walk comes to
the same page does not count while it is about the same pages: thread blocks go through neighbouring entries side by
side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from simgpu.compression.buddy.metadata_cache import Ints
from simgpu.compression.buddy.streams import Walk, seed_of, stream_of
from simgpu.compression.codecs.entries import ENTRY_BYTES
from simgpu.graph.taskgraph import TaskGraph
from simgpu.memory.paged import PagedPool, Visit
from simgpu.trace.model import Access, AccessOrder

#: A block, whether it is written, and the walk that the trace tells of, None for all of it in order.
Tour = tuple[int, bool, Walk | None]


def tours_of(graph: TaskGraph) -> list[tuple[Tour, ...]]:
    """For each kernel the blocks that it goes through.

    >>> from simgpu.trace.chain import chain
    >>> tours_of(TaskGraph.of(chain([5], [7], [100])))
    [((0, False, None), (1, True, None)), ((0, False, None), (1, False, None), (2, True, None))]
    """
    told = {(access.kernel, access.block, access.write): access for access in graph.trace.accesses}
    return [tuple(_tours(graph, k, told)) for k in range(len(graph.kernels))]


def _tours(graph: TaskGraph, k: int, told: Mapping[tuple[str, str, bool], Access]) -> Iterator[Tour]:
    kernel, reads, writes = graph.kernels[k].id, graph.reads[k], graph.writes[k]

    def walk(b: int, written: bool) -> Walk | None:
        access = told.get((kernel, graph.blocks[b].id, written))
        return None if access is None else _walk(access, graph.sizes[b])

    once = {b for b in reads if b in writes and walk(b, False) is None and walk(b, True) is None}
    for b in dict.fromkeys(reads):
        yield b, b in once, walk(b, False)
    for b in dict.fromkeys(writes):
        if b not in once:
            yield b, True, walk(b, True)


def _walk(access: Access, size: int) -> Walk:
    seed, entries = seed_of(access.kernel, access.block), -(-size // ENTRY_BYTES)
    order, sectors = access.order, access.sectors
    return Walk(0, entries, access.write, order, sectors, access.entries, access.stride, seed, access.first)


def pages_of(walk: Walk, page: int) -> Ints:
    """The pages of a block that a walk comes to, in order, none twice in a row. page: bytes, whole memory-entries.

    Sequential and strided: of one pass. Of a strided walk's columns beside each other that are about the same pages,
    the first stands for all. Random: each entry drawn as in `simgpu.compression.buddy.streams`, which cuts a long walk.

    >>> walk = Walk(0, 16, False, AccessOrder.STRIDED, 4, visits=16, stride=8)
    >>> pages_of(walk, 4 * ENTRY_BYTES).tolist()
    [0, 2, 1, 3]
    """
    each = page // ENTRY_BYTES
    if not (walk.entries and walk.visits):
        return np.zeros(0, dtype=np.int64)
    if walk.order is AccessOrder.STRIDED:
        found = _strided(walk, each)
    elif walk.order is AccessOrder.RANDOM:
        found = stream_of([walk], each).lines
    else:
        found = stream_of([replace(walk, visits=min(walk.visits, walk.entries))], each).lines
    return found[np.flatnonzero(np.diff(found, prepend=-1))]


def _strided(walk: Walk, each: int) -> Ints:
    """Pages of `each` entries, one visit for as many columns in each row.

    A page to which only entries between these bring the walk, at the block's end or its own, is visited by the first
    of its entries.
    """
    stride = min(walk.stride, walk.entries)
    rows = np.arange(0, walk.entries, stride)
    # So many columns, the first, have as many entries as there are rows; the others have one less.
    longer = walk.entries - int(rows[-1])

    def made(entries: Ints) -> tuple[Ints, Ints]:
        """Of these entries, counted from the walk's first: those that are visited, as pages, and after how many."""
        row, column = np.divmod(entries, stride)
        place = column * rows.size + row - np.maximum(column - longer, 0)
        visited = (entries < walk.entries) & (place < walk.visits)
        return (walk.begin + entries[visited]) % walk.entries // each, place[visited]

    pages, places = made((np.arange(0, stride, each)[:, None] + rows[: walk.visits]).ravel())
    more, between = made((np.arange(0, walk.entries, each) - walk.begin) % walk.entries)
    lacking = ~np.isin(more, pages)
    order = np.argsort(np.concatenate([places, between[lacking]]), kind="stable")
    found: Ints = np.concatenate([pages, more[lacking]])[order]
    return found


def visits_of(tours: Sequence[Tour], pool: PagedPool) -> Iterator[Visit]:
    """The visits of a kernel, each made up when it is asked for."""
    for b, written, walk in tours:
        if walk is None:
            yield from pool.whole(b, written=written)
        elif pool.chunks(b):
            yield from _irregular(b, walk, pool)


def _irregular(b: int, walk: Walk, pool: PagedPool) -> Iterator[Visit]:
    """Page after page, those of a chunk that follow each other together; where all are here, each chunk once by its
    last visit, which comes to the same."""
    chunks, each = pool.chunks(b), pool.pages_of_chunk
    pages = pages_of(walk, pool.page)
    if not pages.size:
        return
    if all(chunk.here == chunk.full for chunk in chunks):
        visited, from_end = np.unique((pages // each)[::-1], return_index=True)
        bits = dict.fromkeys(visited.tolist(), 0)
        for page in np.unique(pages).tolist():
            bits[page // each] |= 1 << page % each
        for index in visited[np.argsort(-from_end)].tolist():
            yield chunks[index], bits[index], walk.write
        return
    breaks = (np.diff(pages) != 1) | (pages[1:] % each == 0)
    firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    lengths = np.diff(firsts, append=pages.size)
    for page, length in zip(pages[firsts].tolist(), lengths.tolist(), strict=True):
        yield chunks[page // each], ((1 << length) - 1) << page % each, walk.write
