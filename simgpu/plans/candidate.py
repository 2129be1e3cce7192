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
from simgpu.policies.none import NoPolicy
from simgpu.program.instructions import COMPUTE, DEVICE, Acquire, Launch, Program, Release
from simgpu.simulation.config import RunConfig
from simgpu.simulation.result import Result
from simgpu.simulation.run import planned_run, simulate


class Peak(NamedTuple):
    """bytes: the peak of device memory. kernel: the position, in the planned iteration, of the kernel that reaches it."""

    bytes: int
    kernel: int


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

    def peak(self, node: NodeSpec) -> Peak:
        """The peak of device memory, which does not depend on times: compute requests and frees all of it in order."""
        run = planned_run(self.planned.trace, node, self.policy, RunConfig(iterations=1))
        return peak_of(run.program, transformed(run.graph, run.program.transforms))

    def run(self, node: NodeSpec, budget: int) -> Result:
        """The simulated run. Raises `OutOfMemoryError` where it does not fit."""
        return simulate(self.planned.trace, node, self.policy, budget=budget)


def peak_of(program: Program, graph: TaskGraph) -> Peak:
    """The peak of a program whose compute stream acquires and releases all device memory.

    >>> from simgpu.policies.common.framework import plain_framework
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> peak_of(plain_framework(graph), graph)
    Peak(bytes=800, kernel=2)
    """
    used = peak = sum(graph.sizes[b] for b in program.resident)
    at, launched = -1, -1
    for instruction in program.segments[0].streams[COMPUTE]:
        match instruction:
            case Acquire(blocks, memory) if memory == DEVICE:
                used += sum(graph.sizes[b] for b in blocks)
                if used > peak:
                    peak, at = used, launched + 1
            case Release(blocks, memory) if memory == DEVICE:
                used -= sum(graph.sizes[b] for b in blocks)
            case Launch(kernel):
                launched = kernel
    return Peak(peak, max(at, 0))
