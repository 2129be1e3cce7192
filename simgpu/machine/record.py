"""Build a timeline from the simulator's records.

A stream executes its ops in order, so its k-th recorded end belongs to the k-th timed instruction of its program.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.arrays import CompiledRun
from simgpu.machine.code import (
    ACQUIRE,
    AWAIT,
    COPIES,
    COPY,
    DRIVEN_LAUNCH,
    LAUNCH,
    WORK,
    MachineCode,
    StreamCode,
    memory_wait,
)
from simgpu.machine.simulator import Simulator
from simgpu.machine.stream import Memories
from simgpu.timeline.model import Column, SpanKind, Timeline

Flags = NDArray[np.bool_]


def timeline_of(simulator: Simulator | CompiledRun, graph: TaskGraph, implicit: Sequence[int] = ()) -> Timeline:
    """The timeline of a finished run. implicit: the rows of `simgpu.machine.implicit_streams.ImplicitStreams`."""
    columns = [_work_columns(simulator, graph, rank) for rank in range(len(simulator.streams))]
    columns.append(_stall_columns(simulator, graph))
    columns.append(_columns(implicit, graph))
    parts = (np.concatenate(column) for column in zip(*columns, strict=True))
    stream, code, name, start, end, size, cause, iteration = parts
    memories = simulator.memories
    kind, resource = _kinds(code, len(memories.names))
    # A stable sort preserves each stream's own order: work of no duration precedes the wait that follows it.
    order = np.argsort(start * len(simulator.streams) + stream, kind="stable")
    gpus = np.array([s.gpu for s in simulator.code.streams], dtype=np.int64)
    on_gpu = np.array([s.role == "compute" for s in simulator.code.streams], dtype=np.bool_)
    computing = ((kind == SpanKind.COMPUTE) | (kind == SpanKind.RECOMPUTE)) & on_gpu[stream]
    # With several GPUs an iteration ends when all have exchanged their weights, not with the last kernel.
    ending = on_gpu[stream] if len(memories.devices) > 1 else computing
    ends = np.zeros(simulator.iterations, dtype=np.int64)
    np.maximum.at(ends, iteration[ending], end[ending])
    return Timeline(
        streams=tuple(map(str, simulator.code.streams)),
        names=(*(kernel.id for kernel in graph.kernels), *(block.id for block in graph.blocks)),
        gpu=gpus[stream[order]],
        stream=stream[order],
        kind=kind[order],
        name=name[order],
        start_ns=start[order],
        end_ns=end[order],
        bytes=size[order],
        cause=cause[order],
        iteration=iteration[order],
        resource=resource[order],
        resources=(*memories.names, *simulator.code.engines),
        memories=memories.curves(),
        iteration_ends_ns=tuple(ends.tolist()),
    )


def _kinds(codes: Column, memories: int) -> tuple[Column, Column]:
    """Kinds of spans, and positions in the timeline's resources, from kinds of work and `memory_wait`.

    >>> kinds, resources = _kinds(np.array([0, 17, -2]), memories=2)
    >>> [SpanKind(kind).name for kind in kinds.tolist()], resources.tolist()
    (['COMPUTE', 'COPY', 'STALL_MEMORY'], [-1, 3, 1])
    """
    copies, waits = codes >= COPIES, codes < 0
    kinds = np.where(copies, int(SpanKind.COPY), np.where(waits, int(SpanKind.STALL_MEMORY), codes))
    return kinds, np.where(copies, memories + codes - COPIES, np.where(waits, -1 - codes, -1))


def _work_columns(simulator: Simulator | CompiledRun, graph: TaskGraph, rank: int) -> tuple[Column, ...]:
    """Columns of one stream's work. Work without a recorded start began its duration before its end."""
    stream = simulator.streams[rank]
    works = [work for code in simulator.code.segments[rank] for work in code.works * code.repeat]
    once = np.array(works, dtype=np.int64)
    kind, number = once % WORK, once // WORK
    copies = kind >= COPIES
    kernels = (kind == SpanKind.COMPUTE) | (kind == SpanKind.RECOMPUTE)
    starts_recorded = _starts_recorded(simulator.code.segments[rank])
    size, duration = np.zeros_like(once), np.zeros_like(once)
    size[copies] = np.array(graph.copy_sizes, dtype=np.int64)[number[copies]]
    duration[kernels] = np.array(graph.durations, dtype=np.int64)[number[kernels]]
    for codec, place in ((SpanKind.ENCODE, 1), (SpanKind.DECODE, 2)):
        duration[kind == codec] = [graph.encoded[form][place] for form in number[kind == codec].tolist()]
    name = _names(once, graph)
    iterations = simulator.iterations
    end = np.array(stream.ends, dtype=np.int64)
    start = end - np.tile(duration, iterations)
    start[np.tile(starts_recorded, iterations)] = stream.starts
    iteration = np.repeat(np.arange(iterations, dtype=np.int64), len(once))
    kind, name, size = (np.tile(column, iterations) for column in (kind, name, size))
    none = np.full(len(end), -1, dtype=np.int64)
    return np.full(len(end), rank, dtype=np.int64), kind, name, start, end, size, none, iteration


