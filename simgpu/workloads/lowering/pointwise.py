"""Lowers elementwise layers (activations, sums, products, dropout), softmax, data movement, and the loss.

Backward reads what autograd's does: relu, tanh and softmax save their result (relu its input before PyTorch 1.10), gelu
its input, a product both factors, dropout its mask of one byte per value; sums and scaling save nothing.

A view has no kernel and no block. Its gradient is a view too, with two exceptions: the gradient of a slice is copied
into one of full size, which all slices of a value share, and that of a broadcast is summed. A concatenation copies; the
gradients of its inputs are views of that of its result, as in PyTorch.
"""

from __future__ import annotations

from simgpu.trace.model import BlockKind
from simgpu.workloads.lowering import operations
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.step import Backward, LayerLowering, LoweredLayer
from simgpu.workloads.lowering.tape import Value
from simgpu.workloads.timemodel.operation import OperationKind

#: Operations per value of an exponential and the arithmetic around it.
_EXPONENTIAL = 8


def relu(step: LayerLowering) -> LoweredLayer:
    """In place, it overwrites the block of its input, which backward reads.

    Else backward reads the result, or the input before PyTorch 1.10.
    """
    x = step.x
    in_place = step.attribute("in_place", False)
    y = x if in_place else step.result()
    step.tape.launch("relu_" if in_place else "relu", operations.elementwise((x,), (y,)), (x,), (y,))
    saved = x if step.framework is Framework.PYTORCH_1_5 else y
    return LoweredLayer(y, _relu_backward(step, y) if in_place else _from(step, "threshold_backward", saved), (saved,))


def _relu_backward(step: LayerLowering, y: Value) -> Backward:
    """Backward of an in-place ReLU; in place too if the framework does so and nothing else needs the gradient."""

    def backward(grad: Value) -> tuple[Value | None, ...]:
        rewrites = step.framework.calls_cudnn and step.gradients.is_free(grad)
        dx = grad if rewrites else step.gradient()
        operation = operations.elementwise((grad, y), (dx,), backward=True)
        step.tape.launch("threshold_backward_" if rewrites else "threshold_backward", operation, (grad, y), (dx,))
        return step.for_first_input(dx)

    return backward


def gelu(step: LayerLowering) -> LoweredLayer:
    """Saves its input."""
    y = _apply(step, "gelu", _EXPONENTIAL)
    return LoweredLayer(y, _from(step, "gelu_backward", step.x, 2 * _EXPONENTIAL), (step.x,))


def tanh(step: LayerLowering) -> LoweredLayer:
    """Saves its result."""
    y = _apply(step, "tanh", _EXPONENTIAL)
    return LoweredLayer(y, _from(step, "tanh_backward", y, 3), (y,))


def softmax(step: LayerLowering) -> LoweredLayer:
    """Over the last dimension; saves its result."""
    x, y = step.x, step.result()
    step.tape.launch("softmax", operations.simple(OperationKind.SOFTMAX, (x,), (y,), _EXPONENTIAL), (x,), (y,))
    return LoweredLayer(y, _from(step, "softmax_backward", y, 4, OperationKind.SOFTMAX), (y,))


def scale(step: LayerLowering) -> LoweredLayer:
    """Multiplies by a constant, or adds a trained weight to every sample; saves nothing."""
    if "weight" in step.weights:
        return _learned(step)
    y = _apply(step, "mul", 1)

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx = step.gradient()
        step.tape.launch("mul", operations.elementwise((grad,), (dx,), backward=True), (grad,), (dx,))
        return step.for_first_input(dx)

    return LoweredLayer(y, backward)


