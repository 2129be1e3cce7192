"""A candidate of the search: which calls of modules are checkpointed and what is offloaded, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import NodeSpec
from simgpu.plans.iteration import Checkpointed, Planned, planned
from simgpu.plans.regions import Steps
from simgpu.policies.async_offload import AsyncOffload
from simgpu.policies.base import Policy
from simgpu.policies.common.framework import plain_framework
from simgpu.policies.none import NoPolicy
from simgpu.program.instructions import COMPUTE, DEVICE, Acquire, Launch, Program, Release
from simgpu.simulation.config import RunConfig
from simgpu.simulation.result import Result
from simgpu.simulation.run import planned_run, simulate
from simgpu.trace.model import Trace


class Trail(NamedTuple):
    """Bytes of device memory while each kernel of the planned iteration runs, at most."""

    bytes: tuple[int, ...]

    @property
    def peak(self) -> int:
        """The peak of device memory."""
        return max(self.bytes, default=0)


@dataclass(frozen=True)
class Candidate:
    """regions: what is checkpointed. offloaded: ids of the blocks that are offloaded. prefetch, stash: as parameters of
    `simgpu.policies.async_offload`."""

    steps: Steps = field(compare=False)
    regions: tuple[Checkpointed, ...] = ()
    offloaded: tuple[str, ...] = ()
    prefetch: int = 1
    stash: int = 1

    @cached_property
    def planned(self) -> Planned:
        """The iteration that PyTorch runs."""
        return planned(self.steps, self.regions)

    @property
    def policy(self) -> Policy:
        """The policy that runs it."""
        if not self.offloaded:
            return NoPolicy()
        return AsyncOffload(prefetch=self.prefetch, stash=self.stash, min_bytes=1, blocks=self.offloaded)

    @property
    def recompute_ns(self) -> int:
        """Time of the kernels that run again."""
        kernels = self.steps.trace.kernels
        return sum(kernels[k].duration_ns for rerun in self.planned.reruns for k in rerun)

    def trail(self, node: NodeSpec) -> Trail:
        """The use of device memory, which does not depend on times: compute requests and frees all of it in order."""
        run = planned_run(self.planned.trace, node, self.policy, RunConfig(iterations=1))
        return trail_of(run.program, transformed(run.graph, run.program.transforms))

    def run(self, node: NodeSpec, budget: int) -> Result:
        """The simulated run. Raises `OutOfMemoryError` where it does not fit."""
        return simulate(self.planned.trace, node, self.policy, budget=budget)


def plain_trail(trace: Trace) -> Trail:
    """The use of memory of an iteration as it was recorded.

    >>> from simgpu.trace.chain import chain
    >>> plain_trail(chain([5, 7], [10, 14], [100, 200])).peak
    300
    """
    graph = TaskGraph.of(trace)
    return trail_of(plain_framework(graph), graph)


def trail_of(program: Program, graph: TaskGraph) -> Trail:
    """The use of memory of a program whose compute stream acquires and releases all device memory.

    >>> from simgpu.policies.common.framework import plain_framework
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> trail_of(plain_framework(graph), graph)
    Trail(bytes=(300, 300, 300, 100))
    """
    used = most = sum(graph.sizes[b] for b in program.resident)
    trail: list[int] = []
    has_just_run = False
    for instruction in program.segments[0].streams[COMPUTE]:
        match instruction:
            case Acquire(blocks, memory) if memory == DEVICE:
                used, has_just_run = used + sum(graph.sizes[b] for b in blocks), False
                most = max(most, used)
            case Release(blocks, memory) if memory == DEVICE:
                used -= sum(graph.sizes[b] for b in blocks)
                # What a kernel releases when it ends is still there while it runs, and not when the next one does.
                most = used if has_just_run else most
            case Launch():
                trail.append(most)
                most, has_just_run = used, True
    return Trail(tuple(trail))
