"""Matrix products: linear layers, batches of products, and embeddings, as PyTorch runs them on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from simgpu.units import ITEMSIZE
from simgpu.workloads.eager.autocast import lowered
from simgpu.workloads.eager.pointwise import add_in_place, elementwise, only
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import contiguous, reshape, transpose
from simgpu.workloads.eager.work import gemm
from simgpu.workloads.timemodel.operation import Direction, GemmShape, is_aligned

_Grads = Sequence[Tensor | None]


def linear(session: Session, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with a (features, width) weight; with a bias, one kernel adds it (``ATen/native/Linear.cpp``).

    To a product of other than contiguous values, the bias is added in place.
    """
    x, weight, *biases = lowered(session, x, weight, *(() if bias is None else (bias,)))
    is_matrix = len(x.shape) == 2
    rows: Sizes = (prod(x.shape[:-1]), x.shape[-1])
    is_plain = is_matrix or x.is_contiguous
    if biases and is_plain:
        flat = x if is_matrix else reshape(session, x, rows)
        result = _addmm(session, biases[0], flat, transpose(session, weight, 0, 1))
    else:  # the weight is transposed first, so the engine reaches it last
        turned = transpose(session, weight, 0, 1)
        if is_plain or weight.node is not None:
            result = _mm(session, x if is_matrix else reshape(session, x, rows), turned)
        else:
            result = _one_by_one(session, x, turned)
    if len(result.shape) != len(x.shape):
        result = reshape(session, result, (*x.shape[:-1], weight.shape[0]))
    return add_in_place(session, result, biases[0]) if biases and not is_plain else result


def _one_by_one(session: Session, x: Tensor, second: Tensor) -> Tensor:
    """A product for each sample, which ``matmul`` prefers to a copy if the second factor needs no gradient."""
    spread = second.seen((x.shape[0], *second.shape), (0, *second.strides))
    result = product(session, "bmm", x, spread)

    def backward(grads: _Grads) -> _Grads:
        return (product(session, "bmm", only(grads), _turned(spread)),)

    session.record((result,), (x,), backward, (spread,))
    return result


