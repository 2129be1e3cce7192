"""Convolution of an image that needs no gradient into patches that do not overlap, as PyTorch runs it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from simgpu.workloads.eager.pointwise import only
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, Operation, OperationKind


def patches(session: Session, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolves (batch, channels, height, width) with a kernel as wide as its stride; saves image and weight.

    weight: (features, channels, side, side). Result: (batch, features, height // side, width // side).
    Backward computes the gradients of weight and bias in one call: a convolution and a sum.
    """
    batch, channels, height, width = image.shape
    features, _, side, _ = weight.shape
    shape = ConvolutionShape(batch, channels, (height, width), features, (side, side), (side, side))
    size = (batch, features, *shape.out_size)
    result_bytes = prod(size) * (image.bytes // image.count)
    moved = image.bytes + weight.bytes + result_bytes
    work = Operation(
        OperationKind.CONVOLUTION,
        2 * shape.macs,
        moved + bias.bytes,
        prod(size),
        convolution=shape,
        dtype=image.dtype,
        added_bytes=2 * result_bytes + bias.bytes,
    )
    (result,) = session.run("convolution", (image, weight, bias), ((size, image.dtype),), operations=(work,))

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        grad = only(grads)
        of_weight = Operation(
            OperationKind.CONVOLUTION,
            2 * shape.macs,
            moved,
            weight.count,
            Direction.BACKWARD_WEIGHTS,
            convolution=shape,
            dtype=image.dtype,
        )
        summed = grad.bytes + bias.bytes
        of_bias = Operation(
            OperationKind.REDUCTION, grad.count, summed, bias.count, Direction.BACKWARD_DATA, dtype=image.dtype
        )
        results = ((weight.shape, weight.dtype), (bias.shape, bias.dtype))
        reads = (grad, image, weight)
        return None, *session.run("convolution_backward", reads, results, operations=(of_weight, of_bias))

    session.record((result,), (image, weight, bias), backward, (image, weight))
    return result
