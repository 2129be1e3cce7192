"""`modnn`: sub-batches, a static schedule of transfers, and convolution algorithms for a memory budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Literal

from simgpu.errors import OutOfMemoryError
from simgpu.garbage import no_collection
from simgpu.graph.bounds import check_bound
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithAlgorithms, transformed
from simgpu.memory.addressed import AddressedPool
from simgpu.memory.pool import aligned
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream
from simgpu.policies.common.sub_batches import partitioned
from simgpu.policies.modnn.schedule import Schedule
from simgpu.policies.modnn.streams import AcquireWorkspace, ReleaseWorkspace, StreamEntry
from simgpu.policies.modnn.tasks import resident_blocks, tasks_of, workspaces_of
from simgpu.program.instructions import (
    COMPUTE,
    DATA,
    HOST,
    Acquire,
    Copy,
    Initialize,
    Instruction,
    Program,
    Release,
    Segment,
)
from simgpu.units import format_time


@dataclass(frozen=True)
class Plan:
    """moDNN's decisions.

    sub_batch: samples per sub-batch. schedules: one for each round of the split graph. finish_ns: the predicted step
    time, which is exact where each copy has its link alone and no DMA engine limits its rate.
    """

    program: Program
    sub_batch: int
    schedules: tuple[Schedule, ...]
    finish_ns: int


@dataclass(frozen=True)
class Modnn(Policy):
    """Fit any budget: partition the batch, then schedule transfers and choose algorithms by their gain."""

    name = "modnn"
    summary = "sub-batches, a static schedule of transfers and convolution algorithms for any memory budget"
    source = "Chen et al., IEEE TPDS 30(3), 2019, section 5"
    splits_batch = True

    sub_batch: int = parameter(0, "samples at a time; 0 lets equation 8 choose")
    alpha: float = parameter(0.15, "share of consecutive tasks that memory holds at once in equation 8")
    counted: Literal["touched", "live"] = parameter(
        "touched", "data that count there: all that those tasks touch, as printed, or the most that live at once"
    )
    algorithms: Literal["gain", "fastest", "smallest"] = parameter(
        "gain", "convolution algorithms: by equation 10, always the fastest, or those with the least workspace"
    )

    def plan(self, context: PlanContext) -> Program:
        """The program of all rounds. Raises `OutOfMemoryError` for a budget below the bound of equation 7."""
        return self.planned(context).program

    @no_collection()
    def planned(self, context: PlanContext) -> Plan:
        """The program and the schedules that it follows."""
        require_one_stream(context.graph, self.name)
        graph, size, notes = partitioned(context, self.sub_batch, self.alpha, self.counted)
        check_bound(graph, context.budget, context.node.gpu.alignment)
        events = count()
        schedules = []
        for part in graph.rounds:
            tasks = tasks_of(graph, part, context.node.link, context.node.gpu.alignment)
            schedule = Schedule(tasks, _pool(graph, context), events, self.algorithms)
            schedule.run()
            schedules.append(schedule)
        chosen = tuple(sorted((k, name) for each in schedules for k, name in each.chosen.items()))
        algorithms = WithAlgorithms(chosen)
        final = transformed(graph, (algorithms,))
        finish = sum(part.repeat * each.compute.now for part, each in zip(graph.rounds, schedules, strict=True))
        cleared = sum(part.repeat * len(each.defragmented) for part, each in zip(graph.rounds, schedules, strict=True))
        if cleared:
            notes.append(f"memory is defragmented {cleared} times per iteration")
        uncapped = ", without slowdown of copies by the DMA engine" if context.node.gpu.cdma else ""
        notes.append(f"planned step time: {format_time(finish)}{uncapped}")
        program = Program(
            tuple(segment_of(each, final, part.repeat) for part, each in zip(graph.rounds, schedules, strict=True)),
            resident=resident_blocks(graph),
            transforms=(Split(size), algorithms),
            pool="addressed",
            notes=tuple(notes),
        )
        return Plan(program, size, tuple(schedules), finish)


def _pool(graph: TaskGraph, context: PlanContext) -> AddressedPool:
    """The memory of the GPU with its permanently resident blocks."""
    pool = AddressedPool(context.budget, context.node.gpu.alignment)
    resident = resident_blocks(graph)
    request = pool.prepare(resident, [graph.sizes[b] for b in resident])
    if not pool.acquire(request):
        holders = sorted(((graph.blocks[b].id, graph.sizes[b]) for b in resident), key=lambda h: (-h[1], h[0]))
        what = "the permanently resident blocks, before the first kernel,"
        raise OutOfMemoryError(
            what, "device", request[1], context.budget, context.budget, context.budget, 0, tuple(holders)
        )
    return pool


def segment_of(schedule: Schedule, graph: TaskGraph, repeat: int) -> Segment:
    """The segment of a round. graph: the split graph with the chosen algorithms, so that workspaces have numbers."""
    sizes = [aligned(size, schedule.pool.alignment) for size in graph.sizes]
    compute = [line for step in schedule.compute.code() for line in _instructions(step, graph, sizes)]
    streams = {COMPUTE: tuple(compute)}
    if schedule.data.cells:
        data = [line for step in schedule.data.code() for line in _instructions(step, graph, sizes)]
        streams[DATA] = tuple(_with_host_released(data))
    return Segment(streams, repeat)


def _instructions(step: StreamEntry, graph: TaskGraph, sizes: Sequence[int]) -> list[Instruction]:
    if not isinstance(step, AcquireWorkspace | ReleaseWorkspace):
        return [step]
    blocks = workspaces_of(graph, step.kernel)
    if not blocks:
        return []
    if isinstance(step, ReleaseWorkspace):
        return [Release(blocks)]
    ends = accumulate((sizes[b] for b in blocks), initial=step.offset)
    return [Acquire(blocks, offsets=tuple(ends)[:-1])]


def _with_host_released(data: list[Instruction]) -> list[Instruction]:
    """The instructions with a release of each block's host memory after its last copy in the round."""
    last: dict[int, int] = {}
    for position, instruction in enumerate(data):
        if isinstance(instruction, Copy):
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
            code.append(Release(tuple(ending[position]), HOST))
    return code
