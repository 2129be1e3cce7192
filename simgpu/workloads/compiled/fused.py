"""Durations of a compiled step: what TorchInductor fuses takes the time of its traffic to and from device memory.

The rule: operators in a row that are pointwise, reductions, normalizations, softmax or copies are one kernel. It reads
once what operators before the row wrote, and writes once what operators after the row read or what outlives the step.
A row ends at any other operator, such as a product, where the phase changes and where a compiled graph ends; it never
takes longer than its operators one by one.

Approximated: Inductor may run a sum over columns, such as the gradient of a bias, as a kernel that reads its input
again; and it fuses across products, in whose order PyTorch runs operators, where nothing depends on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from simgpu.trace.model import RELEASED_AT_END, Kernel, Phase, Trace
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import Direction, Operation, OperationKind
from simgpu.workloads.timemodel.prices import Prices

#: Kinds of operators that become one kernel.
FUSED = frozenset(
    (
        *(OperationKind.ELEMENTWISE, OperationKind.REDUCTION, OperationKind.NORMALIZATION),
        *(OperationKind.SOFTMAX, OperationKind.COPY),
    )
)


def fused_durations(trace: Trace, prices: Prices, graph: Callable[[Kernel], object]) -> list[int]:
    """The nanoseconds of each kernel of a trace when compiled; a fused row's are those of its first.

    graph: a name of the compiled graph that a kernel belongs to; None for a kernel that is not compiled.
    """
    sizes = {block.id: block.bytes for block in trace.blocks}
    stays = {block.id for block in trace.blocks if block.persistent or block.release == RELEASED_AT_END}
    last: dict[str, int] = defaultdict(int)
    for number, kernel in enumerate(trace.kernels):
        last |= dict.fromkeys(kernel.reads, number)
    durations = [kernel.duration_ns for kernel in trace.kernels]
    for start, stop in _rows(trace.kernels, graph):
        row = trace.kernels[start:stop]
        read, written = _traffic(row)
        kept = {block for block in written if block in stays or last[block] >= stop}
        moved = sum(sizes[block] for block in read) + sum(sizes[block] for block in kept)
        fused = min(prices.duration_ns(fused_operation(row[0].phase, moved)), sum(durations[start:stop]))
        durations[start:stop] = [fused, *(0 for _ in row[1:])]
    return durations


def _rows(kernels: Sequence[Kernel], graph: Callable[[Kernel], object]) -> Iterator[tuple[int, int]]:
    """Begin and end of each row of several operators."""

    def row_of(numbered: tuple[int, Kernel]) -> object:
        number, kernel = numbered
        of = graph(kernel)
        return number if of is None or kind_of(kernel.op) not in FUSED else (of, kernel.phase)

    for _, row in groupby(enumerate(kernels), row_of):
        numbers = [number for number, _ in row]
        if len(numbers) > 1:
            yield numbers[0], numbers[-1] + 1


def _traffic(row: Sequence[Kernel]) -> tuple[set[str], set[str]]:
    """What a row reads before it writes it, and what it writes."""
    read: set[str] = set()
    written: set[str] = set()
    for kernel in row:
        read |= set(kernel.reads) - written
        written |= set(kernel.writes)
    return read, written


def fused_operation(phase: Phase, moved: int) -> Operation:
    """The work of one fused kernel. moved: bytes that it reads and writes."""
    direction = Direction.BACKWARD_DATA if phase is Phase.BACKWARD else Direction.FORWARD
    return Operation(OperationKind.ELEMENTWISE, flops=0, bytes=moved, results=0, direction=direction)
