"""What the zoo's kernels compute and must at least move: values in, an `Operation` out.

Products count two operations a multiply-accumulate and nothing else, so that a convolution's are twice its
multiply-accumulates; a convolution's bias, which a kernel of its own adds, is counted by its bytes. Other kernels count
a few operations a value: their time is that of the memory, so the count is only the order of magnitude.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from simgpu.workloads.lowering.tape import Value
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, GemmShape, Operation, OperationKind

_FORWARD = Direction.FORWARD
_BACKWARD = Direction.BACKWARD_DATA


def moved(values: Iterable[Value]) -> int:
    """Bytes of these values."""
    return sum(value.bytes for value in values)


def simple(
    kind: OperationKind, reads: Iterable[Value], writes: Iterable[Value], per_value: int = 1, *, backward: bool = False
) -> Operation:
    """A kernel that reads and writes every value once.

    per_value: operations for each value of the largest operand, or for each result where those are more.
    """
    reads, writes = tuple(reads), tuple(writes)
    results = sum(value.count for value in writes)
    values = max([results, *(value.count for value in reads)])
    direction = _BACKWARD if backward else _FORWARD
    return Operation(kind, per_value * values, moved(reads) + moved(writes), results, direction)


def elementwise(
    reads: Iterable[Value], writes: Iterable[Value], per_value: int = 1, *, backward: bool = False
) -> Operation:
    """A kernel that computes value by value."""
    return simple(OperationKind.ELEMENTWISE, reads, writes, per_value, backward=backward)


def summed(grad: Value, total: Value) -> Operation:
    """A gradient summed over all but one of its sides, as for a bias."""
    return simple(OperationKind.REDUCTION, (grad,), (total,), backward=True)


def convolution(
    shape: ConvolutionShape,
    direction: Direction,
    reads: Iterable[Value],
    writes: Iterable[Value],
    bias: Value | None = None,
) -> Operation:
    """One direction of a convolution; a depthwise one adds its bias itself, any other goes over its result again."""
    kind, writes = shape.kind, tuple(writes)
    results = sum(value.count for value in writes)
    alone = kind is OperationKind.DEPTHWISE_CONVOLUTION
    added = 0 if bias is None or alone else 2 * moved(writes) + bias.bytes
    return Operation(
        kind, 2 * shape.macs, moved(reads) + moved(writes), results, direction, convolution=shape, added_bytes=added
    )


def gemm(
    shape: GemmShape, reads: Iterable[Value], writes: Iterable[Value], direction: Direction = _FORWARD
) -> Operation:
    """One matrix product, or several of one shape."""
    writes = tuple(writes)
    results = sum(value.count for value in writes)
    return Operation(OperationKind.GEMM, 2 * shape.macs, moved(reads) + moved(writes), results, direction, gemm=shape)


def gathered(tokens: Value, rows: Value) -> Operation:
    """Rows of a table looked up: only the rows that are named are read."""
    return Operation(OperationKind.GATHER, 0, tokens.bytes + 2 * rows.bytes, rows.count)


def scattered(tokens: Value, grad: Value, table: Value) -> Operation:
    """Gradients of rows added into a table that is cleared first."""
    read = tokens.bytes + 2 * grad.bytes
    return Operation(OperationKind.GATHER, grad.count, read + table.bytes, table.count, _BACKWARD)


def copied(source: Value, target: Value, *, backward: bool = False) -> Operation:
    """Values moved as they are; where the sizes differ, the smaller is read and the target is written whole."""
    read = min(source.bytes, target.bytes)
    direction = _BACKWARD if backward else _FORWARD
    return Operation(OperationKind.COPY, 0, read + target.bytes, target.count, direction)


def rows_of(shape: tuple[int, ...]) -> int:
    """How many rows a value has, when its last side is the row."""
    return prod(shape[:-1])


def updated_rows(grad: Value, states: int) -> Operation:
    """Rows of a weight, and of as many of its `states`, changed by their gradient."""
    count = 3 * (1 + states) * grad.count
    return Operation(OperationKind.GATHER, count, grad.bytes * (1 + 2 * (1 + states)), grad.count * (1 + states))
