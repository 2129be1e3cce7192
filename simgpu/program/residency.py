"""Programs that move nothing: blocks that a launch faults in, and blocks that a kernel reads where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simgpu.program.instructions import (
    Acquire,
    InitialContents,
    Initialize,
    Instruction,
    Program,
    Release,
    Segment,
    Space,
)
from simgpu.program.paging import Paged, Remote


def on_demand(program: Program, how: Paged) -> Program:
    """The same kernels in the same order with all blocks on demand: nothing takes memory for them, a launch faults in
    what it touches, and a release lets go of a block's pages wherever they are.

    program: one that moves nothing, as `simgpu.program.lowering.lower` writes it for an empty placement.

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
    given = InitialContents(None, program.resident)
    return replace(_changed(program, _on_host), resident=(), other_contents=(given,), residency=Remote())


def _on_host(instruction: Instruction) -> Instruction:
    if isinstance(instruction, Acquire | Release | Initialize):
        return replace(instruction, space=Space.HOST)
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
