"""From the executor's record to a timeline.

Lives here: giving every span its name, kind, bytes and iteration. A stream executes its ops in order, so the k-th
start and end belong to the k-th timed instruction of its program; nothing needs to be noted during the run.
"""

from __future__ import annotations

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.code import ACQUIRE, AWAIT, MachineCode
from simgpu.machine.executor import Executor
from simgpu.program.instructions import CopyIn, CopyOut, Launch, Program
from simgpu.timeline.model import Column, SpanKind, Timeline


class _Names:
    """Names numbered in order of first appearance."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers)) if name else -1


def timeline_of(executor: Executor, program: Program, graph: TaskGraph) -> Timeline:
    """The timeline of a finished run."""
    names = _Names()
    columns = [_work_columns(executor, program, graph, rank, names) for rank in range(len(executor.streams))]
    columns.append(_stall_columns(executor, names))
    stream, kind, name, start, end, size, cause, iteration = (
        np.concatenate(parts) for parts in zip(*columns, strict=True)
    )
    order = np.lexsort((end, stream, start))
    gpus = np.array([s.gpu for s in executor.code.streams], dtype=np.int64)
    computing = (kind == SpanKind.COMPUTE) | (kind == SpanKind.RECOMPUTE)
    ends = np.zeros(executor.iterations, dtype=np.int64)
    np.maximum.at(ends, iteration[computing], end[computing])
    return Timeline(
        streams=tuple(map(str, executor.code.streams)),
        names=tuple(names.numbers),
        gpu=gpus[stream[order]],
        stream=stream[order],
        kind=kind[order],
        name=name[order],
        start_ns=start[order],
        end_ns=end[order],
        bytes=size[order],
        cause=cause[order],
        iteration=iteration[order],
        device_memory=executor.memories[0].curve(),
        host_memory=executor.memories[1].curve(),
        iteration_ends_ns=tuple(ends.tolist()),
    )


def _work_columns(
    executor: Executor, program: Program, graph: TaskGraph, rank: int, names: _Names
) -> tuple[Column, ...]:
    """Columns of one stream's kernels and copies. A kernel began its duration before its end."""
    stream = executor.streams[rank]
    stream_id = executor.code.streams[rank]
    rows: list[int] = []
    for segment in program.segments:
        once: list[int] = []
        for instruction in segment.streams.get(stream_id, ()):
            if type(instruction) is Launch:
                kind = SpanKind.RECOMPUTE if instruction.recompute else SpanKind.COMPUTE
                kernel = graph.kernels[instruction.kernel]
                once += (kind, names.of(kernel.id), 0, kernel.duration_ns)
            elif type(instruction) in _COPIES:
                b = instruction.block  # type: ignore[union-attr]
                once += (_COPIES[type(instruction)], names.of(graph.blocks[b].id), graph.sizes[b], 0)
        rows += once * segment.repeat
    one = np.array(rows, dtype=np.int64).reshape(-1, 4)
    kind, name, size, duration = np.tile(one, (executor.iterations, 1)).T
    end = np.array(stream.ends, dtype=np.int64)
    start = end - duration
    copies = (kind == SpanKind.COPY_OUT) | (kind == SpanKind.COPY_IN)
    start[copies] = stream.starts
    iteration = np.repeat(np.arange(executor.iterations, dtype=np.int64), len(one))
    return np.full(len(end), rank, dtype=np.int64), kind, name, start, end, size, np.full(len(end), -1), iteration


_COPIES: dict[type, SpanKind] = {CopyOut: SpanKind.COPY_OUT, CopyIn: SpanKind.COPY_IN}


def _stall_columns(executor: Executor, names: _Names) -> tuple[Column, ...]:
    """Columns of the times in which streams waited."""
    code: MachineCode = executor.code
    rows: list[int] = []
    stalls = iter(executor.stalls)
    for stream, segment, pc, begin, end, iteration in zip(*[stalls] * 6, strict=True):
        op = code.segments[stream][segment].ops[pc]
        cause, name = -1, -1
        if op[0] == AWAIT:
            kind = SpanKind.STALL_EVENT
            cause, name = code.signaller[op[1]], names.of(code.signal_name[op[1]])
        elif op[0] == ACQUIRE:
            device = op[1] is executor.memories[0]
            kind = SpanKind.STALL_DEVICE_MEMORY if device else SpanKind.STALL_HOST_MEMORY
        else:
            kind = SpanKind.STALL_ENGINE
        rows += (stream, kind, name, begin, end, 0, cause, iteration)
    return tuple(np.array(rows, dtype=np.int64).reshape(-1, 8).T)
