"""When blocks acquire memory and when they release it, by kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from simgpu.graph.taskgraph import BEFORE, Round, TaskGraph


class Lifetimes(NamedTuple):
    """births[k], deaths[k]: blocks whose lifetime begins before kernel k, and ends after it. survivors: non-persistent
    blocks that live to the end of the iteration; reinitialized: persistent blocks that do not; the host initializes
    them again."""

    births: list[Sequence[int]]
    deaths: list[Sequence[int]]
    survivors: list[int]
    reinitialized: list[int]


def lifetimes(graph: TaskGraph, releases: Sequence[int | None]) -> Lifetimes:
    """The lifetimes of all blocks. releases[b]: the kernel after whose end block b is released, None for never.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> [[graph.blocks[b].id for b in blocks] for blocks in lifetimes(graph, graph.needed_releases).deaths]
    [[], [], ['x2', 'x3'], ['g2', 'g1']]
    """
    first = graph.births
    births: list[Sequence[int]] = [()] * len(graph.kernels)
    for k, writes in enumerate(graph.writes):
        born = tuple([b for b in writes if first[b] == k])
        births[k] = writes if born == writes else born
    # Lists only where a block ends.
    deaths: list[Any] = [()] * len(graph.kernels)
    survivors, reinitialized = [], []
    for b, (birth, release) in enumerate(zip(first, releases, strict=True)):
        if birth is None:
            continue
        if birth >= 0 and b not in births[birth]:
            births[birth] = (*births[birth], b)
        if birth == BEFORE and release is not None:
            reinitialized.append(b)
        if release is None:
            if birth != BEFORE:
                survivors.append(b)
        elif ended := deaths[max(release, 0)]:
            ended.append(b)
        else:
            deaths[max(release, 0)] = [b]
    return Lifetimes(births, deaths, survivors, reinitialized)


def first_round(graph: TaskGraph, b: int) -> Round:
    """The round in which a block is first used, the first one for a block that is not."""
    k = graph.uses[b][0] if graph.uses[b] else 0
    return _round_of(graph, k)


def last_round(graph: TaskGraph, b: int) -> Round:
    """The round at whose end a surviving block is released: its own, the last one for a block of several rounds."""
    first = first_round(graph, b)
    return first if not graph.uses[b] or _round_of(graph, graph.uses[b][-1]) == first else graph.rounds[-1]


def _round_of(graph: TaskGraph, k: int) -> Round:
    return next(part for part in graph.rounds if k < part.stop or part is graph.rounds[-1])


def open_lifetimes(graph: TaskGraph) -> tuple[str, ...]:
    """Notes on a program with recorded lifetimes, where some are not recorded."""
    unknown, blocks = graph.open_lifetimes
    if not unknown:
        return ()
    what = f"{unknown} of {blocks} lifetimes are not in the recording: these blocks are held to their last use"
    return (f"{what}, a real framework may hold them longer",)


def used_by_kernel(graph: TaskGraph, sizes: Sequence[int]) -> list[int]:
    """Bytes of device memory while each kernel runs, if nothing leaves. sizes: of the blocks, padding counted."""
    births, deaths, _, _ = lifetimes(graph, graph.recorded_releases)
    ever = [b for b, birth in enumerate(graph.births) if birth is not None and birth < 0]
    used, now = [], sum(sizes[b] for b in ever)
    for k in range(len(graph.kernels)):
        now += sum(sizes[b] for b in births[k])
        used.append(now)
        now -= sum(sizes[b] for b in deaths[k])
    return used
