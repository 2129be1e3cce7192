"""Elementwise operators, copies and reductions, with what autograd saves (``derivatives.yaml``) and computes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import broadcast, elementwise_strides, is_dense
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.timemodel.operation import Operation

_Grads = Sequence[Tensor | None]


def elementwise(session: Session, op: str, *operands: Tensor, dtype: str | None = None) -> Tensor:
    """Runs an elementwise operator without a place in autograd's graph. dtype: of the result, by default promoted."""
    shape = broadcast(*(x.shape for x in operands))
    strides = elementwise_strides(shape, [(x.shape, x.strides) for x in operands])
    (result,) = session.run(op, operands, ((shape, dtype or _promoted(operands)),), strides=strides)
    return result


def _promoted(operands: Sequence[Tensor]) -> str:
    formats = {x.dtype for x in operands if x.shape} or {x.dtype for x in operands}
    return "float32" if len(formats) > 1 else formats.pop()


def only(grads: _Grads) -> Tensor:
    """The gradient of an operator with one result."""
    (grad,) = grads
    assert grad is not None
    return grad


def gradients(
    session: Session, op: str, read: Sequence[Tensor], inputs: Sequence[Tensor], work: Sequence[Operation] = ()
) -> _Grads:
    """The gradients of the inputs that need one, computed by one call of an operator; None for the others."""
    created = [(each.shape, each.dtype) for each in inputs if each.node is not None]
    results = iter(session.run(op, read, created, operations=work))
    return [None if each.node is None else next(results) for each in inputs]


def add(session: Session, first: Tensor, second: Tensor) -> Tensor:
    """The sum; saves nothing, and both gradients are that of the result."""
    result = elementwise(session, "add", first, second)
    session.record((result,), (first, second), lambda grads: (only(grads), only(grads)))
    return result


def sub(session: Session, first: Tensor, second: Tensor) -> Tensor:
    """The difference; saves nothing. The second's gradient is the negative of the result's."""
    result = elementwise(session, "sub", first, second)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        return grad, elementwise(session, "neg", grad)

    session.record((result,), (first, second), backward)
    return result


def add_in_place(session: Session, first: Tensor, second: Tensor) -> Tensor:
    """``first += second``; saves nothing, and both gradients are that of the result."""
    session.run_in_place("add_", first, (second,))
    result = Tensor(first.block, first.shape, first.strides)
    session.record((result,), (first, second), lambda grads: (only(grads), only(grads)))
    return result


def add_number(session: Session, x: Tensor) -> Tensor:
    """Adds a number; saves nothing."""
    result = elementwise(session, "add", x)
    session.record((result,), (x,), lambda grads: (only(grads),))
    return result


def scale(session: Session, x: Tensor, op: str = "mul") -> Tensor:
    """Multiplies or divides by a number; saves nothing."""
    result = elementwise(session, op, x)
    session.record((result,), (x,), lambda grads: (elementwise(session, op, only(grads)),))
    return result


def mul(session: Session, first: Tensor, second: Tensor) -> Tensor:
    """The product; saves each factor that the other's gradient needs. The second's gradient is computed first."""
    result = elementwise(session, "mul", first, second)
    saved = [x for x, other in ((first, second), (second, first)) if other.node is not None]

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        of_second = elementwise(session, "mul", grad, first) if second.node is not None else None
        of_first = elementwise(session, "mul", grad, second) if first.node is not None else None
        return of_first, of_second

    session.record((result,), (first, second), backward, saved)
    return result


def divided(session: Session, x: Tensor, number: Tensor) -> Tensor:
    """The quotient by a number on the GPU that needs no gradient; saves the number."""
    result = elementwise(session, "div", x, number)
    session.record((result,), (x,), lambda grads: (elementwise(session, "div", only(grads), number),), (number,))
    return result


