"""Whether the blocks of each kernel fit into the budget together: without that, no order of copies helps."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain

import numpy as np

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.memory.pool import aligned
from simgpu.program.check import CheckedProgram
from simgpu.program.instructions import Launch, Program


def check_budget(checked: CheckedProgram, capacity: int, alignment: int = 1) -> None:
    """Raise `OutOfMemoryError` if the blocks of a single kernel are larger than `capacity` (bytes)."""
    program = checked.program
    if not program.unlimited_memory and program.residency is None:
        check_kernels_fit(checked.graph, capacity, alignment, excluded=_on_the_host(program))


def _on_the_host(program: Program) -> frozenset[int]:
    """Kernels that the host's cores run."""
    return frozenset(
        instruction.kernel
        for segment in program.segments
        for stream, code in segment.streams.items()
        if stream.role == "host"
        for instruction in code
        if isinstance(instruction, Launch)
    )


def check_kernels_fit(graph: TaskGraph, capacity: int, alignment: int = 1, excluded: Container[int] = ()) -> None:
    """Raise `OutOfMemoryError` if the blocks of one kernel exceed `capacity` bytes together.

    excluded: kernels that do not run on a GPU.
    """
    key = "most bytes of a kernel", alignment
    if key not in graph.kept:
        graph.kept[key] = _most_bytes(graph, alignment)
    if graph.kept[key] <= capacity:
        return
    key = "bytes of kernels", alignment
    if key not in graph.kept:
        sizes = [aligned(size, alignment) for size in graph.sizes]
        each = zip(graph.reads, graph.writes, strict=True)
        graph.kept[key] = [sum([sizes[b] for b in {*reads, *writes}]) for reads, writes in each]
    for k, need in enumerate(graph.kept[key]):
        if need > capacity and k not in excluded:
            kernel, blocks = graph.kernels[k], {*graph.reads[k], *graph.writes[k]}
            sizes = [aligned(size, alignment) for size in graph.sizes]
            holders = sorted(((graph.blocks[b].id, sizes[b]) for b in blocks), key=lambda h: (-h[1], h[0]))
            waiting = f"kernel {kernel.id} ({kernel.op}) alone"
            raise OutOfMemoryError(waiting, "device", need, capacity, capacity, capacity, 0, tuple(holders), kernel.id)


def _most_bytes(graph: TaskGraph, alignment: int) -> float:
    """No kernel's blocks have more bytes together; a block that it reads and writes counts twice."""
    sizes = np.array(graph.sizes, dtype=np.float64) + alignment
    total = np.zeros(len(graph.reads))
    for lists in (graph.reads, graph.writes):
        kernels = np.repeat(np.arange(len(lists)), list(map(len, lists)))
        blocks = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=len(kernels))
        total += np.bincount(kernels, weights=sizes[blocks], minlength=len(lists))
    # Sums of floating-point numbers may be a little low.
    return float(total.max(initial=0.0)) * 1.000001
