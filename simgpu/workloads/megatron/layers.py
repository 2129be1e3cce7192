"""TransformerEngine's modules of one GPU among several that share each layer: kernels, what they save, and backward.

Source: TransformerEngine 2.11, ``transformer_engine/pytorch``. `norm_product` is ``module/layernorm_linear.py`` as a
column-parallel layer, `row_product` ``module/linear.py`` as a row-parallel one. Between them each GPU has a part of the
tokens (sequence parallelism). Gradients of weights are added to float32 ones by the product itself
(``fuse_wgrad_accumulation``), so that autograd sees no gradient of such a weight. What autograd gets in its place is
one empty tensor for each shape (``get_dummy_wgrad``), which stays. Other kernels: ``apply_rotary_pos_emb``, the fused
SwiGLU of Megatron-LM (``core/fusions/fused_bias_swiglu.py``), and attention, for which values are copied to be
contiguous (``get_qkv_layout``).

Collectives are not overlapped with products in forward (``--disable-tp-comm-overlap-ag`` and others). In backward, the
input of a column-parallel product is gathered beside the product that computes the gradient of the input, and that
gradient is scattered beside the one for the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simgpu.hardware.collectives import Group
from simgpu.trace.model import BlockKind
from simgpu.workloads.eager.attention import attention
from simgpu.workloads.eager.pointwise import only
from simgpu.workloads.eager.products import product
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.work import gemm
from simgpu.workloads.lowering.tape import TapeBlock
from simgpu.workloads.megatron.exchange import Exchanges
from simgpu.workloads.timemodel.operation import Direction, GemmShape, Operation

_Grads = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the layers of one GPU share.

    group, tokens: the GPUs that share each layer, and those that share the tokens of a sample. gradients: in float32,
    of each weight by its block. placeholders: what autograd gets instead of the gradient of a weight, by shape.
    """

    session: Session
    exchanges: Exchanges
    group: Group
    tokens: Group
    gradients: dict[TapeBlock, Tensor] = field(default_factory=dict)
    placeholders: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def matrix(self, name: str, rows: int, width: int) -> Tensor:
        """A weight of the current layer whose gradient its product adds up itself."""
        return self.as_matrix(self.session.weight(name, (rows, width), "bfloat16"))

    def as_matrix(self, weight: Tensor) -> Tensor:
        """The same for a weight that exists."""
        rows, width = weight.shape
        weight = Tensor(weight.block, weight.shape, weight.strides)
        if weight.shape not in self.placeholders:
            own = f"dummy_wgrad.{rows}x{width}"
            self.placeholders[weight.shape] = self.session.constant(own, weight.shape, "bfloat16", BlockKind.OTHER)
        return weight

    def vector(self, name: str, width: int) -> Tensor:
        """The weight of a normalization."""
        return self.session.weight(name, (width,), "bfloat16")


