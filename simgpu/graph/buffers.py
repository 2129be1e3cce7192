"""Memory that a framework has for itself while it copies: blocks that no kernel uses."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import in_versions, rebuilt
from simgpu.trace.model import Block, BlockKind


@dataclass(frozen=True, slots=True)
class WithBuffers:
    """Add these buffers at the end of the graph's blocks, by name and bytes. No other block may have such a name.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> more = WithBuffers((("staging", 60),)).apply(graph)
    >>> more.blocks[-1].id, more.sizes[-1], more.uses[-1]
    ('staging', 60, ())
    """

    buffers: tuple[tuple[str, int], ...]

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph with the buffers."""
        added = (Block(name, size, BlockKind.OTHER) for name, size in self.buffers)
        return in_versions(rebuilt(graph, graph.kernels, (*graph.blocks, *added)))
