"""Functions that build the `Operation` of the zoo's kernels from the values they read and write.

Products count only two operations per multiply-accumulate; a convolution's bias, which a separate kernel adds, counts
only bytes. Other kernels count a few operations per value, an order of magnitude: they are memory-bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from simgpu.workloads.lowering.tape import Value
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, GemmShape, Operation, OperationKind

_FORWARD = Direction.FORWARD
_BACKWARD = Direction.BACKWARD_DATA


def moved(values: Iterable[Value]) -> int:
    """The total bytes of these values."""
    return sum(value.bytes for value in values)


def simple(
    kind: OperationKind, reads: Iterable[Value], writes: Iterable[Value], per_value: int = 1, *, backward: bool = False
) -> Operation:
    """A kernel that reads and writes every value once.

    per_value: operations per value of the largest operand, or per result if there are more results.
    """
    reads, writes = tuple(reads), tuple(writes)
    results = sum(value.count for value in writes)
    values = max([results, *(value.count for value in reads)])
    direction = _BACKWARD if backward else _FORWARD
    return Operation(kind, per_value * values, moved(reads) + moved(writes), results, direction)


def elementwise(
    reads: Iterable[Value], writes: Iterable[Value], per_value: int = 1, *, backward: bool = False
) -> Operation:
    """An elementwise kernel."""
    return simple(OperationKind.ELEMENTWISE, reads, writes, per_value, backward=backward)


def summed(grad: Value, total: Value) -> Operation:
    """A gradient summed into a smaller one, as for a bias."""
    return simple(OperationKind.REDUCTION, (grad,), (total,), backward=True)


def convolution(
    shape: ConvolutionShape,
    direction: Direction,
    reads: Iterable[Value],
    writes: Iterable[Value],
    bias: Value | None = None,
) -> Operation:
    """One direction of a convolution; the bias needs another pass over the result unless it is depthwise."""
    kind, writes = shape.kind, tuple(writes)
    results = sum(value.count for value in writes)
    adds_bias = kind is OperationKind.DEPTHWISE_CONVOLUTION
    added = 0 if bias is None or adds_bias else 2 * moved(writes) + bias.bytes
    return Operation(
        kind, 2 * shape.macs, moved(reads) + moved(writes), results, direction, convolution=shape, added_bytes=added
    )


def gemm(
    shape: GemmShape, reads: Iterable[Value], writes: Iterable[Value], direction: Direction = _FORWARD
) -> Operation:
    """One matrix product, or several of equal shape."""
    writes = tuple(writes)
    results = sum(value.count for value in writes)
    return Operation(OperationKind.GEMM, 2 * shape.macs, moved(reads) + moved(writes), results, direction, gemm=shape)


def gathered(tokens: Value, rows: Value) -> Operation:
    """A lookup of table rows; only these rows are read."""
    return Operation(OperationKind.GATHER, 0, tokens.bytes + 2 * rows.bytes, rows.count)


def scattered(tokens: Value, grad: Value, table: Value) -> Operation:
    """Gradients of rows, added into a table after clearing it."""
    read = tokens.bytes + 2 * grad.bytes
    return Operation(OperationKind.GATHER, grad.count, read + table.bytes, table.count, _BACKWARD)


def copied(source: Value, target: Value, *, backward: bool = False) -> Operation:
    """A copy; if the sizes differ, it reads the smaller number of bytes and writes the entire target."""
    read = min(source.bytes, target.bytes)
    direction = _BACKWARD if backward else _FORWARD
    return Operation(OperationKind.COPY, 0, read + target.bytes, target.count, direction)


def rows_of(shape: tuple[int, ...]) -> int:
    """Number of rows of a value; a row is the last dimension."""
    return prod(shape[:-1])


def updated_rows(grad: Value, states: int) -> Operation:
    """An update of rows of a weight and of its optimizer states by a gradient. states: number of states."""
    count = 3 * (1 + states) * grad.count
    return Operation(OperationKind.GATHER, count, grad.bytes * (1 + 2 * (1 + states)), grad.count * (1 + states))
