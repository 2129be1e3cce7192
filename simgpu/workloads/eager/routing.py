"""Operators with which a router gives rows to experts, in the form that they have on CUDA.

Which rows an expert receives depends on values, which are not known here: the caller gives their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.workloads.eager.pointwise import add_number, elementwise, only
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import expand, unsqueeze

_Grads = Sequence[Tensor | None]


def largest(session: Session, x: Tensor, count: int, op: str = "topk") -> tuple[Tensor, Tensor]:
    """``topk`` along the last dimension: values and their places, which are saved. op: ``max`` does so for one."""
    shape = (*x.shape[:-1], count)
    values, places = session.run(op, (x,), ((shape, x.dtype), (shape, "int64")))

    def backward(grads: _Grads) -> _Grads:
        (zeros,) = session.run("new_zeros", (), ((x.shape, x.dtype),))
        session.run_in_place("scatter_", zeros, (places, only(grads)))
        return (zeros,)

    session.record((values,), (x,), backward, (places,))
    return values, places


def gathered(session: Session, x: Tensor, places: Tensor) -> Tensor:
    """``x.gather(-1, places)``; saves both, x for its shape. Backward adds into zeros of full size."""
    (result,) = session.run("gather", (x, places), ((places.shape, x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        (zeros,) = session.run("new_zeros", (), ((x.shape, x.dtype),))
        session.run_in_place("scatter_add_", zeros, (places, only(grads)))
        return (zeros,)

    session.record((result,), (x,), backward, (x, places))
    return result


def gathered_rows(session: Session, x: Tensor, places: Tensor, rows: int) -> Tensor:
    """``x.gather(0, places)`` of whole rows, (rows, width); saves both. Backward adds into zeros of full size."""
    width = x.shape[-1]
    spread = places.seen((rows, width), (1, 0))
    (result,) = session.run("gather", (x, spread), (((rows, width), x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        (zeros,) = session.run("new_zeros", (), ((x.shape, x.dtype),))
        session.run_in_place("scatter_add_", zeros, (spread, only(grads)))
        return (zeros,)

    session.record((result,), (x,), backward, (x, spread))
    return result


def put(session: Session, x: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """``x.scatter_(-1, places, values)`` into values that need no gradient; saves the places."""
    session.run_in_place("scatter_", x, (places, values))
    result = Tensor(x.block, x.shape, x.strides)

    def backward(grads: _Grads) -> _Grads:
        return session.run("gather", (only(grads), places), ((places.shape, values.dtype),))

    session.record((result,), (values,), backward, (places,))
    return result


def put_rows(session: Session, total: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """``total.scatter_add_(0, places, values)`` of whole rows; saves the places."""
    spread = places.seen(values.shape, (1, 0))
    session.run_in_place("scatter_add_", total, (spread, values))
    result = Tensor(total.block, total.shape, total.strides)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        return grad, session.run("gather", (grad, spread), ((values.shape, values.dtype),))[0]

    session.record((result,), (total, values), backward, (spread,))
    return result


def divided_by_sum(session: Session, x: Tensor, *, nonzero: bool = False) -> Tensor:
    """``x /= x.sum(-1, keepdim=True)``: autograd saves a copy of what the division overwrites, and the sums.

    nonzero: whether a small number is added to the sums first. Under autocast, sums are in float32.
    """
    dtype = x.dtype if session.autocast is None else "float32"
    (total,) = session.run("sum", (x,), (((*x.shape[:-1], 1), dtype),))
    session.record((total,), (x,), lambda grads: (expand(session, only(grads), x.shape),))
    total = add_number(session, total) if nonzero else total
    (before,) = session.run("clone", (x,), ((x.shape, x.dtype),))
    result = Tensor(x.block, x.shape, x.strides)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        quotient = elementwise(session, "div", before, total)
        factor = elementwise(session, "div", quotient, total)
        negative = elementwise(session, "neg", grad)
        of_total = elementwise(session, "mul", negative, factor)
        session.keep((quotient, factor, negative))
        return elementwise(session, "div", grad, total), of_total

    session.record((result,), (x, total), backward, (before, total))  # the sums are saved before the copy
    session.run_in_place("div_", x, (total,))
    return result


def one_hot(session: Session, places: Tensor, count: int) -> Tensor:
    """(rows, choices) as (rows, choices, count) integers: zeros, and ones where chosen (``ATen/native/Onehot.cpp``)."""
    (result,) = session.run("zeros", (), (((*places.shape, count), "int64"),))
    session.run_in_place("scatter_", result, (places,))
    return result


def where_chosen(session: Session, mask: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """``torch.where`` on one expert's part of a `one_hot` mask: the choice and the row of each of `rows` rows.

    Both are columns of one block; the row is the first one where the mask's order is (tokens, choices) instead.
    """
    tokens, choices, count = mask.shape
    part = mask.seen((choices, tokens), (count, choices * count))
    (places,) = session.run("nonzero", (part,), (((rows, 2), "int64"),))
    return places.seen((rows,)), Tensor(places.block, (rows,), (1,), is_view=True, offset=rows)


def taken(session: Session, x: Tensor, rows: Tensor) -> Tensor:
    """``x[None, rows]``, (1, rows, width); saves the numbers of the rows. Backward adds into zeros of full size."""
    return indexed(session, unsqueeze(session, x, 0), (rows,), (1, rows.shape[0], x.shape[-1]))


def taken_values(session: Session, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``x[rows, columns, None]``, (rows, 1); saves the numbers of rows and columns."""
    return indexed(session, unsqueeze(session, x, 2), (rows, columns), (rows.shape[0], 1))


def indexed(session: Session, x: Tensor, places: tuple[Tensor, ...], shape: Sizes) -> Tensor:
    """``x[places]`` of this shape; saves the places. Backward adds into zeros of full size."""
    (result,) = session.run("index", (x, *places), ((shape, x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        (zeros,) = session.run("new_zeros", (), ((x.shape, x.dtype),))
        session.add_at(zeros, places, only(grads))
        return (zeros,)

    session.record((result,), (x,), backward, places)
    return result


def selected_rows(session: Session, x: Tensor, rows: Tensor) -> Tensor:
    """``x.index_select(0, rows)``; saves the numbers of the rows. Backward adds into zeros of full size."""
    (result,) = session.run("index_select", (x, rows), (((rows.shape[0], *x.shape[1:]), x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        (zeros,) = session.run("new_zeros", (), ((x.shape, x.dtype),))
        session.run_in_place("index_add_", zeros, (rows, only(grads)))
        return (zeros,)

    session.record((result,), (x,), backward, (rows,))
    return result


def add_rows(session: Session, total: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """``total.index_add_(0, rows, values)``; saves the numbers, and the values for their shape."""
    session.run_in_place("index_add_", total, (rows, values))
    result = Tensor(total.block, total.shape, total.strides)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        return grad, session.run("index_select", (grad, rows), ((values.shape, values.dtype),))[0]

    session.record((result,), (total, values), backward, (rows, values))
    return result
