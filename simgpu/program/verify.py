"""The check that guards every run: a program is legal by happens-before alone, whatever the timing.

The program is walked (`simgpu.program.walk`) once in an order its events allow, for two iterations where it has several
streams or copies (so that what one iteration leaves undone or out of date and the next one touches is seen). Every
access is stamped with its stream and that stream's clock, which ticks at each signal; an access is ordered after
another if its stream has heard of the other's tick. Since every pair of conflicting accesses is checked to be ordered,
the one order walked stands for all.

The value of a block is told by how often it has been written since the beginning, with every repetition of every
segment counted out; what a kernel must find follows from the trace's versions in the same count. A block that has
copies in several memories, as a weight on several GPUs, has a value in each.
"""

from __future__ import annotations

from collections.abc import Container

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.memory.pool import aligned
from simgpu.program.check import check_program
from simgpu.program.instructions import Launch, Program
from simgpu.program.walk import Walk


def verify(program: Program, graph: TaskGraph, *, capacity: int | None = None, alignment: int = 1) -> None:
    """Check a program against the graph it was written for.

    Raises `ProgramError` naming stream, instruction and block or kernel, with the lines around it, or the streams of a
    deadlock; raises `OutOfMemoryError` if the blocks of a single kernel are larger than `capacity` (bytes), which no
    order of events can mend.

    Rules: the program contains nothing but known instructions with plain fields (`simgpu.program.check`);
    every kernel runs, once per repetition of its segment, plus declared recomputes after it, of kernels that give the
    same again (`simgpu.graph.recompute`), find what they found the first time and have memory for all that they write;
    a segment has consecutive kernels that follow those of the segment before, or repeat them and may go on from there;
    what a kernel reads is resident in the version the trace read, in the memory of the GPU (or host) that runs it;
    copies follow the writes they copy; nothing is used after its release or
    released while in use or twice; memory is taken once; an iteration, and a segment that repeats, leaves memory as
    it found it; every awaited event is signalled, at one place. Blocks on demand are there when a kernel touches them,
    in the version written last, until they are released; of kernels that read where blocks are, the host's memory is
    held to all this instead of the device's. Neither has to fit a kernel's blocks at once.

    graph: the one the program was planned for; the program's own transforms are applied to it here.

    >>> from simgpu.program.instructions import COMPUTE, Segment
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> verify(Program((Segment({COMPUTE: (Launch(0), Launch(1))}),), resident=(graph.block("x1"),)), graph)
    Traceback (most recent call last):
    simgpu.errors.ProgramError: compute[0], launch F1 (conv2d): block x2 holds no device memory
      --> launch F1
          launch B1
    """
    checked = check_program(program, graph)
    if capacity is not None and not program.unlimited_memory and program.residency is None:
        check_kernels_fit(checked.graph, capacity, alignment, besides=_on_the_host(program))
    Walk(program, checked).run()


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


def check_kernels_fit(graph: TaskGraph, capacity: int, alignment: int = 1, besides: Container[int] = ()) -> None:
    """Raise `OutOfMemoryError` if the blocks that one kernel touches exceed `capacity` bytes together.

    besides: kernels that do not run on a GPU.
    """
    sizes = [aligned(size, alignment) for size in graph.sizes]
    for k, kernel in enumerate(graph.kernels):
        blocks = set(graph.reads[k]) | set(graph.writes[k])
        need = sum(sizes[b] for b in blocks)
        if need > capacity and k not in besides:
            holders = sorted(((graph.blocks[b].id, sizes[b]) for b in blocks), key=lambda h: (-h[1], h[0]))
            waiting = f"kernel {kernel.id} ({kernel.op}) alone"
            raise OutOfMemoryError(waiting, "device", need, capacity, capacity, capacity, 0, tuple(holders), kernel.id)
