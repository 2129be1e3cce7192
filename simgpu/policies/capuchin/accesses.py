"""What the measured iteration of Capuchin tells: when every block is accessed, and when memory is at its peak.

Public summaries agree that an access is noted with its time at the start and at the end of each computation. That the
times leave out the stalls of swapping on demand, so that they are those of an iteration with enough memory, is told by
a re-implementation alone (tinyflow takes the time of evictions off its clock).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.policies.base import PlanContext
from simgpu.policies.capuchin.passive import demand, passive_program
from simgpu.policies.vdnn import require_one_stream
from simgpu.timeline.model import SpanKind, Timeline


class Use(NamedTuple):
    """A kernel touches a block from `start_ns` to `end_ns` of the iteration, stalls of swapping left out."""

    kernel: int
    start_ns: int
    end_ns: int


class Peak(NamedTuple):
    """From the first kernel that runs when most memory is asked for to the last: kernels, and their times (ns)."""

    first: int
    last: int
    start_ns: int
    end_ns: int
    bytes: int


@dataclass(frozen=True)
class Accesses:
    """The measured iteration.

    starts_ns[k], ends_ns[k]: of each kernel, stalls left out. demand[k]: bytes that would be held while it runs if
    nothing was evicted. swapping_ns: what swapping on demand added to the iteration.
    """

    graph: TaskGraph
    starts_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    demand: tuple[int, ...]
    swapping_ns: int

    def uses(self, b: int) -> tuple[Use, ...]:
        """When a block is accessed, in order."""
        return tuple(Use(k, self.starts_ns[k], self.ends_ns[k]) for k in self.graph.uses[b])

    @cached_property
    def peak(self) -> Peak:
        """When most memory is asked for, the first and last moment of it."""
        most = max(self.demand)
        at = [k for k, held in enumerate(self.demand) if held == most]
        return Peak(at[0], at[-1], self.starts_ns[at[0]], self.ends_ns[at[-1]], most)


def passive_run(context: PlanContext) -> Accesses:
    """Run an iteration in passive mode and tell its accesses.

    Raises `InputError` for a trace with several compute streams or without what its kernels read, and
    `OutOfMemoryError` where even passive mode cannot run within the budget.
    """
    graph, alignment = context.graph, context.node.gpu.alignment
    require_one_stream(graph, "capuchin")
    trial = context.trial(passive_program(graph, context.budget, alignment))
    durations = _measured(trial.timeline, graph)
    ends = tuple(accumulate(durations))
    starts = tuple(end - duration for end, duration in zip(ends, durations, strict=True))
    return Accesses(graph, starts, ends, demand(graph, alignment), trial.iteration_ns - sum(durations))


def _measured(timeline: Timeline, graph: TaskGraph) -> tuple[int, ...]:
    """How long each kernel ran in the last iteration of a run, ns."""
    last = len(timeline.iteration_ends_ns) - 1
    mine = (timeline.kind == SpanKind.COMPUTE) & (timeline.iteration == last)
    durations = np.zeros(len(graph.kernels), dtype=np.int64)
    numbers = [graph.kernel_number[timeline.names[name]] for name in timeline.name[mine].tolist()]
    durations[numbers] = (timeline.end_ns - timeline.start_ns)[mine]
    return tuple(durations.tolist())
