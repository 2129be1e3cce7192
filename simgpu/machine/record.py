"""From the executor's record to a timeline.

Lives here: giving every span its name, kind, bytes and iteration. A stream executes its ops in order, so the k-th
start and end belong to the k-th timed instruction of its program; nothing needs to be noted during the run.
"""

from __future__ import annotations

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.code import ACQUIRE, AWAIT, MachineCode, work_of
from simgpu.machine.executor import Executor
from simgpu.program.instructions import Program
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
    """Columns of one stream's kernels and copies."""
    stream = executor.streams[rank]
    stream_id = executor.code.streams[rank]
    rows: list[tuple[int, int, int]] = []
    for segment in program.segments:
        works = (work_of(instruction, graph) for instruction in segment.streams.get(stream_id, ()))
        once = [(int(work[0]), names.of(work[1]), work[2]) for work in works if work is not None]
        rows += once * segment.repeat
    one = np.array(rows, dtype=np.int64).reshape(len(rows), 3)
    all_rows = np.tile(one, (executor.iterations, 1))
    count = len(all_rows)
    return (
        np.full(count, rank, dtype=np.int64),
        all_rows[:, 0],
        all_rows[:, 1],
        np.array(stream.starts, dtype=np.int64),
        np.array(stream.ends, dtype=np.int64),
        all_rows[:, 2],
        np.full(count, -1, dtype=np.int64),
        np.repeat(np.arange(executor.iterations, dtype=np.int64), len(rows)),
    )


def _stall_columns(executor: Executor, names: _Names) -> tuple[Column, ...]:
    """Columns of the times in which streams waited."""
    code: MachineCode = executor.code
    rows = []
    for stall in executor.stalls:
        ops = code.segments[stall.stream][stall.segment].ops
        op = ops[stall.pc]
        cause, name = -1, -1
        if op[0] == AWAIT:
            kind = SpanKind.STALL_EVENT
            cause, name = code.signaller[op[1]], names.of(code.signal_name[op[1]])
        elif op[0] == ACQUIRE:
            device = op[1] is executor.memories[0]
            kind = SpanKind.STALL_DEVICE_MEMORY if device else SpanKind.STALL_HOST_MEMORY
        else:
            kind = SpanKind.STALL_ENGINE
        rows.append((stall.stream, int(kind), name, stall.start, stall.end, 0, cause, stall.iteration))
    return tuple(np.array(rows, dtype=np.int64).reshape(len(rows), 8).T)
