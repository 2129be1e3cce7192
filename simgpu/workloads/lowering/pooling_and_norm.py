"""Lowers pooling and normalization layers.

Backward reads what autograd's does. Maximum pooling: its input and the saved indices (int64, as in PyTorch). Average
pooling: its input, saved although only its shape is used. Batch and layer norm: their input and the saved statistics.
Local response norm: input and result, with one kernel in each direction, as in cuDNN; PyTorch runs eight smaller ones.
"""

from __future__ import annotations

from dataclasses import replace

from simgpu.workloads.lowering import operations
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.step import LayerLowering, LoweredLayer
from simgpu.workloads.lowering.tape import Value
from simgpu.workloads.timemodel.operation import Operation, OperationKind

_POOLING, _NORM = OperationKind.POOLING, OperationKind.NORMALIZATION
#: Operations per value: mean, variance, normalization, scaling; backward: two sums and the input's gradient.
_FORWARD_COUNT, _BACKWARD_COUNT = 7, 10


def max_pool(step: LayerLowering) -> LoweredLayer:
    """Saves its input and the index of each maximum; with cuDNN, its input and its result."""
    if step.framework.calls_cudnn:
        return _max_pool_of_cudnn(step)
    x, y = step.x, step.result()
    indices = step.extra_output("indices", y.shape, "int64")
    op = "max_pool2d_with_indices"
    step.tape.launch(op, _pooling(step, (y, indices)), (x,), (y, indices))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx = step.gradient()
        operation = operations.simple(_POOLING, (grad, indices), (dx,), backward=True)
        step.tape.launch(f"{op}_backward", operation, (grad, x, indices), (dx,))
        return (dx,)

    return LoweredLayer(y, backward, (x, indices))


def _max_pool_of_cudnn(step: LayerLowering) -> LoweredLayer:
    x, y = step.x, step.result()
    step.tape.launch("max_pool2d", _pooling(step, (y,)), (x,), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx, begun = step.gathered(grad)
        reads = (grad, x, y, *begun)
        step.tape.launch("max_pool2d_backward", operations.simple(_POOLING, reads, (dx,), backward=True), reads, (dx,))
        return (None if begun else dx,)

    return LoweredLayer(y, backward, (x, y))


def avg_pool(step: LayerLowering) -> LoweredLayer:
    """Saves its input, as autograd does, although only its shape is used."""
    return _average(step, "avg_pool2d", (step.x,))


def global_avg_pool(step: LayerLowering) -> LoweredLayer:
    """Saves nothing."""
    return _average(step, "adaptive_avg_pool2d", ())


def _pooling(step: LayerLowering, writes: tuple[Value, ...]) -> Operation:
    """A pooling operation that counts one operation per value of each window."""
    x, y = step.x, writes[0]
    rows, columns = step.attribute("kernel", (0, 0))
    window = rows * columns or x.count // y.count
    return replace(operations.simple(_POOLING, (x,), writes), flops=window * y.count)


def _average(step: LayerLowering, op: str, saved: tuple[Value, ...]) -> LoweredLayer:
    x, y = step.x, step.result()
    step.tape.launch(op, _pooling(step, (y,)), (x,), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx, begun = step.gathered(grad)
        operation = operations.simple(_POOLING, (grad, *begun), (dx,), backward=True)
        step.tape.launch(f"{op}_backward", operation, (grad, *saved, *begun), (dx,))
        return (None if begun else dx,)

    return LoweredLayer(y, backward, saved)


def batch_norm(step: LayerLowering) -> LoweredLayer:
    """Saves its input and the batch's statistics; not pure, as training updates its running statistics.

    Another kernel counts batches, as in PyTorch. With `Framework.FUSED` there is no such kernel, and a normalization
    that overwrites its input reads the overwritten block in backward (`simgpu.workloads.lowering.framework`).
    """
    tape, x = step.tape, step.x
    channels = (x.shape[1],)
    running = [step.state(name, channels) for name in ("running_mean", "running_var")]
    if step.framework is not Framework.FUSED:
        tracked = step.state("num_batches_tracked", (), "int64")
        tape.launch("add_", operations.elementwise((tracked,), (tracked,)), (tracked,), (tracked,), pure=False)
    y = x if step.rewrites else step.result()
    saved = [step.extra_output(name, channels) for name in ("saved_mean", "saved_invstd")]
    reads, writes = (x, *step.weights.values(), *running), (*running, y, *saved)
    operation = operations.simple(_NORM, reads, writes, _FORWARD_COUNT)
    tape.launch("batch_norm_" if step.rewrites else "batch_norm", operation, reads, writes, pure=False)
    return LoweredLayer(y, lambda grad: _norm_backward(step, "batch_norm_backward", grad, saved), (x, *saved))


def layer_norm(step: LayerLowering) -> LoweredLayer:
    """Over the last dimension; saves its input, and a mean and an inverse deviation per row."""
    x, y = step.x, step.result()
    saved = [step.extra_output(name, x.shape[:-1]) for name in ("saved_mean", "saved_invstd")]
    reads, writes = (x, *step.weights.values()), (y, *saved)
    step.tape.launch("layer_norm", operations.simple(_NORM, reads, writes, _FORWARD_COUNT), reads, writes)
    return LoweredLayer(y, lambda grad: _norm_backward(step, "layer_norm_backward", grad, saved), (x, *saved))


def _norm_backward(step: LayerLowering, op: str, grad: Value, statistics: list[Value]) -> tuple[Value | None, ...]:
    """One kernel for the gradients of input, weight and bias.

    If the result overwrote the input, it reads the bias too, which it needs to invert the normalization.
    """
    names = ("weight", "bias") if step.rewrites else ("weight",)
    reads = (grad, step.x, *(step.weights[name] for name in names if name in step.weights), *statistics)
    in_place = step.rewrites and step.gradients.is_free(grad)
    dx = (grad if in_place else step.gradient()) if step.needed[0] else None
    writes = (*((dx,) if dx is not None else ()), *step.weight_gradients("weight", "bias"))
    operation = operations.simple(_NORM, reads, writes, _BACKWARD_COUNT, backward=True)
    step.tape.launch(f"{op}_" if in_place else op, operation, reads, writes)
    return (dx,)


def local_response_norm(step: LayerLowering) -> LoweredLayer:
    """Across neighbouring channels; saves input and result."""
    x, y = step.x, step.result()
    size = step.attribute("size", 5)
    step.tape.launch("local_response_norm", operations.simple(_NORM, (x,), (y,), 2 * size), (x,), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx = step.gradient()
        reads = (grad, x, y)
        operation = operations.simple(_NORM, reads, (dx,), 4 * size, backward=True)
        step.tape.launch("local_response_norm_backward", operation, reads, (dx,))
        return (dx,)

    return LoweredLayer(y, backward, (x, y))
