"""Kernels that a framework runs again whatever they are, and makes to give the same again.

PyTorch's checkpointing puts the state of its random numbers back before a part runs again, so that a dropout draws the
same mask, and a batch norm finds the same batch. What such kernels count or average over iterations moves a second time
then. No other kernel of forward or backward reads that, so for the graph these kernels do not write it at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import rebuilt
from simgpu.graph.unpacked import in_versions


@dataclass(frozen=True, slots=True)
class Repeating:
    """These kernels, by position, give the same again: see `repeating`."""

    kernels: tuple[int, ...]

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph in which they may run again."""
        return repeating(graph, self.kernels)


def repeating(graph: TaskGraph, kernels: tuple[int, ...]) -> TaskGraph:
    """The graph in which these kernels are pure and change nothing that lasts beyond the iteration.

    >>> from simgpu.trace.chain import chain
    >>> made = chain([5], [7], [100])
    >>> drawn = replace(made, kernels=(replace(made.kernels[0], op="aten::bernoulli_", pure=False), *made.kernels[1:]))
    >>> repeating(TaskGraph.of(drawn), (0,)).kernels[0].pure
    True
    """
    persistent = {block.id for block in graph.blocks if block.persistent}
    changed = list(graph.kernels)
    for k in kernels:
        writes = tuple(name for name in changed[k].writes if name not in persistent)
        changed[k] = replace(changed[k], pure=True, writes=writes)
    return in_versions(rebuilt(graph, changed, graph.blocks))