def masked(session: Session, mask: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """``torch.where``: x where the mask is true, else a number on the GPU; saves the mask."""
    result = elementwise(session, "where", mask, x, other, dtype=x.dtype)

    def backward(grads: _Grads) -> _Grads:
        (zero,) = session.run("scalar_tensor", (), (((), x.dtype),))
        return (elementwise(session, "where", mask, only(grads), zero, dtype=x.dtype),)

    session.record((result,), (x,), backward, (mask,))
    return result


def power(session: Session, x: Tensor) -> Tensor:
    """A power above 1, as ``pow(2)``; saves its input. Backward multiplies the power below it."""
    x = widened(session, x)
    result = elementwise(session, "pow", x)

    def backward(grads: _Grads) -> _Grads:
        below = elementwise(session, "pow", x)
        factor = elementwise(session, "mul", below)
        total = elementwise(session, "mul", only(grads), factor)
        session.keep((below, factor))
        return (total,)

    session.record((result,), (x,), backward, (x,))
    return result


def rsqrt(session: Session, x: Tensor) -> Tensor:
    """The inverse square root; saves its result."""
    result = elementwise(session, "rsqrt", x)

    def backward(grads: _Grads) -> _Grads:
        cube = elementwise(session, "pow", result)
        half = elementwise(session, "mul", only(grads))
        total = elementwise(session, "mul", half, cube)
        return (total,)

    session.record((result,), (x,), backward, (result,))
    return result


def neg(session: Session, x: Tensor) -> Tensor:
    """The negative; saves nothing."""
    result = elementwise(session, "neg", x)
    session.record((result,), (x,), lambda grads: (elementwise(session, "neg", only(grads)),))
    return result


def limited(session: Session, x: Tensor, *limits: str) -> Tensor:
    """``clamp``; saves its input. limits: ``ge`` for a least value, then ``le`` for a largest one."""
    result = elementwise(session, "clamp", x)

    def backward(grads: _Grads) -> _Grads:
        (zero,) = session.run("scalar_tensor", (), (((), x.dtype),))
        inside, *others = [elementwise(session, limit, x, dtype="bool") for limit in limits]
        for other in others:
            session.run_in_place("logical_and_", inside, (other,))
        return (elementwise(session, "where", inside, only(grads), zero, dtype=x.dtype),)

    session.record((result,), (x,), backward, (x,))
    return result


def tanh(session: Session, x: Tensor) -> Tensor:
    """Saves its result."""
    result = elementwise(session, "tanh", x)
    session.record(
        (result,), (x,), lambda grads: (elementwise(session, "tanh_backward", only(grads), result),), (result,)
    )
    return result


def relu(session: Session, x: Tensor) -> Tensor:
    """Saves its result."""
    result = elementwise(session, "relu", x)

    def backward(grads: _Grads) -> _Grads:
        return (elementwise(session, "threshold_backward", only(grads), result),)

    session.record((result,), (x,), backward, (result,))
    return result


def sigmoid(session: Session, x: Tensor) -> Tensor:
    """Saves its result."""
    result = elementwise(session, "sigmoid", x)

    def backward(grads: _Grads) -> _Grads:
        return (elementwise(session, "sigmoid_backward", only(grads), result),)

    session.record((result,), (x,), backward, (result,))
    return result


def activation(session: Session, op: str, x: Tensor) -> Tensor:
    """``silu`` or ``gelu``: one kernel that saves its input."""
    result = elementwise(session, op, x)
    session.record((result,), (x,), lambda grads: (elementwise(session, f"{op}_backward", only(grads), x),), (x,))
    return result


def dropout(session: Session, x: Tensor, rate: float) -> Tensor:
    """Draws a mask of one byte per value, which it saves; nothing happens at rate 0."""
    if not rate:
        return x
    strides = elementwise_strides(x.shape, [(x.shape, x.strides)])
    results = ((x.shape, x.dtype), (x.shape, "bool"))
    y, mask = session.run("native_dropout", (x,), results, strides=strides, pure=False)

    def backward(grads: _Grads) -> _Grads:
        return (elementwise(session, "native_dropout_backward", only(grads), mask, dtype=x.dtype),)

    session.record((y,), (x,), backward, (mask,))
    return y


def mean(session: Session, x: Tensor) -> Tensor:
    """The mean along the last dimension, which becomes 1; saves nothing. Backward divides the repeated gradient."""
    (result,) = session.run("mean", (x,), (((*x.shape[:-1], 1), x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        repeated = grad.seen(x.shape, (*grad.strides[:-1], 0))
        return (elementwise(session, "div", repeated),)

    session.record((result,), (x,), backward)
    return result


def cast(session: Session, x: Tensor, dtype: str) -> Tensor:
    """The values in another number format; saves nothing. Nothing happens if they have it."""
    if x.dtype == dtype:
        return x
    result = _copy(session, "_to_copy", x, dtype)
    session.record((result,), (x,), lambda grads: (_copy(session, "_to_copy", only(grads), x.dtype),))
    return result


def widened(session: Session, x: Tensor) -> Tensor:
    """The operand of an operator that autocast runs in float32 (``AT_FORALL_FP32`` in ``ATen/autocast_mode.h``)."""
    return x if session.autocast is None else cast(session, x, "float32")


def _copy(session: Session, op: str, x: Tensor, dtype: str) -> Tensor:
    dense = is_dense(x.shape, x.strides)
    strides = x.strides if dense else elementwise_strides(x.shape, [(x.shape, x.strides)])
    (result,) = session.run(op, (x,), ((x.shape, dtype),), strides=strides)
    return result


def clone(session: Session, x: Tensor) -> Tensor:
    """A contiguous copy; saves nothing."""
    (result,) = session.run("clone", (x,), ((x.shape, x.dtype),))
    session.record((result,), (x,), lambda grads: (only(grads),))
    return result


def cat(session: Session, parts: Sequence[Tensor], dimension: int = -1) -> Tensor:
    """Joins tensors along a dimension; saves nothing. The gradients are views of that of the result."""
    shape = list(parts[0].shape)
    shape[dimension] = sum(x.shape[dimension] for x in parts)
    (result,) = session.run("cat", parts, ((tuple(shape), _promoted(parts)),))

    def backward(grads: _Grads) -> _Grads:
        grad, sizes = only(grads), [x.shape[dimension] for x in parts]
        begins = accumulate(sizes, initial=0)
        return [grad.part(dimension, begin, size) for begin, size in zip(begins, sizes, strict=False)]

    session.record((result,), parts, backward)
    return result


def interleaved(session: Session, first: Tensor, second: Tensor) -> Tensor:
    """Values of both in turn: ``stack`` along a new last dimension, which is then joined with the one before.

    Saves nothing. The gradients are views of that of the result.
    """
    (result,) = session.run("stack", (first, second), (((*first.shape, 2), first.dtype),))
    result = result.seen((*first.shape[:-1], 2 * first.shape[-1]))

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        return [grad.seen(first.shape, (*grad.strides[:-1], 2 * grad.strides[-1])) for _ in range(2)]

    session.record((result,), (first, second), backward)
    return result
