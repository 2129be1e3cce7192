"""Which pages a kernel visits, in which order.

Lives here: `tours_of` and `visits_of`. A kernel goes through its blocks one after the other, those it reads first, in
listed order; a block that it reads and writes once. Each is walked through once from end to end, unless the trace
tells of another walk (`simgpu.trace.model.Access`): that one is followed page by page, by the same visits to
memory-entries as in `simgpu.buddy.streams`. Does not live here: what a visit does (`simgpu.memory.paged`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from simgpu.buddy.streams import Walk, seed_of, stream_of
from simgpu.codecs.entries import ENTRY_BYTES
from simgpu.graph.taskgraph import TaskGraph
from simgpu.memory.paged import PagedPool, Visit
from simgpu.trace.model import Access

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
    return Walk(0, entries, access.write, access.order, access.sectors, access.entries, access.stride, seed)


def visits_of(tours: Sequence[Tour], pool: PagedPool) -> Iterator[Visit]:
    """The visits of a kernel, each made up when it is asked for."""
    for b, written, walk in tours:
        if walk is None:
            yield from pool.whole(b, written=written)
        elif pool.chunks(b):
            yield from _irregular(b, walk, pool)


def _irregular(b: int, walk: Walk, pool: PagedPool) -> Iterator[Visit]:
    """Page after page; where all are here, each chunk once by its last visit, which comes to the same."""
    chunks, each = pool.chunks(b), pool.pages_of_chunk
    pages = stream_of([walk], pool.page // ENTRY_BYTES).lines
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
    changes = np.flatnonzero(np.diff(pages, prepend=-1))
    for page in pages[changes].tolist():
        yield chunks[page // each], 1 << page % each, walk.write
