"""Layers that move values without changing them: views and crops, copies in another order, concatenation.

A view makes no kernel and no block. Its gradient is a view too; unless the view left values out, then it is copied
into a gradient of full size, the pieces of one value all into the same one; or repeated them, then it is summed. A
concatenation copies; the gradients of its inputs are views of the one of its result, as PyTorch has it.
"""

from __future__ import annotations

from simgpu.workloads.lowering import operations
from simgpu.workloads.lowering.step import Made, Step
from simgpu.workloads.lowering.tape import Value


def view(step: Step) -> Made:
    """The same memory, or a part of it, in another shape."""
    x = step.x

    def backward(grad: Value) -> tuple[Value | None, ...]:
        if grad.count == x.count:
            return step.one_way(grad.seen_as(x.shape))
        return step.one_way(_piece(step, grad) if grad.count < x.count else step.summed(grad))

    return Made(x.seen_as(step.shape), backward)


def _piece(step: Step, grad: Value) -> Value:
    total, begun = step.gradients.piece_into(step.layer.inputs[0], step.x.shape)
    reads = (grad, total) if begun else (grad,)
    target = total.seen_as(grad.shape) if begun else total
    step.tape.launch("slice_backward", operations.copied(grad, target, backward=True), reads, (total,))
    return total


def permute(step: Step) -> Made:
    """A copy in another order, both ways."""
    x, y = step.x, step.result()
    step.tape.launch("contiguous", operations.copied(x, y), (x,), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx = step.gradient()
        step.tape.launch("contiguous", operations.copied(grad, dx, backward=True), (grad,), (dx,))
        return (dx,)

    return Made(y, backward)


def concatenate(step: Step) -> Made:
    """One kernel copies all inputs into the result; a weight of the layer's own stands first, once for each sample."""
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

    return Made(y, backward)
