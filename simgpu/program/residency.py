"""Programs that acquire no memory: launches fault blocks in on demand, or kernels access host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from simgpu.program.code import Code, coded
from simgpu.program.instructions import (
    D2H,
    DEVICE,
    H2D,
    HOST,
    Await,
    Copy,
    InitialContents,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
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


def with_prefetches(program: Program, ahead: Sequence[Sequence[int]]) -> Program:
    """A program on demand that also prefetches, when each kernel k begins, the blocks `ahead[k]`, on the H2D stream.

    A block is released by the D2H stream, when its last kernel has ended and its last prefetch is over, so that kernels
    do not wait for prefetches. The next iteration begins after all releases.

    program: of one segment with one stream.

    >>> from simgpu.graph.taskgraph import TaskGraph
    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.program.text import listing
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> print(listing(with_prefetches(on_demand(lower(graph, Placement()), Paged()), [[0, 2], []]), graph))
    on demand: pages of 65536 B
    resident: x1
    segment 0, once
      compute
        signal 0
        launch F1
        signal 1
        launch B1
        signal 2
        await 3
      h2d
        await 0
        copy x1 from host to device
        copy g1 from host to device
        signal 4
      d2h
        await 2
        await 4
        release x2 g1
        signal 3
    """
    (segment,) = program.segments
    ((compute, given),) = segment.streams.items()
    count = sum(isinstance(each, Launch) for each in given)
    done, released, prefetched = count, count + 1, count + 2  # events; before them, one for the begin of each kernel
    last = {b: k for k, blocks in enumerate(ahead) for b in blocks}
    kernels: list[Instruction] = []
    releases: list[Instruction] = []
    begun = 0
    for each in given:
        if isinstance(each, Launch):
            kernels.append(Signal(begun))
            begun += 1
        if not isinstance(each, Release):
            kernels.append(each)
            continue
        releases.append(Await(begun))
        if hints := [last[b] for b in each.blocks if b in last]:
            releases.append(Await(prefetched + max(hints)))
        releases.append(each)
    prefetches: list[Instruction] = []
    for k, blocks in enumerate(ahead):
        if blocks:
            prefetches += [Await(k), *(Copy(b, HOST, DEVICE) for b in blocks), Signal(prefetched + k)]
    kernels += [Signal(done), Await(released)]
    streams = {compute: tuple(kernels), H2D: tuple(prefetches), D2H: (*releases, Signal(released))}
    return replace(program, segments=(replace(segment, streams=streams),))


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
