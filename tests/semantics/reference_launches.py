"""The blocks that a launch accesses on the reference machine."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import Launch
from simgpu.trace.model import BlockKind


def touched(graph: TaskGraph, launch: Launch) -> tuple[Sequence[int], Sequence[int]]:
    """The blocks that a launch reads and writes; a relaunch reads its saved random outputs instead of drawing again."""
    k = launch.kernel
    if not launch.recompute:
        return graph.reads[k], graph.writes[k]
    passing = [b for b in graph.writes[k] if not graph.blocks[b].persistent]
    results = [b for b in passing if graph.blocks[b].kind is not BlockKind.WORKSPACE]
    saved = [] if graph.kernels[k].pure else results[1:]
    reads = [b for b in graph.reads[k] if b not in graph.writes[k] or not graph.blocks[b].persistent]
    return [*reads, *saved], launch.makes or [b for b in passing if b not in saved]