def _learned(step: LayerLowering) -> LoweredLayer:
    x, weight, y = step.x, step.weights["weight"], step.result()
    step.tape.launch("add", operations.elementwise((x, weight), (y,)), (x, weight), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        for total in step.weight_gradients("weight"):
            step.tape.launch("sum", operations.summed(grad, total), (grad,), (total,))
        return (grad,)

    return LoweredLayer(y, backward)


def dropout(step: LayerLowering) -> LoweredLayer:
    """Draws a mask and applies it; not pure, since another run draws another mask."""
    x, y = step.x, step.result()
    mask = step.extra_output("mask", y.shape, "bool")
    writes = (y, mask)
    step.tape.launch("native_dropout", operations.elementwise((x,), writes, 4), (x,), writes, pure=False)
    return LoweredLayer(y, _from(step, "native_dropout_backward", mask), (mask,))


def add(step: LayerLowering) -> LoweredLayer:
    """The sum of two or more inputs. Their gradients are that of the result, without a copy."""
    first, second, *others = step.inputs
    in_place = step.attribute("in_place", False)
    y = first if in_place else step.result()
    op = "add_" if in_place else "add"
    step.tape.launch(op, operations.elementwise((first, second), (y,)), (first, second), (y,))
    for other in others:
        step.tape.launch("add_", operations.elementwise((y, other), (y,)), (y, other), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        return tuple(
            (grad.seen_as(x.shape) if x.count == grad.count else step.summed(grad, index)) if needed else None
            for index, (x, needed) in enumerate(zip(step.inputs, step.needed, strict=True))
        )

    return LoweredLayer(y, backward)


def multiply(step: LayerLowering) -> LoweredLayer:
    """The product of two inputs; saves both."""
    a, b, y = *step.inputs, step.result()
    step.tape.launch("mul", operations.elementwise((a, b), (y,)), (a, b), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        results = []
        for index, other in enumerate((b, a)):
            gradient = step.gradient(index) if step.needed[index] else None
            if gradient is not None:
                operation = operations.elementwise((grad, other), (gradient,), backward=True)
                step.tape.launch("mul", operation, (grad, other), (gradient,))
            results.append(gradient)
        return tuple(results)

    return LoweredLayer(y, backward, (a, b))


def _apply(step: LayerLowering, op: str, per_value: int) -> Value:
    y = step.result()
    step.tape.launch(op, operations.elementwise((step.x,), (y,), per_value), (step.x,), (y,))
    return y


def _from(
    step: LayerLowering, op: str, saved: Value, per_value: int = 1, kind: OperationKind = OperationKind.ELEMENTWISE
) -> Backward:
    """A backward function of one kernel that reads the gradient and one saved value."""

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx = step.gradient()
        operation = operations.simple(kind, (grad, saved), (dx,), per_value, backward=True)
        step.tape.launch(op, operation, (grad, saved), (dx,))
        return step.for_first_input(dx)

    return backward


def view(step: LayerLowering) -> LoweredLayer:
    """The same memory, or a part of it, in another shape."""
    x = step.x

    def backward(grad: Value) -> tuple[Value | None, ...]:
        if grad.count == x.count:
            return step.for_first_input(grad.seen_as(x.shape))
        return step.for_first_input(_piece(step, grad) if grad.count < x.count else step.summed(grad))

    return LoweredLayer(x.seen_as(step.shape), backward)


def _piece(step: LayerLowering, grad: Value) -> Value:
    total, begun = step.gradients.piece_into(step.layer.inputs[0], step.x.shape)
    reads = (grad, total) if begun else (grad,)
    target = total.seen_as(grad.shape) if begun else total
    step.tape.launch("slice_backward", operations.copied(grad, target, backward=True), reads, (total,))
    return total


def permute(step: LayerLowering) -> LoweredLayer:
    """A copy in another order, in forward and in backward."""
    x, y = step.x, step.result()
    step.tape.launch("contiguous", operations.copied(x, y), (x,), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx = step.gradient()
        step.tape.launch("contiguous", operations.copied(grad, dx, backward=True), (grad,), (dx,))
        return (dx,)

    return LoweredLayer(y, backward)


def concatenate(step: LayerLowering) -> LoweredLayer:
    """One kernel copies all inputs into the result; the layer's own weight, if any, precedes them in each sample."""
    y = step.result()
    own = tuple(step.weights.values())
    step.tape.launch("cat", operations.copied(y, y), (*own, *step.inputs), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        for weight, total in zip(own, step.weight_gradients("weight"), strict=True):
            part = grad.seen_as((step.batch, *weight.shape))
            step.tape.launch("sum", operations.summed(part, total), (part,), (total,))
        return tuple(
            grad.seen_as(x.shape) if needed else None for x, needed in zip(step.inputs, step.needed, strict=True)
        )

    return LoweredLayer(y, backward)


def loss(step: LayerLowering) -> LoweredLayer:
    """Cross-entropy over the last dimension; saves the log-softmax and the sum of the labels' weights."""
    tape, logits, labels = step.tape, step.x, step.labels
    scores = tape.new(f"{step.layer.name}.log_softmax", logits.shape, BlockKind.ACTIVATION)
    operation = operations.simple(OperationKind.SOFTMAX, (logits,), (scores,), _EXPONENTIAL)
    tape.launch("log_softmax", operation, (logits,), (scores,))
    value = tape.new(step.layer.name, (), BlockKind.ACTIVATION)
    weight = step.extra_output("total_weight", ())
    picked = scores.seen_as(labels.shape)
    operation = operations.simple(OperationKind.REDUCTION, (picked, labels), (value, weight))
    tape.launch("nll_loss_forward", operation, (scores, labels), (value, weight))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        inner = tape.new(f"{scores.block.id}.grad", scores.shape, BlockKind.GRADIENT)
        operation = operations.elementwise((grad, labels, weight), (inner,), backward=True)
        tape.launch("nll_loss_backward", operation, (grad, scores, labels, weight), (inner,))
        tape.keep((weight,))
        dx = step.gradient()
        operation = operations.simple(OperationKind.SOFTMAX, (inner, scores), (dx,), _EXPONENTIAL, backward=True)
        tape.launch("log_softmax_backward", operation, (inner, scores), (dx,))
        return (dx,)

    return LoweredLayer(value, backward, (scores,))
