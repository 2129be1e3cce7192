"""What an iteration asks for, kernel by kernel, whatever a policy decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simgpu.graph.taskgraph import BEFORE, TaskGraph
from simgpu.program.lifetimes import lifetimes


class Iteration(NamedTuple):
    """used[k]: blocks that kernel k uses and that live before it. initialized[k]: those that are born with it and whose
    values the host writes. births, deaths, survivors, reinitialized: see
    `simgpu.program.lifetimes`, as the framework has them. lasting: persistent blocks that are not reinitialized."""

    used: list[tuple[int, ...]]
    initialized: list[tuple[int, ...]]
    births: list[Sequence[int]]
    deaths: list[Sequence[int]]
    survivors: list[int]
    reinitialized: list[int]
    lasting: list[int]

    @classmethod
    def of(cls, graph: TaskGraph) -> Iteration:
        """That of a graph, found once.

        >>> from simgpu.trace.chain import chain
        >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
        >>> [[graph.blocks[b].id for b in blocks] for blocks in Iteration.of(graph).used]
        [['x1'], ['x2'], ['x2', 'x3'], ['x1', 'g2']]
        """
        known: Iteration | None = graph.kept.get(("iteration",))
        if known is None:
            lives = lifetimes(graph, graph.recorded_releases)
            used = [
                tuple([b for b in dict.fromkeys((*reads, *writes)) if b not in born])
                for reads, writes, born in zip(graph.reads, graph.writes, lives.births, strict=True)
            ]
            by_host = graph.written_by_host
            initialized = [tuple([b for b in born if b in by_host]) if by_host else () for born in lives.births]
            passing = set(lives.reinitialized)
            lasting = [b for b, birth in enumerate(graph.births) if birth == BEFORE and b not in passing]
            known = graph.kept["iteration",] = cls(used, initialized, *lives, lasting)
        return known
