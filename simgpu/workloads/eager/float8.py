"""`float8_linear`: linear layers whose products multiply float8, scaled tensor by tensor, as torchao 0.14.1 runs them.

``float8/float8_linear.py``: autograd saves the input and the weight in their own formats, and each product converts
both of its factors. A conversion (``float8_scaling_utils.py``, ``float8_utils.py``) finds the largest magnitude of a
tensor, divides the largest number of float8 by it, and multiplies the tensor by the quotient.

Without the compiler, every step is a kernel, most of them on float32 copies. Compiled, a conversion is three kernels:
two for the largest magnitude, of which the second reads a few values only, and one that converts, in the layout that
the product needs (the traffic of ``testing/training/roofline_utils.py``; no recording of compiled kernels was
compared). The scales of input and weight are kept for backward, which converts the gradient once for both products;
what else is saved is taken to be the same as without the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from simgpu.workloads.eager.pointwise import add, cast, elementwise, only
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import reshape, transpose
from simgpu.workloads.eager.work import gemm
from simgpu.workloads.timemodel.operation import Direction, GemmShape

_Grads = Sequence[Tensor | None]
#: The formats of inputs and weights, and of gradients.
_OF_VALUES, _OF_GRADIENTS = "float8_e4m3fn", "float8_e5m2"


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A matrix in float8, and the number by which it was multiplied."""

    bits: Tensor
    scale: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.bits, self.scale

    def shaped(self, session: Session, rows: Sizes) -> _Scaled:
        return _Scaled(reshape(session, self.bits, rows), self.scale)

    @property
    def turned(self) -> _Scaled:
        return _Scaled(_turned(self.bits), self.scale)


def float8_linear(
    session: Session, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, compiled: bool = False
) -> Tensor:
    """The product with a (features, width) weight; a separate kernel adds a bias.

    Width, features and the number of rows must be multiples of 16, as ``torch._scaled_mm`` needs them.
    compiled: whether ``torch.compile`` compiled the layer.
    """
    if session.autocast is not None:
        x = cast(session, x, session.autocast)
    turned = transpose(session, weight, 0, 1)
    result = (_compiled if compiled else _one_by_one)(session, x, turned)
    return result if bias is None else add(session, result, cast(session, bias, result.dtype))


def _one_by_one(session: Session, x: Tensor, weight: Tensor) -> Tensor:
    """The product of a value and a (width, features) weight, without the compiler."""
    rows: Sizes = (prod(x.shape[:-1]), x.shape[-1])
    first, second = (_converted(session, each, _OF_VALUES) for each in (x, weight))
    result = _product(session, first.shaped(session, rows), second, x.dtype)
    session.keep(first.tensors, second.tensors)

    def backward(grads: _Grads) -> _Grads:
        grad = reshape(session, only(grads), (rows[0], weight.shape[1]))
        once, of_weight = _converted(session, grad, _OF_GRADIENTS), _converted(session, weight, _OF_VALUES)
        to_input = _product(session, once, of_weight.turned, grad.dtype)
        again, of_input = (
            _converted(session, grad, _OF_GRADIENTS),
            _converted(session, reshape(session, _alone(x), rows), _OF_VALUES),
        )
        to_weight = _product(session, again.turned, of_input, grad.dtype)
        session.keep(*(each.tensors for each in (once, of_weight, again, of_input)))
        return to_input.seen(x.shape), _turned(to_weight)

    result = result.seen((*x.shape[:-1], weight.shape[1]))
    session.record((result,), (x, weight), backward, (x, weight), in_python=True)
    return result


def _converted(session: Session, x: Tensor, dtype: str) -> _Scaled:
    """``hp_tensor_to_float8_dynamic``; its variables hold what each line computed until the next one has run."""
    x = _alone(x)
    scale = _scale(session, x)
    wide = cast(session, x, "float32")
    scaled = elementwise(session, "mul", wide, scale)
    bits = cast(session, elementwise(session, "clamp", scaled), dtype)
    session.keep((scaled,))
    return _Scaled(bits, scale)


