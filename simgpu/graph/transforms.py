"""Pure transforms: a task graph in, a new one out, the old one untouched.

Lives here: choosing convolution algorithms. Does not live here: who chooses, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import AlgorithmChoice, Block, BlockKind


def algorithm_choices(graph: TaskGraph) -> dict[int, tuple[AlgorithmChoice, ...]]:
    """For each kernel that has a choice, its algorithms from fastest to slowest (ties: less workspace, then name)."""
    choices: dict[int, list[AlgorithmChoice]] = {}
    for choice in graph.trace.algorithms:
        choices.setdefault(graph.kernel_number[choice.kernel], []).append(choice)
    return {
        k: tuple(sorted(found, key=lambda c: (c.duration_ns, c.workspace_bytes, c.algorithm)))
        for k, found in sorted(choices.items())
    }


def with_algorithms(graph: TaskGraph, chosen: Mapping[int, str]) -> TaskGraph:
    """The graph with those kernels run by those algorithms: their duration and their workspace change.

    chosen: kernel position to algorithm name. A kernel whose recording has no workspace block gets one, named
    ``workspace:<kernel>``; a workspace of zero bytes is no block. Raises `ProgramError` for an unknown algorithm.
    """
    if not chosen:
        return graph
    kernels = list(graph.kernels)
    blocks = {block.id: block for block in graph.blocks}
    table = {(graph.kernel_number[c.kernel], c.algorithm): c for c in graph.trace.algorithms}
    for k, name in chosen.items():
        choice = table.get((k, name))
        if choice is None:
            raise ProgramError(f"kernel {kernels[k].id} has no algorithm '{name}'")
        kernel = replace(kernels[k], duration_ns=choice.duration_ns)
        old = [b for b in kernel.writes if blocks[b].kind is BlockKind.WORKSPACE]
        for block in old:
            del blocks[block]
        writes = tuple(b for b in kernel.writes if b not in old)
        if choice.workspace_bytes:
            workspace = old[0] if old else f"workspace:{kernel.id}"
            blocks[workspace] = Block(workspace, choice.workspace_bytes, BlockKind.WORKSPACE, release=kernel.id)
            writes += (workspace,)
        reads = tuple(b for b in kernel.reads if b not in old)
        kernels[k] = replace(kernel, reads=reads, writes=writes)
    return TaskGraph.of(replace(graph.trace, kernels=tuple(kernels), blocks=tuple(blocks.values())))