def norm_product(parts: Parts, x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """The normalized rows of this GPU, gathered from all, times a part of a weight's columns."""
    session, exchanges, group = parts.session, parts.exchanges, parts.group
    rows, width = x.shape
    normal, spread = session.run("_fused_rms_norm", (x, scale), (((rows, width), x.dtype), ((rows,), "float32")))
    result = product(session, "mm", exchanges.gathered(normal, group), _turned(weight))

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        to_input = _data_work(grad, weight)
        whole = exchanges.gathered(normal, group, beside=to_input)
        of_normal = product(session, "mm", grad, weight)
        of_rows = exchanges.scattered(of_normal, group, beside=_weight_work(whole, grad))
        add_product(parts, weight, whole, grad)
        shapes = ((x.shape, x.dtype), (scale.shape, scale.dtype))
        return session.run("_fused_rms_norm_backward", (of_rows, x, spread, scale), shapes)

    session.record((result,), (x, scale), backward, (x, weight, scale, normal, spread), in_python=True)
    return result


def row_product(parts: Parts, x: Tensor, weight: Tensor) -> Tensor:
    """A part of the columns times a part of a weight, summed over the GPUs; each has a part of the rows then."""
    session, exchanges, group = parts.session, parts.exchanges, parts.group
    result = exchanges.scattered(product(session, "mm", x, _turned(weight)), group)

    def backward(grads: _Grads) -> _Grads:
        grad = exchanges.gathered(only(grads), group)
        of_x = product(session, "mm", grad, weight)
        add_product(parts, weight, x, grad)
        return (of_x,)

    session.record((result,), (x,), backward, (x, weight), in_python=True)
    return result


def add_product(parts: Parts, weight: Tensor, x: Tensor, grad: Tensor) -> None:
    """Adds the product of gradient and input to the float32 gradient of a weight."""
    total = parts.gradients[weight.block]
    blocks = [each.block for each in (grad, x, total)]
    parts.session.tape.launch_blocks("mm", (_weight_work(x, grad),), blocks, [total.block], pure=False)


def _data_work(grad: Tensor, weight: Tensor) -> Operation:
    shape = GemmShape(grad.shape[0], weight.shape[1], grad.shape[1])
    results = shape.m * shape.n
    return gemm(shape, grad.bytes + weight.bytes + 2 * results, results, grad.dtype, Direction.BACKWARD_DATA)


def _weight_work(x: Tensor, grad: Tensor) -> Operation:
    shape = GemmShape(grad.shape[1], x.shape[1], x.shape[0])
    results = shape.m * shape.n
    moved = grad.bytes + x.bytes + 2 * 4 * results
    return gemm(shape, moved, results, grad.dtype, Direction.BACKWARD_WEIGHTS)


def gated(parts: Parts, x: Tensor) -> Tensor:
    """SiLU of the first half of the columns times the second, in one kernel; saves its input."""
    session, (rows, width) = parts.session, x.shape
    (result,) = session.run("swiglu", (x,), (((rows, width // 2), x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return session.run("swiglu_backward", (only(grads), x), ((x.shape, x.dtype),))

    session.record((result,), (x,), backward, (x,), in_python=True)
    return result


def self_attention(parts: Parts, joint: Tensor, heads: tuple[int, int, int], samples: int) -> Tensor:
    """Attention of a product's columns: queries, keys and values of each group of heads after each other.

    heads: of queries, of keys and values, and the width of each. samples: whose tokens are the rows.
    """
    session, (queries, keys, width) = parts.session, heads
    tokens = joint.shape[0] // samples
    query, key, value = _split(parts, joint, heads)
    with session.layer("query"):
        query = _rotated(session, query, (samples, queries, tokens, width))
    with session.layer("key"):
        key = _rotated(session, key, (samples, keys, tokens, width))
    value = _contiguous(session, value, (samples, keys, tokens, width))
    query, key, value = (_of_all_tokens(parts, each) for each in (query, key, value))
    result = attention(session, "flash", query, key, value, 0.0, causal=True)
    return _flat(session, _of_all_heads(parts, result))


def _of_all_tokens(parts: Parts, x: Tensor) -> Tensor:
    """All tokens of a part of the heads, in exchange for the other heads of this GPU's tokens.

    ``flash_attn_a2a_communicate`` of TransformerEngine (``context_parallel.py``): a copy of the heads of each GPU after
    each other, the exchange, and a copy in the order of the tokens, of which each GPU has one from either end.
    """
    return _exchanged(parts, x, to_tokens=True)


def _of_all_heads(parts: Parts, x: Tensor) -> Tensor:
    """The reverse of `_of_all_tokens`."""
    return _exchanged(parts, x, to_tokens=False)


def _exchanged(parts: Parts, x: Tensor, *, to_tokens: bool) -> Tensor:
    session, ranks = parts.session, parts.tokens.ranks
    if ranks == 1:
        return x
    result = _exchange(parts, x, to_tokens=to_tokens)

    def backward(grads: _Grads) -> _Grads:
        return (_exchange(parts, only(grads), to_tokens=not to_tokens),)

    session.record((result,), (x,), backward, in_python=True)
    return result


def _exchange(parts: Parts, x: Tensor, *, to_tokens: bool) -> Tensor:
    session, ranks = parts.session, parts.tokens.ranks
    samples, heads, tokens, width = x.shape
    shape = (samples, heads // ranks, tokens * ranks, width)
    if not to_tokens:
        shape = (samples, heads * ranks, tokens // ranks, width)
    ops = ("clone", "index_select") if to_tokens else ("index_select", "clone")
    (apart,) = session.run(ops[0], (x,), ((x.shape, x.dtype),))
    sent = parts.exchanges.exchanged(apart, parts.tokens)
    return session.run(ops[1], (sent,), ((shape, x.dtype),))[0]


def _split(parts: Parts, joint: Tensor, heads: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Views of queries, keys and values; backward puts their gradients together in one copy."""
    session, (queries, keys, width), rows = parts.session, heads, joint.shape[0]
    columns = queries * width, keys * width, keys * width
    begins = 0, columns[0], columns[0] + columns[1]
    views = [joint.part(1, begin, size) for begin, size in zip(begins, columns, strict=True)]

    def backward(grads: _Grads) -> _Grads:
        given = [grad for grad in grads if grad is not None]
        return session.run("cat", given, (((rows, sum(columns)), joint.dtype),))

    session.record(views, (joint,), backward, in_python=True)
    query, key, value = views
    return query, key, value


def _rotated(session: Session, x: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """Rotated by position, as (samples, heads, tokens, width); nothing but the angles is saved."""
    (result,) = session.run("fused_rope", (x,), ((shape, x.dtype),), priced=(x,))

    def backward(grads: _Grads) -> _Grads:
        return session.run("fused_rope_backward", (only(grads),), ((x.shape, x.dtype),))

    session.record((result,), (x,), backward, in_python=True)
    return result


def _contiguous(session: Session, x: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    (result,) = session.run("clone", (x,), ((shape, x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return (only(grads).seen(x.shape),)

    session.record((result,), (x,), backward)
    return result


def _flat(session: Session, x: Tensor) -> Tensor:
    """(samples, heads, tokens, width) as rows of all heads: a view, as TransformerEngine's result has that order."""
    samples, heads, tokens, width = x.shape
    result = x.seen((samples * tokens, heads * width))

    def backward(grads: _Grads) -> _Grads:
        return (only(grads).seen(x.shape),)

    session.record((result,), (x,), backward)
    return result


def _turned(weight: Tensor) -> Tensor:
    """Its transpose, a view."""
    rows, width = weight.shape
    return weight.seen((width, rows), (1, width))
