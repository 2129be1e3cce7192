"""Programs that move no blocks: launches fault blocks in on demand, or kernels access host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simgpu.program.instructions import (
    HOST,
    Acquire,
    InitialContents,
    Initialize,
    Instruction,
    Program,
    Release,
    Segment,
)
from simgpu.program.paging import Paged, Remote


def on_demand(program: Program, how: Paged) -> Program:
    """The same kernels in the same order with all blocks on demand: launches fault in the pages they access, and a
    release frees a block's pages in both memories.

    program: one that moves no blocks, as `simgpu.program.lowering.lower` writes it for an empty placement.

    >>> from simgpu.graph.taskgraph import TaskGraph
    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.program.text import listing
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> print(listing(on_demand(lower(graph, Placement()), Paged()), graph))
    on demand: pages of 65536 B
    resident: x1
    segment 0, once
      compute
        launch F1
        launch B1
        release x2 g1
    """
    return replace(
        _changed(program, lambda instruction: None if isinstance(instruction, Acquire) else instruction), residency=how
    )


def in_host_memory(program: Program) -> Program:
    """The same kernels in the same order with all blocks in the host's pinned memory, where kernels reach them.

    program: as for `on_demand`.
    """
    on_host = InitialContents(HOST, program.resident)
    return replace(_changed(program, _on_host), resident=(), other_contents=(on_host,), residency=Remote())


def _on_host(instruction: Instruction) -> Instruction:
    if isinstance(instruction, Acquire | Release | Initialize):
        return replace(instruction, memory=HOST)
    return instruction


def _changed(program: Program, change: Callable[[Instruction], Instruction | None]) -> Program:
    segments = tuple(
        Segment(
            {
                stream: tuple(new for instruction in code if (new := change(instruction)) is not None)
                for stream, code in segment.streams.items()
            },
            segment.repeat,
        )
        for segment in program.segments
    )
    return replace(program, segments=segments)
