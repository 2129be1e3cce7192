"""Schedules of single kernels: what other policies do that only recompute, and a search from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, get_args, get_type_hints

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.functional import Functional
from simgpu.graph.taskgraph import TaskGraph, Transform
from simgpu.graph.transforms import transformed
from simgpu.policies.base import PlanContext, policy_label
from simgpu.policies.checkmate.improving import improved
from simgpu.policies.checkmate.stage_costs import StageCosts
from simgpu.policies.common.node_schedule import NodeSchedule, written
from simgpu.policies.common.nodes import Nodes
from simgpu.policies.dtr.policy import Dtr
from simgpu.policies.revolve import layers_of, most_snapshots
from simgpu.program.instructions import COMPUTE, Launch, Program


class Known(NamedTuple):
    """A program that fits, where it is from, and the time of its kernels."""

    label: str
    program: Program
    time_ns: int


@dataclass(frozen=True)
class SingleKernels:
    """An iteration with these transforms, each kernel a node."""

    context: PlanContext
    transforms: tuple[Transform, ...]

    @cached_property
    def nodes(self) -> Nodes:
        """The kernels."""
        graph = transformed(self.context.graph, self.transforms)
        return Nodes(graph, [range(k, k + 1) for k in range(len(graph.kernels))], self.context.node.gpu.alignment)

    @cached_property
    def known(self) -> tuple[Known, ...]:
        """What `dtr` does, if it has the same transforms, and Revolve's snapshots, if the network is a chain."""
        return (*(self._dtr() if self.transforms == (Functional(),) else ()), *self._snapshots())

    def searched(self, starts: Sequence[Program], evaluations: int) -> list[Known]:
        """What is known, and what a search finds from it and from other programs; as far as it fits."""
        context, values = self.context, StageCosts(self.nodes, self.context.budget)
        flags = [*(values.of(each) for each in (*starts, *(each.program for each in self.known))), values.none]

        def report(number: int) -> None:
            context.progress(f"searching a schedule of {len(self.nodes.groups)} kernels, {number} of {len(flags)}")

        schedule = improved(values, flags, evaluations, context.rng, report)
        if schedule.peak() > context.budget:
            return [*self.known]
        return [self._known("a search, kernel by kernel", schedule), *self.known]

    def _dtr(self) -> Iterator[Known]:
        for heuristic in get_args(get_type_hints(Dtr)["heuristic"]):
            policy = Dtr(heuristic)
            with suppress(OutOfMemoryError):
                program = policy.plan(self.context)
                yield Known(policy_label(policy), program, time_of(program, self.nodes.graph))

    def _snapshots(self) -> Iterator[Known]:
        with suppress(InputError):
            schedule, _ = most_snapshots(self.nodes, layers_of(self.nodes), self.context.budget)
            if schedule.peak() <= self.context.budget:
                yield self._known("revolve", schedule)

    def _known(self, label: str, schedule: NodeSchedule) -> Known:
        program = replace(written(self.nodes, schedule), transforms=self.transforms)
        return Known(label, program, schedule.time_ns)


def time_of(program: Program, graph: TaskGraph) -> int:
    """The time of a program's kernels, ns."""
    launches = (each for segment in program.segments for each in segment.streams[COMPUTE])
    return sum(graph.durations[each.kernel] for each in launches if isinstance(each, Launch))
