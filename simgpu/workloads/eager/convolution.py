"""Convolutions and nearest upsampling of images whose values lie one channel after another, as PyTorch runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from simgpu.workloads.eager.autocast import lowered
from simgpu.workloads.eager.pointwise import gradients, only, widened
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, Operation, OperationKind

_Grads = Sequence[Tensor | None]


def convolution(session: Session, x: Tensor, weight: Tensor, bias: Tensor, *, stride: int, padding: int) -> Tensor:
    """Convolves (batch, channels, height, width); saves image and weight.

    weight: (features, channels, side, side). Backward computes all gradients that are needed in one call: a convolution
    for each of image and weight, and a sum for the bias.
    """
    x, weight, bias = lowered(session, x, weight, bias)
    batch, channels, height, width = x.shape
    features, _, side, _ = weight.shape
    pair = (side, side), (stride, stride), (padding, padding)
    call = _Call(x, weight, bias, ConvolutionShape(batch, channels, (height, width), features, *pair))
    size = (batch, features, *call.shape.out_size)
    result_bytes = prod(size) * (x.bytes // x.count)
    work = Operation(
        OperationKind.CONVOLUTION,
        2 * call.shape.macs,
        x.bytes + weight.bytes + result_bytes + bias.bytes,
        prod(size),
        convolution=call.shape,
        dtype=x.dtype,
        added_bytes=2 * result_bytes + bias.bytes,
    )
    (result,) = session.run("convolution", (x, weight, bias), ((size, x.dtype),), operations=(work,))
    session.record((result,), (x, weight, bias), lambda grads: call.backward(session, only(grads)), (x, weight))
    return result


@dataclass(frozen=True, slots=True)
class _Call:
    """The operands of one convolution and its shape."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    shape: ConvolutionShape

    def backward(self, session: Session, grad: Tensor) -> _Grads:
        inputs = (self.x, self.weight, self.bias)
        work = [self._work_of_gradient(each, grad) for each in inputs if each.node is not None]
        return gradients(session, "convolution_backward", (grad, self.x, self.weight), inputs, work)

    def _work_of_gradient(self, operand: Tensor, grad: Tensor) -> Operation:
        if operand is self.bias:
            moved, way = grad.bytes + operand.bytes, Direction.BACKWARD_DATA
            return Operation(OperationKind.REDUCTION, grad.count, moved, operand.count, way, dtype=grad.dtype)
        return Operation(
            OperationKind.CONVOLUTION,
            2 * self.shape.macs,
            grad.bytes + self.x.bytes + self.weight.bytes,
            operand.count,
            Direction.BACKWARD_DATA if operand is self.x else Direction.BACKWARD_WEIGHTS,
            convolution=self.shape,
            dtype=self.x.dtype,
        )


def upsampled(session: Session, x: Tensor, size: Sizes) -> Tensor:
    """``interpolate`` by nearest values to (height, width); saves nothing."""
    x = widened(session, x)
    shape = (*x.shape[:2], *size)
    (result,) = session.run("upsample_nearest2d", (x,), ((shape, x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return session.run("upsample_nearest2d_backward", (only(grads),), ((x.shape, x.dtype),))

    session.record((result,), (x,), backward)
    return result