def transposed_linear(session: Session, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The product with a (width, features) weight, GPT-2's ``Conv1D``."""
    flat = reshape(session, x, (prod(x.shape[:-1]), x.shape[-1]))
    result = _addmm(session, *lowered(session, bias, flat, weight))
    return reshape(session, result, (*x.shape[:-1], weight.shape[1]))


def product(session: Session, op: str, a: Tensor, b: Tensor, added: Tensor | None = None) -> Tensor:
    """Runs one product of matrices, or of batches of matrices, without a place in autograd's graph."""
    size: Sizes = (*a.shape[:-1], b.shape[-1])
    aligned = is_aligned(((a.shape, a.strides), (b.shape, b.strides), (size, (size[-1], 1))), ITEMSIZE[a.dtype])
    count = a.shape[0] if len(a.shape) > 2 else 1
    shape = GemmShape(a.shape[-2], b.shape[-1], a.shape[-1], count, aligned)
    reads = (a, b) if added is None else (added, a, b)
    moved = sum(x.bytes for x in reads) + prod(size) * (a.bytes // max(a.count, 1))
    direction = Direction.BACKWARD_DATA if session.in_backward else Direction.FORWARD
    operation = gemm(shape, moved, prod(size), a.dtype, direction)
    return session.run(op, reads, ((size, a.dtype),), operations=(operation,))[0]


def _turned(x: Tensor) -> Tensor:
    """The last two dimensions swapped, outside autograd's graph."""
    return x.seen((*x.shape[:-2], x.shape[-1], x.shape[-2]), (*x.strides[:-2], x.strides[-1], x.strides[-2]))


def _of_first(session: Session, first: Tensor, second: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a product's first factor, laid out as the factor is (``mm_mat1_backward``)."""
    if first.strides[0] == 1 and first.strides[1] == first.shape[0]:
        return _turned(product(session, "mm", second, _turned(grad)))
    return product(session, "mm", grad, _turned(second))


def _of_second(session: Session, first: Tensor, second: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a product's second factor, laid out as the factor is (``mm_mat2_backward``)."""
    if second.strides[0] == 1 and second.strides[1] == second.shape[0]:
        return _turned(product(session, "mm", _turned(grad), first))
    return product(session, "mm", _turned(first), grad)


def _mm(session: Session, first: Tensor, second: Tensor) -> Tensor:
    """The product of two matrices; saves each factor that the other's gradient needs."""
    result = product(session, "mm", first, second)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        of_second = _of_second(session, first, second, grad) if second.node is not None else None
        of_first = _of_first(session, first, second, grad) if first.node is not None else None
        return of_first, of_second

    session.record((result,), (first, second), backward, _needed(first, second))
    return result


def _needed(first: Tensor, second: Tensor) -> list[Tensor]:
    """The factors of a product that the gradient of the other one needs."""
    return [x for x, other in ((first, second), (second, first)) if other.node is not None]


def _addmm(session: Session, bias: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A product with a bias added to every row; the engine sums the bias's gradient over the rows."""
    result = product(session, "addmm", first, second, bias)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        of_first = _of_first(session, first, second, grad) if first.node is not None else None
        of_second = _of_second(session, first, second, grad) if second.node is not None else None
        return grad, of_first, of_second

    session.record((result,), (bias, first, second), backward, _needed(first, second))
    return result


def batched_product(session: Session, first: Tensor, second: Tensor) -> Tensor:
    """``matmul`` of (batch, heads, rows, depth) and (batch, heads, depth, columns): one product per head."""
    batch: Sizes = first.shape[:2]
    first, second = lowered(session, first, second)
    a, b = (reshape(session, x, (prod(batch), *x.shape[2:])) for x in (first, second))
    return reshape(session, bmm(session, a, b), (*batch, first.shape[2], second.shape[3]))


def bmm(session: Session, first: Tensor, second: Tensor) -> Tensor:
    """One product of (rows, depth) and (depth, columns) for each place in a batch."""
    a, b = lowered(session, first, second)
    result = product(session, "bmm", a, b)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        of_second = product(session, "bmm", _turned(a), grad) if b.node is not None else None
        of_first = product(session, "bmm", grad, _turned(b)) if a.node is not None else None
        return of_first, of_second

    session.record((result,), (a, b), backward, _needed(a, b))
    return result


def matrix_by_batch(session: Session, x: Tensor, second: Tensor) -> Tensor:
    """``matmul`` of (rows, depth) and (1, depth, columns): one product of both transposed, whose result is copied back
    (``should_fold`` in ``ATen/native/LinearAlgebra.cpp``, for a first factor that needs a gradient)."""
    x, second = lowered(session, x, second)
    _, depth, columns = second.shape
    turned = reshape(session, transpose(session, second, 1, 2), (columns, depth))
    result = _mm(session, turned, transpose(session, x, 0, 1))
    return contiguous(session, transpose(session, reshape(session, result, (1, *result.shape)), 1, 2))


def scaled_bmm(session: Session, first: Tensor, second: Tensor) -> Tensor:
    """``bmm`` times a number, as ``baddbmm`` with an empty tensor of the result's size that counts for nothing."""
    empty = session.empty((*first.shape[:-1], second.shape[-1]), first.dtype)
    added, a, b = lowered(session, empty, first, second)
    result = product(session, "baddbmm", a, b, added)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        of_first, of_second = None, None
        if a.node is not None:
            of_first = elementwise(session, "mul", product(session, "bmm", grad, _turned(b)))
        if b.node is not None:
            of_second = elementwise(session, "mul", product(session, "bmm", _turned(a), grad))
        return of_first, of_second

    session.record((result,), (a, b), backward, _needed(a, b))
    return result


def embedding(session: Session, indices: Tensor, table: Tensor) -> Tensor:
    """Rows of a table; saves the indices."""
    width = table.shape[-1]
    (result,) = session.run("embedding", (table, indices), (((*indices.shape, width), table.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return session.run("embedding_dense_backward", (only(grads), indices), ((table.shape, table.dtype),))

    session.record((result,), (table,), backward, (indices,))
    return result
