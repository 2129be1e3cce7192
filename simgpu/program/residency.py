"""Programs that move no blocks: launches fault blocks in on demand, or kernels access host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from simgpu.program.code import Code, coded
from simgpu.program.instructions import HOST, InitialContents, Program, Segment
from simgpu.program.opcodes import ACQUIRE, INITIALIZE, RELEASE
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
    return replace(_changed(program, _without_requests), residency=how)


def in_host_memory(program: Program) -> Program:
    """The same kernels in the same order with all blocks in the host's pinned memory, where kernels reach them.

    program: as for `on_demand`.
    """
    on_host = InitialContents(HOST, program.resident)
    return replace(_changed(program, _on_host), resident=(), other_contents=(on_host,), residency=Remote())


def _without_requests(code: Code) -> Code:
    return Code(code.rows[code.rows[:, 0] != ACQUIRE], code.blocks, code.memories, code.ways)


def _on_host(code: Code) -> Code:
    rows = code.rows.copy()
    rows[np.isin(rows[:, 0], (ACQUIRE, RELEASE, INITIALIZE)), 1] = code.memories.index(HOST)
    return Code(rows, code.blocks, code.memories, code.ways)


def _changed(program: Program, change: Callable[[Code], Code]) -> Program:
    segments = tuple(
        Segment({stream: change(coded(code)) for stream, code in segment.streams.items()}, segment.repeat)
        for segment in program.segments
    )
    return replace(program, segments=segments)
