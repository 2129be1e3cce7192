"""The log of a run: what streams did and what they waited for, and the timeline made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.code import SmallInts
from simgpu.timeline.model import Column, MemoryCurve, SpanKind, Timeline
from simgpu.timeline.streams import StreamId

#: Nanoseconds after which a timeline's 64-bit columns would run over when they are sorted.
LONGEST = 2**59


class Entry(NamedTuple):
    """A span, as positions: `stream` and `cause` among the streams, `name` and `resource` among the timeline's, -1 for
    none. Times in nanoseconds."""

    stream: int
    kind: int
    name: int
    start_ns: int
    end_ns: int
    bytes: int
    cause: int
    iteration: int
    resource: int


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What a run of the machine leaves, whichever engine ran it.

    columns: those of `Entry`, sorted by start, then by stream, each stream's entries in order. memories: their use over
    time. states: for each GPU the states of its memory after the iterations, at least the last two. high_water: bytes
    of device memory that a pool needed, maximum over GPUs; buddy_peak: the same of buddy memory.
    """

    columns: Sequence[Column] | Column
    memories: tuple[MemoryCurve, ...]
    states: Sequence[Sequence[object]]
    high_water: int
    buddy_peak: int


def names_of(graph: TaskGraph) -> tuple[str, ...]:
    """The names in a timeline: kernels, then blocks."""
    if ("names",) not in graph.kept:
        graph.kept["names",] = (*(kernel.id for kernel in graph.kernels), *(block.id for block in graph.blocks))
    names: tuple[str, ...] = graph.kept["names",]
    return names


def timeline_of(
    ran: Ran, graph: TaskGraph, streams: tuple[StreamId, ...], resources: tuple[str, ...], iterations: int
) -> Timeline:
    """The timeline of a finished run. resources: the names of memories and engines."""
    stream, kind, name, start, end, size, cause, iteration, resource = ran.columns
    gpus = np.array([s.gpu for s in streams], dtype=np.int64)
    on_gpu = np.array([s.role == "compute" for s in streams], dtype=np.bool_)
    computing = ((kind == SpanKind.COMPUTE) | (kind == SpanKind.RECOMPUTE)) & on_gpu[stream]
    # With several GPUs an iteration ends when all have exchanged their weights, not with the last kernel.
    ending = on_gpu[stream] if max(s.gpu for s in streams) else computing
    ends = np.zeros(iterations, dtype=np.int64)
    np.maximum.at(ends, iteration, np.where(ending, end, 0))
    return Timeline(
        streams=tuple(map(str, streams)),
        names=names_of(graph),
        gpu=gpus[stream],
        stream=stream,
        kind=kind,
        name=name,
        start_ns=start,
        end_ns=end,
        bytes=size,
        cause=cause,
        iteration=iteration,
        resource=resource,
        resources=resources,
        memories=ran.memories,
        iteration_ends_ns=tuple(ends.tolist()),
    )


def columns_of(entries: Sequence[Entry]) -> list[Column]:
    """Entries in the order in which they were made as sorted columns."""
    width = len(Entry._fields)
    numbers = np.fromiter(chain.from_iterable(entries), dtype=np.int64, count=width * len(entries))
    columns = numbers.reshape(-1, width).T
    return list(columns.take(in_order(columns[Entry._fields.index("start_ns")], columns[0]), axis=1))


def in_order(start: Column, stream: Column | SmallInts) -> Column:
    """The order of entries by start, then stream.

    A stable sort preserves each stream's own order: work of no duration precedes the wait that follows it.
    """
    return np.argsort(start * (int(stream.max(initial=0)) + 1) + stream, kind="stable")
