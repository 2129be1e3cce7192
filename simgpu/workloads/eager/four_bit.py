"""`FourBitWeight`: frozen weights of four bits, as bitsandbytes stores and multiplies them (``Linear4bit``, NF4).

Two values share a byte, and each block of 64 has a scale in float32. With double quantization (``compress_statistics``)
a scale is a byte, and each block of 256 scales has one in float32. Forward and backward make the weights in half
precision for one product each, which is what ``MatMul4Bit`` in bitsandbytes/autograd/_functions.py does in versions
0.43 to 0.48; later ones have a kernel of their own for forward. The tables of 16 and 256 values are left out.

From 0.46 on, the kernels are operators in graphs of ``torch.compile``, where backward has the same ones as forward:
PyTorch computes them once (``fx_graph_cse`` in torch/_functorch/compile_utils.py) and keeps the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from simgpu.workloads.eager.pointwise import cast, only
from simgpu.workloads.eager.products import linear, product
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes, contiguous_strides
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import reshape

#: Values that share a scale, and scales that share one.
_VALUES, _SCALES = 64, 256

_Grads = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class FourBitWeight:
    """A matrix, (features, width). outer: scales of the scales, with double quantization. dtype: of products."""

    packed: Tensor
    scales: Tensor
    outer: Tensor | None
    shape: tuple[int, int]
    dtype: str

    @classmethod
    def create(cls, session: Session, shape: tuple[int, int], dtype: str, *, nested: bool) -> FourBitWeight:
        """Creates the weight in the current layer."""
        scales = -(-prod(shape) // _VALUES)

        def frozen(name: str, count: int, dtype: str) -> Tensor:
            return session.weight(name, (count,), dtype, trained=False)

        packed = frozen("weight", -(-prod(shape) // 2), "uint8")
        inner = frozen("weight.absmax", scales, "uint8" if nested else "float32")
        outer = frozen("weight.nested_absmax", -(-scales // _SCALES), "float32") if nested else None
        return cls(packed, inner, outer, shape, dtype)

    def whole(self, session: Session) -> Tensor:
        """The matrix in half precision, outside autograd's graph."""
        scales = self.scales
        if self.outer is not None:
            (scales,) = session.run("dequantize_blockwise", (scales, self.outer), ((scales.shape, "float32"),))
            session.run_in_place("add_", scales)
        return session.run("dequantize_4bit", (self.packed, scales), ((self.shape, self.dtype),))[0]


def four_bit_linear(session: Session, x: Tensor, weight: FourBitWeight, bias: Tensor | None = None) -> Tensor:
    """The product with a weight of four bits, in the format of x; autograd saves nothing but what is packed."""
    given, x = x.dtype, cast(session, x, weight.dtype)
    rows: Sizes = (prod(x.shape[:-1]), weight.shape[0])
    result = linear(session, x.seen(x.shape, x.strides), weight.whole(session), bias)

    def backward(grads: _Grads) -> _Grads:
        grad = reshape(session, only(grads), rows)
        result = product(session, "mm", grad, weight.whole(session))
        return (Tensor(result.block, x.shape, contiguous_strides(x.shape)),)  # ``_unsafe_view``, which is no view

    session.record((result,), (x,), backward, in_python=True)
    return cast(session, result, given)
