"""A schedule of nodes as steps, its memory, and the program that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simgpu.policies.common.nodes import KernelRun, Nodes
from simgpu.program.code import CodeWriter
from simgpu.program.instructions import COMPUTE, Program, Segment

#: By node that runs for the first time, the values that are kept for it from the one before.
Kept = list[frozenset[int]]


class NodeRun(NamedTuple):
    """A run of a node in a stage, and the values that are freed after it. again: its kernels, unless it runs first."""

    stage: int
    node: int
    again: tuple[KernelRun, ...]
    frees: tuple[int, ...]


@dataclass(frozen=True)
class NodeSchedule:
    """The runs of nodes, in order."""

    nodes: Nodes
    steps: list[NodeRun]

    @classmethod
    def of(cls, nodes: Nodes, kept: Kept) -> NodeSchedule:
        """The schedule that keeps these values, as far as they are there, and runs again what is missing."""
        steps: list[NodeRun] = []
        there: set[int] = set()
        for t in range(len(nodes.groups)):
            wanted = kept[t + 1] if t + 1 < len(kept) else frozenset()
            runs = [*_missing(nodes, t, wanted, there), t]
            for place, n in enumerate(runs):
                again = () if n == t else tuple(nodes.rerun(n, t, there))
                there.update(nodes.outputs[n])
                needed = {b for each in runs[place + 1 :] for b in nodes.inputs[each]} | wanted
                done = tuple(sorted(b for b in there if b not in needed))
                there.difference_update(done)
                steps.append(NodeRun(t, n, again, done))
        return cls(nodes, steps)

    @property
    def time_ns(self) -> int:
        """The time of all runs."""
        durations = self.nodes.graph.durations
        return sum(durations) + sum(durations[run.kernel] for step in self.steps for run in step.again)

    def peak(self) -> int:
        """Bytes of device memory, at most."""
        nodes, sizes = self.nodes, self.nodes.sizes
        there: set[int] = set()
        most = 0
        for t, n, again, frees in self.steps:
            values = sum(sizes[b] for b in there)
            if n == t:
                most = max(most, values + nodes.first_peak(t))
            now = values + nodes.fixed[t]
            for run in again:
                now += sum(sizes[b] for b in run.takes)
                most = max(most, now)
                now -= sum(sizes[b] for b in run.gives)
            there.update(nodes.outputs[n])
            there.difference_update(frees)
        return most


def _missing(nodes: Nodes, t: int, wanted: frozenset[int], there: set[int]) -> list[int]:
    """The nodes that run again before node t: for its inputs, and for what is kept for the next stage."""
    again: set[int] = set()
    stack = [b for b in (*nodes.inputs[t], *wanted) if b not in there and nodes.maker[b] != t]
    while stack:
        n = nodes.maker[stack.pop()]
        if n not in again:
            again.add(n)
            stack += [b for b in nodes.inputs[n] if b not in there]
    return sorted(again)


def written(nodes: Nodes, schedule: NodeSchedule) -> Program:
    """The program of a schedule."""
    graph, code = nodes.graph, CodeWriter()
    births, deaths, survivors, reinitialized = nodes.lifetimes
    lasting = [b for b, birth in enumerate(graph.births) if birth is not None and birth < 0 and b not in reinitialized]
    if reinitialized:
        code.acquire(reinitialized)
        code.initialize(reinitialized)
    for step in schedule.steps:
        if step.node == step.stage:
            for k in nodes.groups[step.node]:
                if len(births[k]):
                    code.acquire(births[k])
                if initialized := [b for b in births[k] if b in graph.written_by_host]:
                    code.initialize(initialized)
                code.launch(k)
                if dead := [b for b in deaths[k] if b not in nodes.maker]:
                    code.release(dead)
        for run in step.again:
            if run.takes:
                code.acquire(run.takes)
            code.relaunch(run.kernel, run.makes)
            if run.gives:
                code.release(run.gives)
        if step.frees:
            code.release(step.frees)
    if survivors:
        code.release(survivors)
    return Program((Segment({COMPUTE: code.code()}),), resident=tuple(lasting))
