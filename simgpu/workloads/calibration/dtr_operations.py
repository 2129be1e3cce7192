"""What the operators of a DTR log compute, from their names and the bytes of their blocks.

A log has no shapes. A convolution's follows from its three sizes and the batch: with square images, a result whose
side is the input's divided by the stride, and filters of R x R, sizes say the product and the quotient of the two
channel counts; of the few R and strides in use one gives whole numbers. Blocks are storages, so an operator on views
may list more bytes than it touches: a sum is counted by its result. The prototype that wrote the logs copies a tensor
before it changes it in place: such an operator is a copy and the change.
"""

from __future__ import annotations

from itertools import product
from math import gcd, isqrt

from simgpu.trace.model import Block, Kernel
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, Operation, OperationKind

_ITEM = 4
#: Filter side and stride, the commonest first.
_FILTERS = ((3, 1), (1, 1), (3, 2), (1, 2), (7, 2), (5, 1), (2, 1), (2, 2))
_KINDS = {
    "relu": OperationKind.ELEMENTWISE,
    "relu_": OperationKind.ELEMENTWISE,
    "add": OperationKind.ELEMENTWISE,
    "add_": OperationKind.ELEMENTWISE,
    "threshold_backward": OperationKind.ELEMENTWISE,
    "cudnn_batch_norm": OperationKind.NORMALIZATION,
    "cudnn_batch_norm_backward": OperationKind.NORMALIZATION,
    "max_pool2d_with_indices": OperationKind.POOLING,
    "max_pool2d_with_indices_backward": OperationKind.POOLING,
    "avg_pool2d": OperationKind.POOLING,
    "avg_pool2d_backward": OperationKind.POOLING,
    "sum_dim_IntList": OperationKind.REDUCTION,
    "_cat": OperationKind.COPY,
    "constant_pad_nd": OperationKind.COPY,
    "slice_backward": OperationKind.COPY,
}


def dtr_operations(kernel: Kernel, blocks: dict[str, Block], batch: int) -> tuple[Operation, ...] | None:
    """The operations of one logged operator, None where its name or its sizes do not tell."""
    reads, writes = ([blocks[name].bytes for name in names] for names in (kernel.reads, kernel.writes))
    if kernel.op == "cudnn_convolution" and len(reads) >= 2:
        return _convolution(reads[0], writes[0], reads[1], batch, (Direction.FORWARD,))
    if kernel.op == "cudnn_convolution_backward" and len(reads) >= 3:
        data, weights = Direction.BACKWARD_DATA, Direction.BACKWARD_WEIGHTS
        wanted = (data, weights) if len(writes) > 1 else (weights,)
        return _convolution(reads[0], reads[1], reads[2], batch, wanted)
    if kernel.op not in _KINDS:
        return None
    if kernel.op in ("add", "slice_backward") and sum(writes) < 4096:
        return ()  # counters and other scalars
    direction = Direction.BACKWARD_DATA if "backward" in kernel.op else Direction.FORWARD
    results = sum(writes) // _ITEM
    moved = 3 * sum(writes) if kernel.op == "add" else sum(reads) + sum(writes)
    operation = Operation(_KINDS[kernel.op], results, moved, results, direction)
    if set(kernel.reads) & set(kernel.writes):
        return (Operation(OperationKind.COPY, 0, 2 * sum(writes), results), operation)
    return (operation,)


def _convolution(
    source: int, result: int, weights: int, batch: int, directions: tuple[Direction, ...]
) -> tuple[Operation, ...] | None:
    shape = _shape(source // _ITEM, result // _ITEM, weights // _ITEM, batch)
    if shape is None:
        return None
    return tuple(
        Operation(
            OperationKind.CONVOLUTION,
            2 * shape.macs,
            source + result + weights,
            (weights if direction is Direction.BACKWARD_WEIGHTS else result) // _ITEM,
            direction,
            convolution=shape,
        )
        for direction in directions
    )


def _shape(source: int, result: int, weights: int, batch: int) -> ConvolutionShape | None:
    """The convolution with these numbers of values.

    >>> _shape(56 * 16 * 224**2, 56 * 16 * 224**2, 16 * 16 * 9, 56).out_size
    (224, 224)
    """
    for (side, stride), padded in product(_FILTERS, (True, False)):
        padding = side // 2 if padded else 0
        for channels in _channels(source, weights, batch, side):
            rest = source // (batch * channels)
            height = isqrt(rest)
            if height * height != rest or height + 2 * padding < side:
                continue
            outputs = weights // (channels * side * side)
            shape = ConvolutionShape(
                batch, channels, (height, height), outputs, (side, side), (stride, stride), (padding, padding)
            )
            if batch * outputs * shape.out_size[0] * shape.out_size[1] == result:
                return shape
    return None


def _channels(source: int, weights: int, batch: int, side: int) -> list[int]:
    """Input channels that divide both the filters and the input, fewest first.

    >>> _channels(2 * 12 * 5**2, 8 * 12 * 9, 2, 3)
    [1, 2, 3, 4, 6, 12]
    """
    if weights % (side * side) or source % batch:
        return []
    common = gcd(weights // (side * side), source // batch)
    small = [count for count in range(1, isqrt(common) + 1) if common % count == 0]
    large = [common // count for count in reversed(small) if count * count != common]
    return small + large
