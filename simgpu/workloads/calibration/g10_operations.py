"""What the kernels of a G10 recording compute, from their names and the bytes of their tensors.

Only kernels that a library would run as they were run are read. G10's own kernels for the input's gradient of a linear
layer (1.5 TFLOP/s where the forward product of that size reaches 13.5), for softmax and for sums over rows are not,
and neither are those whose tensors its graph lists broadcast, or merged over layers.
"""

from __future__ import annotations

from math import isqrt

from simgpu.trace.model import Block, Kernel
from simgpu.workloads.timemodel.operation import Direction, GemmShape, Operation, OperationKind

_ITEM = 4
_PRODUCTS = {"Linear_Forward": Direction.FORWARD, "Linear_Backward_Weight": Direction.BACKWARD_WEIGHTS}
_ELEMENTWISE = (
    "Multiply_Backward",
    "Multiply_Forward",
    "Add_Forward",
    "Subtract_Forward",
    "Power_Forward",
    "Apply_Grad",
)


def g10_operations(kernel: Kernel, blocks: dict[str, Block], batch: int) -> tuple[Operation, ...] | None:
    """The operation of one kernel, None where it is not one that a library would run."""
    reads, writes = ([blocks[name].bytes for name in names] for names in (kernel.reads, kernel.writes))
    moved, results = sum(reads) + sum(writes), sum(writes) // _ITEM
    if kernel.op in _PRODUCTS and len(reads) == 2:
        shape = _product(reads[0] // _ITEM, reads[1] // _ITEM, results)
        if shape is None:
            return None
        return (Operation(OperationKind.GEMM, 2 * shape.macs, moved, results, _PRODUCTS[kernel.op], gemm=shape),)
    if kernel.op in _ELEMENTWISE and len(set(reads) | set(writes)) == 1 and reads[0] >= 1 << 20:
        return (Operation(OperationKind.ELEMENTWISE, results, moved, results),)
    return None


def _product(first: int, second: int, result: int) -> GemmShape | None:
    """The product of two matrices with so many values each: three sizes, three sides.

    >>> _product(768 * 2304, 32768 * 768, 32768 * 2304)
    GemmShape(m=2304, n=32768, k=768, count=1)
    """
    sides = [
        isqrt(a * b // c) for a, b, c in ((first, result, second), (second, result, first), (first, second, result))
    ]
    m, n, k = sides
    return GemmShape(m, n, k) if (m * k, n * k, m * n) == (first, second, result) else None
