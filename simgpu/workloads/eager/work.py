"""The work of operators for the time model: what they read and write once, products with their shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simgpu.units import ITEMSIZE
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import Direction, GemmShape, Operation, OperationKind

_FLOATS = ("float32", "float16", "bfloat16")
#: Operations per value of the largest operand. All but products are limited by memory: the order of magnitude counts.
_PER_VALUE = {OperationKind.SOFTMAX: 8, OperationKind.NORMALIZATION: 8, OperationKind.COPY: 0, OperationKind.GATHER: 0}
_Pieces = dict[tuple[int, int, int], tuple[int, int]]


def work_of(op: str, reads: Sequence[Tensor], writes: Sequence[Tensor], backward: bool) -> Operation:
    """The work of an operator that is no product: it reads every operand and writes every result once.

    A copy between different sizes reads the smaller one; a gather reads of its largest operand what it writes.
    """
    kind = kind_of(op)
    read, written = _pieces(reads), _pieces(writes)
    results = sum(values for values, _ in written.values())
    moved_in, moved_out = _bytes(read), _bytes(written)
    if kind is OperationKind.COPY:
        moved_in = sum(min(size, results * size // values) for values, size in read.values() if values)
    elif kind is OperationKind.GATHER:
        largest = max((size for _, size in read.values()), default=0)
        moved_in += min(largest, moved_out) - largest
    most = max((values for values, _ in (*read.values(), *written.values())), default=0)
    direction = Direction.BACKWARD_DATA if backward else Direction.FORWARD
    bytes_ = moved_in + moved_out
    return Operation(kind, _PER_VALUE.get(kind, 1) * most, bytes_, results, direction, dtype=_main(*writes, *reads))


def work_of_adding(places: Sequence[Tensor], values: Tensor) -> Operation:
    """The work of the backward of an index: it reads places and values, and reads and writes what these are added to.

    The other values of its target, zeros of full size, are not touched (``index_put_with_sort_kernel`` in
    ``ATen/native/cuda/Indexing.cu``).
    """
    added = _pieces((values,))
    moved = _bytes(_pieces(places)) + 3 * _bytes(added)
    results = sum(count for count, _ in added.values())
    return Operation(OperationKind.GATHER, 0, moved, results, Direction.BACKWARD_DATA, dtype=_main(values))


def gemm(shape: GemmShape, bytes_: int, results: int, dtype: str, direction: Direction) -> Operation:
    """One product, or several of equal shape, in the format of its operands."""
    return Operation(OperationKind.GEMM, 2 * shape.macs, bytes_, results, direction, gemm=shape, dtype=dtype)


def _pieces(tensors: Iterable[Tensor]) -> _Pieces:
    """Values and bytes of each distinct piece of memory; an expanded dimension counts once."""
    sizes = ((id(x.block), x.offset, x.distinct, ITEMSIZE[x.dtype]) for x in tensors)
    return {(block, offset, values): (values, values * itemsize) for block, offset, values, itemsize in sizes}


def _bytes(pieces: _Pieces) -> int:
    return sum(size for _, size in pieces.values())


def _main(*tensors: Tensor) -> str:
    """The first floating-point format, else the first format."""
    return next((x.dtype for x in tensors if x.dtype in _FLOATS), tensors[0].dtype)
