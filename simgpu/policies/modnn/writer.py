"""The program that a schedule stands for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from simgpu.graph.taskgraph import TaskGraph
from simgpu.memory.pool import aligned
from simgpu.policies.modnn.lanes import GiveWorkspace, Step, TakeWorkspace
from simgpu.policies.modnn.schedule import Schedule
from simgpu.policies.modnn.tasks import workspaces_of
from simgpu.program.instructions import (
    COMPUTE,
    DATA,
    Acquire,
    CopyIn,
    CopyOut,
    Initialize,
    Instruction,
    Release,
    Segment,
    Space,
)


def segment_of(schedule: Schedule, graph: TaskGraph, repeat: int) -> Segment:
    """The segment of a round. graph: the split graph with the chosen algorithms, so that workspaces have numbers."""
    sizes = [aligned(size, schedule.pool.alignment) for size in graph.sizes]
    compute = [line for step in schedule.compute.code() for line in _instructions(step, graph, sizes)]
    streams = {COMPUTE: tuple(compute)}
    if schedule.data.cells:
        data = [line for step in schedule.data.code() for line in _instructions(step, graph, sizes)]
        streams[DATA] = tuple(_with_host_released(data))
    return Segment(streams, repeat)


def _instructions(step: Step, graph: TaskGraph, sizes: Sequence[int]) -> list[Instruction]:
    if not isinstance(step, TakeWorkspace | GiveWorkspace):
        return [step]
    blocks = workspaces_of(graph, step.kernel)
    if not blocks:
        return []
    if isinstance(step, GiveWorkspace):
        return [Release(blocks)]
    ends = accumulate((sizes[b] for b in blocks), initial=step.offset)
    return [Acquire(blocks, offsets=tuple(ends)[:-1])]


def _with_host_released(data: list[Instruction]) -> list[Instruction]:
    """Host memory of a block is given back after its last copy in the round."""
    last: dict[int, int] = {}
    for position, instruction in enumerate(data):
        if isinstance(instruction, CopyIn | CopyOut):
            last[instruction.block] = position
        elif isinstance(instruction, Initialize):
            last.update(dict.fromkeys(instruction.blocks, position))
    ending: dict[int, list[int]] = {}
    for b, position in last.items():
        ending.setdefault(position, []).append(b)
    code: list[Instruction] = []
    for position, instruction in enumerate(data):
        code.append(instruction)
        if position in ending:
            code.append(Release(tuple(ending[position]), Space.HOST))
    return code