def _scale(session: Session, x: Tensor) -> Tensor:
    """``tensor_to_scale``: the quotient is computed in float64."""
    (most,) = session.run("max", (elementwise(session, "abs", x),), (((), x.dtype),))
    wide = cast(session, most, "float64")
    limited = elementwise(session, "clamp", wide)
    quotient = elementwise(session, "mul", elementwise(session, "reciprocal", limited))
    session.keep((limited,))
    scale = cast(session, quotient, "float32")
    session.keep((most, wide))
    return scale


def _product(session: Session, a: _Scaled, b: _Scaled, dtype: str) -> Tensor:
    """``float8_mm``: the first factor is copied unless its rows, the second unless its columns, follow each other."""
    first, second = a.bits, b.bits
    if not _has_rows(first):
        first = _copied(session, first)
    if _has_rows(second):
        second = _turned(_copied(session, _turned(second)))
    inverses = [elementwise(session, "reciprocal", each.scale) for each in (a, b)]
    return _scaled_product(session, first, second, inverses, dtype)


def _scaled_product(session: Session, first: Tensor, second: Tensor, scales: Sequence[Tensor], dtype: str) -> Tensor:
    """One kernel, whose result has another format than its factors."""
    shape, size = GemmShape(first.shape[0], second.shape[1], first.shape[1]), (first.shape[0], second.shape[1])
    direction = Direction.BACKWARD_DATA if session.in_backward else Direction.FORWARD
    moved = first.bytes + second.bytes + prod(size) * (4 if dtype == "float32" else 2)
    work = gemm(shape, moved, prod(size), first.dtype, direction)
    return session.run("_scaled_mm", (first, second, *scales), ((size, dtype),), operations=(work,))[0]


def _has_rows(x: Tensor) -> bool:
    return x.strides[0] > x.strides[1] == 1


def _copied(session: Session, x: Tensor) -> Tensor:
    return session.run("contiguous", (x,), ((x.shape, x.dtype),))[0]


def _turned(x: Tensor) -> Tensor:
    return x.seen(x.shape[::-1], x.strides[::-1])


def _alone(x: Tensor) -> Tensor:
    """The same values outside autograd's graph."""
    return x.seen(x.shape, x.strides)


def _compiled(session: Session, x: Tensor, weight: Tensor) -> Tensor:
    """The same product, with conversions of three kernels each."""
    rows: Sizes = (prod(x.shape[:-1]), x.shape[-1])
    of_x, of_weight = _fused_scale(session, x), _fused_scale(session, weight)
    first, second = _fused(session, x, of_x, _OF_VALUES), _fused(session, weight, of_weight, _OF_VALUES)
    first = reshape(session, first, rows)
    result = _scaled_product(session, first, second, (of_x, of_weight), x.dtype)

    def backward(grads: _Grads) -> _Grads:
        grad = reshape(session, only(grads), (rows[0], weight.shape[1]))
        scale = _fused_scale(session, grad)
        both = ((grad.shape, _OF_GRADIENTS), (grad.shape[::-1], _OF_GRADIENTS))
        flat, turned = session.run("_to_copy", (grad, scale), both)
        factor = _fused(session, _turned(weight), of_weight, _OF_VALUES, turned=True)
        to_input = _scaled_product(session, flat, factor, (scale, of_weight), grad.dtype)
        factor = _fused(session, reshape(session, _alone(x), rows), of_x, _OF_VALUES, turned=True)
        to_weight = _scaled_product(session, turned, factor, (scale, of_x), grad.dtype)
        return to_input.seen(x.shape), _turned(to_weight)

    result = result.seen((*x.shape[:-1], weight.shape[1]))
    session.record((result,), (x, weight), backward, (x, weight, of_x, of_weight), in_python=True)
    return result


def _fused_scale(session: Session, x: Tensor) -> Tensor:
    """The scale of a tensor: largest magnitudes of its parts, then that of all."""
    (parts,) = session.run("amax", (_alone(x),), (((), "float32"),))
    return elementwise(session, "reciprocal", parts)


def _fused(session: Session, x: Tensor, scale: Tensor, dtype: str, *, turned: bool = False) -> Tensor:
    """A tensor in float8. turned: with the columns, not the rows, of a matrix after each other."""
    strides = (1, x.shape[0]) if turned else x.strides
    return session.run("_to_copy", (_alone(x), scale), ((x.shape, dtype),), strides=strides)[0]
