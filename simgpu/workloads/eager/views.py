"""Views: the same memory in another shape. They have no kernel, but their backward may copy, pad or sum.

`contiguous`, `reshape` and `padded` copy where no view has what is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from simgpu.workloads.eager.pointwise import clone
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes, contiguous_strides, view_strides
from simgpu.workloads.eager.tensor import NodeBackward, Tensor


def reshape(session: Session, x: Tensor, shape: Sizes) -> Tensor:
    """The values in another shape: a view, or a contiguous copy where no view is possible."""
    strides = view_strides(x.shape, x.strides, shape)
    if strides is None:
        return reshape(session, clone(session, x), shape)
    return _view(session, x, shape, strides, lambda grads: (reshape(session, _given(grads), x.shape),))


def unsqueeze(session: Session, x: Tensor, dimension: int) -> Tensor:
    """A new dimension of size 1 before the given one."""
    shape = (*x.shape[:dimension], 1, *x.shape[dimension:])
    step = x.shape[dimension] * x.strides[dimension] if dimension < len(x.shape) else 1
    strides = (*x.strides[:dimension], step, *x.strides[dimension:])
    return _view(session, x, shape, strides, lambda grads: (_squeezed(_given(grads), dimension),))


def _squeezed(x: Tensor, dimension: int) -> Tensor:
    return x.seen(
        (*x.shape[:dimension], *x.shape[dimension + 1 :]), (*x.strides[:dimension], *x.strides[dimension + 1 :])
    )


def transpose(session: Session, x: Tensor, first: int, second: int) -> Tensor:
    """Two dimensions swapped."""
    return _view(
        session,
        x,
        _swapped(x.shape, first, second),
        _swapped(x.strides, first, second),
        lambda grads: (transpose(session, _given(grads), first, second),),
    )


def _swapped(sizes: Sizes, first: int, second: int) -> Sizes:
    order = list(sizes)
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def sliced(session: Session, x: Tensor, begin: int, end: int) -> Tensor:
    """Part of the last dimension. Backward copies the gradient into zeros of full size."""
    if (begin, end) == (0, x.shape[-1]):
        return x

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        return session.run("slice_backward", (_given(grads),), ((x.shape, x.dtype),))

    result = x.part(-1, begin, end - begin)
    session.record((result,), (x,), backward)
    return result


def padded(session: Session, x: Tensor, width: int) -> Tensor:
    """A copy with zeros behind the values of the last dimension. Backward copies the gradient without them."""
    (result,) = session.run("constant_pad_nd", (x,), (((*x.shape[:-1], width), x.dtype),))

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        return session.run("constant_pad_nd", (_given(grads),), ((x.shape, x.dtype),))

    session.record((result,), (x,), backward)
    return result


def alternating(session: Session, x: Tensor) -> tuple[Tensor, Tensor]:
    """The values at even and at odd places of the last dimension, ``x[..., 0::2]`` and ``x[..., 1::2]``.

    Backward copies the gradient of each into zeros of full size.
    """
    shape, strides = (*x.shape[:-1], x.shape[-1] // 2), (*x.strides[:-1], 2 * x.strides[-1])

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        return session.run("slice_backward", (_given(grads),), ((x.shape, x.dtype),))

    return _view(session, x, shape, strides, backward), _view(session, x, shape, strides, backward)


def only_one(session: Session, x: Tensor) -> Tensor:
    """``x[0]`` where the first dimension has the size 1. Backward copies the gradient into zeros all the same."""

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        return session.run("select_backward", (_given(grads),), ((x.shape, x.dtype),))

    return _view(session, x, x.shape[1:], x.strides[1:], backward)


def sliced_rows(session: Session, x: Tensor) -> Tensor:
    """All rows, as ``x[..., -rows:, :]``: a slice whose backward copies the gradient into zeros all the same."""

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        return session.run("slice_backward", (_given(grads),), ((x.shape, x.dtype),))

    return _view(session, x, x.shape, x.strides, backward)


def row_chunks(session: Session, x: Tensor, count: int) -> list[Tensor]:
    """The rows of a matrix or vector in chunks as ``tensor_split`` makes them: slices, of which the first are longer.

    Backward copies the gradient of each into zeros of full size.
    """
    short, longer = divmod(x.shape[0], count)
    chunks, begin = [], 0

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        return session.run("slice_backward", (_given(grads),), ((x.shape, x.dtype),))

    for place in range(count):
        rows = short + (place < longer)
        chunk = _view(session, x, (rows, *x.shape[1:]), x.strides, backward)
        chunk.offset = x.offset + begin * x.strides[0]
        chunks.append(chunk)
        begin += rows
    return chunks


def split(session: Session, x: Tensor, widths: Sequence[int], dimension: int = -1) -> tuple[Tensor, ...]:
    """A dimension in parts of these widths. Backward concatenates the gradients, zeros for a part without one."""
    begins = accumulate(widths, initial=0)
    parts = tuple(x.part(dimension, begin, width) for begin, width in zip(begins, widths, strict=False))

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        pieces = [
            session.run("zeros", (), ((shape, x.dtype),))[0] if grad is None else grad
            for shape, grad in zip((each.shape for each in parts), grads, strict=True)
        ]
        return session.run("cat", pieces, ((x.shape, x.dtype),))

    session.record(parts, (x,), backward)
    return parts


def permute(session: Session, x: Tensor, order: Sequence[int]) -> Tensor:
    """The dimensions in another order."""
    shape, strides = (tuple(sizes[place] for place in order) for sizes in (x.shape, x.strides))
    back = [order.index(place) for place in range(len(order))]
    return _view(session, x, shape, strides, lambda grads: (permute(session, _given(grads), back),))


def expand(session: Session, x: Tensor, shape: Sizes) -> Tensor:
    """Dimensions of size 1 repeated without a copy. Backward sums over them."""
    added = len(shape) - len(x.shape)
    strides = tuple(
        0 if place < added or x.shape[place - added] != side else x.strides[place - added]
        for place, side in enumerate(shape)
    )
    return _view(session, x, shape, strides, lambda grads: (summed_to(session, _given(grads), x.shape),))


def summed_to(session: Session, grad: Tensor, shape: Sizes) -> Tensor:
    """A gradient summed over the dimensions along which a value of this shape was repeated."""
    if grad.shape == shape:
        return grad
    added = len(grad.shape) - len(shape)
    kept = tuple(
        1 if place < added or shape[place - added] == 1 != side else side for place, side in enumerate(grad.shape)
    )
    (total,) = session.run("sum", (grad,), ((kept, grad.dtype),))
    return total.seen(shape) if added else total


def contiguous(session: Session, x: Tensor) -> Tensor:
    """The tensor itself if contiguous, else a copy."""
    return x if x.is_contiguous else clone(session, x)


def _view(session: Session, x: Tensor, shape: Sizes, strides: Sizes | None, backward: NodeBackward) -> Tensor:
    result = x.seen(shape, contiguous_strides(shape) if strides is None else strides)
    session.record((result,), (x,), backward)
    return result


def _given(grads: Sequence[Tensor | None]) -> Tensor:
    """The only gradient."""
    (grad,) = grads
    assert grad is not None
    return grad
