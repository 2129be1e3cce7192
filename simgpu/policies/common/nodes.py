"""Kernels in groups as nodes of a schedule: the values between them, and the memory of everything else.

A value is a block that can be recomputed whenever a kernel needs it, and that one group makes alone. All other blocks
are fixed: they live as the framework has them live.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from simgpu.graph.taskgraph import NEVER, TaskGraph
from simgpu.memory.pool import aligned
from simgpu.online.recomputation import Recomputation
from simgpu.program.lifetimes import Lifetimes, lifetimes


def groups_of(graph: TaskGraph, most: int) -> list[range]:
    """Neighbouring kernels in groups: one for each kernel, if these are not more than `most`.

    Else kernels of a layer and phase that follow each other are together, and then the shortest pairs of neighbours.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> len(groups_of(graph, 10)), groups_of(graph, 4)
    (6, [range(0, 3), range(3, 4), range(4, 5), range(5, 6)])
    """
    kernels = graph.kernels
    groups = [range(k, k + 1) for k in range(len(kernels))]
    if len(groups) > most:
        runs = (
            list(run) for _, run in groupby(range(len(kernels)), lambda k: (kernels[k].layer or k, kernels[k].phase))
        )
        groups = [range(run[0], run[-1] + 1) for run in runs]
    times = [sum(graph.durations[k] for k in group) for group in groups]
    while len(groups) > most:
        pairs = (
            (times[n] + times[n + 1], n)
            for n in range(len(groups) - 1)
            if kernels[groups[n][0]].phase == kernels[groups[n + 1][0]].phase
        )
        least = min(pairs, default=None)
        if least is None:
            break
        n = least[1]
        groups[n : n + 2] = [range(groups[n].start, groups[n + 1].stop)]
        times[n : n + 2] = [times[n] + times[n + 1]]
    return groups


class KernelRun(NamedTuple):
    """A kernel that runs again, the blocks that it makes, those it acquires, and those besides values it releases."""

    kernel: int
    makes: tuple[int, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]


@dataclass(frozen=True)
class Nodes:
    """The groups as nodes, numbered in order. alignment: bytes that the size of each block is rounded up to."""

    graph: TaskGraph
    groups: list[range]
    alignment: int = 1

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each block, padding counted."""
        return [aligned(size, self.alignment) for size in self.graph.sizes]

    @cached_property
    def recomputation(self) -> Recomputation:
        """Which blocks can be recomputed."""
        return Recomputation.of(self.graph)

    @cached_property
    def lifetimes(self) -> Lifetimes:
        """Of all blocks, as the framework has them."""
        return lifetimes(self.graph, self.graph.recorded_releases)

    @cached_property
    def node_of(self) -> list[int]:
        """The node of each kernel."""
        return [n for n, group in enumerate(self.groups) for _ in group]

    @cached_property
    def maker(self) -> dict[int, int]:
        """The values, and the node that makes each."""
        recomputation, graph = self.recomputation, self.graph
        alone: list[list[int]] = [[] for _ in self.groups]
        for b, writers in enumerate(recomputation.writers):
            nodes = {self.node_of[k] for k in writers}
            if len(nodes) == 1 and graph.sizes[b] and not recomputation.is_kept(b):
                alone[nodes.pop()].append(b)
        found: dict[int, int] = {}
        until: list[int] = []
        for n, blocks in enumerate(alone):
            until.append(self._until(n, found, until))
            for b in blocks:
                elsewhere = [k for k in graph.uses[b] if self.node_of[k] != n]
                if elsewhere and min(until[n], recomputation.until[b]) >= elsewhere[-1]:
                    found[b] = n
        return found

    def _until(self, n: int, found: Mapping[int, int], until: Sequence[int]) -> int:
        """The kernel before which all kernels of a node can run again. found, until: of the nodes before it."""
        recomputation, limits = self.recomputation, [NEVER]
        for k in self.groups[n]:
            if not recomputation.ancestry.outputs[k]:
                continue  # it only counts batches, say, and is left out
            if not recomputation.ancestry.repeatable(k):
                return -1
            limits += [recomputation.until[b] for b in recomputation.ancestry.outputs[k]]
            for b in recomputation.ancestry.inputs[k]:
                release = recomputation.releases[b]
                if b in found:
                    limits.append(until[found[b]])
                elif release is not None and any(self.node_of[w] != n for w in recomputation.writers[b]):
                    # It is fixed, and gone when the framework has freed it.
                    limits.append(release)
        return min(limits)

    @cached_property
    def outputs(self) -> list[tuple[int, ...]]:
        """The values that each node makes."""
        made: list[list[int]] = [[] for _ in self.groups]
        for b, n in self.maker.items():
            made[n].append(b)
        return [tuple(each) for each in made]

    @cached_property
    def inputs(self) -> list[tuple[int, ...]]:
        """The values of other nodes that each node reads, or changes."""
        graph, inputs = self.graph, []
        for n, group in enumerate(self.groups):
            used = dict.fromkeys(b for k in group for b in (*graph.reads[k], *graph.writes[k]))
            inputs.append(tuple(b for b in used if self.maker.get(b, n) != n))
        return inputs

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """For each value the nodes that read it, other than the one that makes it."""
        users: dict[int, list[int]] = {b: [] for b in self.maker}
        for n, inputs in enumerate(self.inputs):
            for b in inputs:
                users[b].append(n)
        return {b: tuple(each) for b, each in users.items()}

    @cached_property
    def last(self) -> dict[int, int]:
        """For each value the last node for which it may be needed: as an input, or to recompute what is needed then."""
        last: dict[int, int] = {}
        for b in sorted(self.maker, key=lambda each: -self.maker[each]):
            own = self.users[b]
            last[b] = max((max(n, *(last[v] for v in self.outputs[n]), 0) for n in own), default=self.maker[b])
        return last

    @cached_property
    def times(self) -> list[int]:
        """The time of each node's kernels, ns."""
        return [sum(self.graph.durations[k] for k in group) for group in self.groups]

    # --- memory -----------------------------------------------------------------------------------------------

    @cached_property
    def fixed(self) -> list[int]:
        """Bytes of fixed blocks before each node runs for the first time, and at the end."""
        sizes, births, deaths = self.sizes, self.lifetimes.births, self.lifetimes.deaths
        now = sum(sizes[b] for b, birth in enumerate(self.graph.births) if birth is not None and birth < 0)
        result = []
        for group in self.groups:
            result.append(now)
            for k in group:
                now += sum(sizes[b] for b in births[k] if b not in self.maker)
                now -= sum(sizes[b] for b in deaths[k] if b not in self.maker)
        return [*result, now]

    def first_peak(self, n: int) -> int:
        """Bytes while a node runs for the first time: fixed blocks, and its own values."""
        sizes, births, deaths = self.sizes, self.lifetimes.births, self.lifetimes.deaths
        now, most = self.fixed[n], 0
        for k in self.groups[n]:
            now += sum(sizes[b] for b in births[k])
            most = max(most, now)
            now -= sum(sizes[b] for b in deaths[k] if b not in self.maker)
        return most

    def rerun_peak(self, n: int, before: int) -> int:
        """Bytes that a node takes at most while it runs again, when node `before` is to run next."""
        most = now = 0
        for run in self.rerun(n, before, frozenset()):
            now += sum(self.sizes[b] for b in run.takes)
            most = max(most, now)
            now -= sum(self.sizes[b] for b in run.gives)
        return most

    def rerun(self, n: int, before: int, values: Collection[int]) -> list[KernelRun]:
        """How a node runs again when node `before` is to run next and these values are there."""
        ancestry, group, kernel = self.recomputation.ancestry, self.groups[n], self.groups[before][0]
        there = set[int]()
        result = []
        for k in group:
            makes = tuple(b for b in ancestry.outputs[k] if b not in values and not self._is_alive(b, kernel))
            if not makes:
                continue
            takes = tuple(b for b in makes if b not in there)
            there.update(takes)
            done = tuple(b for b in there if b not in self.maker and self._last_in(b, group) <= k)
            there.difference_update(done)
            result.append(KernelRun(k, makes, takes, done))
        return result

    def _last_in(self, b: int, group: range) -> int:
        return max((k for k in self.graph.uses[b] if k in group), default=group.start)

    def _is_alive(self, b: int, kernel: int) -> bool:
        """Whether a fixed block has memory before a kernel."""
        if b in self.maker:
            return False
        release, birth = self.recomputation.releases[b], self.graph.births[b]
        return birth is not None and birth < kernel and (release is None or release >= kernel)