def _starts_recorded(segments: list[StreamCode]) -> Flags:
    """Whether the start of each work of a stream was recorded: of copies, and of kernels that share a link."""
    recorded = [
        [op[0] == COPY or (op[0] == DRIVEN_LAUNCH and len(op) > 2) for op in code.ops if op[0] >= LAUNCH] * code.repeat
        for code in segments
    ]
    return np.array([flag for flags in recorded for flag in flags], dtype=np.bool_)


def _names(works: Column, graph: TaskGraph) -> Column:
    """Positions in the timeline's names, kernels first, then blocks; -1 where there is no work."""
    kind, number = works % WORK, works // WORK
    kernels = (kind == SpanKind.COMPUTE) | (kind == SpanKind.RECOMPUTE)
    return np.where(works < 0, -1, number + np.where(kernels, 0, len(graph.kernels)))


def _stall_columns(simulator: Simulator | CompiledRun, graph: TaskGraph) -> tuple[Column, ...]:
    """Columns of the times in which streams waited."""
    code: MachineCode = simulator.code
    stalls = np.array(simulator.stalls, dtype=np.int64).reshape(-1, 7)
    releases = np.array(simulator.releases, dtype=np.int64).reshape(-1, 3)
    stream, _, _, begin, end, iteration, release = stalls.T
    places, which = np.unique(stalls[:, :3], axis=0, return_inverse=True)
    waits = [_wait(code, simulator.memories, *place) for place in places.tolist()]
    kind, cause, work = np.array(waits, dtype=np.int64).reshape(-1, 3)[which.ravel()].T
    # What ended a wait for memory is what its stream did before it released memory.
    for_memory = np.flatnonzero(release >= 0)
    places, which = np.unique(releases[release[for_memory]], axis=0, return_inverse=True)
    before = np.array(_works_at(code, places.tolist()), dtype=np.int64)
    cause[for_memory], work[for_memory] = places[which.ravel(), 0], before[which.ravel()]
    return stream, kind, _names(work, graph), begin, end, np.zeros_like(begin), cause, iteration


def _wait(code: MachineCode, memories: Memories, stream: int, segment: int, pc: int) -> tuple[int, int, int]:
    """The kind of a wait at an op; for an event the stream that signals it, and that stream's work before."""
    op = code.segments[stream][segment].ops[pc]
    if op[0] == AWAIT:
        return int(SpanKind.STALL_EVENT), code.signaller[op[1]], code.signal_work[op[1]]
    if op[0] == ACQUIRE:
        return memory_wait(memories.position(op[1])), -1, -1
    return int(SpanKind.STALL_ENGINE), -1, -1


def _works_at(code: MachineCode, places: list[list[int]]) -> list[int]:
    """The last work before each place in the code, given as stream, segment and op."""
    before: dict[tuple[int, int], list[int]] = {}
    works = []
    for stream, segment, pc in places:
        if (stream, segment) not in before:
            before[stream, segment] = _works_before(code.segments[stream][segment])
        works.append(before[stream, segment][pc])
    return works


def _columns(rows: Sequence[int], graph: TaskGraph) -> tuple[Column, ...]:
    """Columns of rows whose names are works."""
    streams, kinds, works, begins, ends, sizes, causes, iterations = np.array(rows, dtype=np.int64).reshape(-1, 8).T
    return streams, kinds, _names(works, graph), begins, ends, sizes, causes, iterations


def _works_before(code: StreamCode) -> list[int]:
    """The last work before each op of a stream's code, -1 if there is none."""
    works = iter(code.works)
    before, last = [], -1
    for op in code.ops:
        before.append(last)
        if op[0] >= LAUNCH:
            last = next(works)
    return before
