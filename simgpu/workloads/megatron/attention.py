"""Attention of Megatron-LM with TransformerEngine: of heads whose weights one product holds, or multi-head latent.

Sources: ``core/transformer/attention.py`` and ``multi_latent_attention.py`` of Megatron-LM at 23e00ed0 (0.14) with the
layers of ``core/models/gpt/gpt_layer_specs.py``. Queries, keys and values that are not rotated stay columns of their
product, which cuDNN reads, and whose gradient it writes, as they lie (the layout sbh3d of TransformerEngine's
``get_qkv_layout``). Latent attention has YaRN's positions by default
(``core/fusions/fused_mla_yarn_rope_apply.py``): queries are rotated in place, and one kernel puts keys and values
together. The normalizations of its narrow vectors belong to the products after them (``--qk-layernorm``).
TransformerEngine's attention saves queries, keys, values, the result and one number for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.decoder import Decoder, Latent, NormKind
from simgpu.workloads.eager.attention import attention
from simgpu.workloads.eager.pointwise import only
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes, contiguous_strides
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.megatron.layers import Parts, norm_product, normalized, row_product

_Grads = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class JointAttention:
    """One product computes queries, keys and values. heads: of queries, of keys and values, and the width of each.

    of_heads: the normalizations of queries and of keys (``--qk-layernorm``), if any. bias: of that product, if any.
    output_bias: of the result, which is added with the layer's input; None for none. rotates: whether positions rotate
    queries and keys. dropout: rate at which shares are dropped.
    """

    parts: Parts
    heads: tuple[int, int, int]
    norm: tuple[Tensor, ...]
    joint: Tensor
    output: Tensor
    of_heads: tuple[Tensor, Tensor] | None
    bias: Tensor | None
    output_bias: Tensor | None
    rotates: bool
    dropout: float

    @classmethod
    def create(cls, parts: Parts, decoder: Decoder) -> JointAttention:
        """Creates this GPU's parts of the weights."""
        width, ranks = decoder.width, parts.group.ranks
        heads = decoder.heads // ranks, decoder.key_heads // ranks, decoder.head_width
        with parts.session.layer("self_attention"):
            output = parts.matrix("linear_proj.weight", width, heads[0] * heads[2])
            output_bias = parts.vector("linear_proj.bias", width) if decoder.output_bias else None
            norm = parts.norm("linear_qkv.layer_norm_", width, layer=decoder.norm_kind is NormKind.LAYER)
            columns = (heads[0] + 2 * heads[1]) * heads[2]
            joint = parts.matrix("linear_qkv.weight", columns, width)
            bias = parts.vector("linear_qkv.bias", columns) if decoder.query_bias else None
            of_heads = None
            if decoder.head_norms is not None:
                query, key = (parts.vector(f"{name}_layernorm.weight", heads[2]) for name in ("q", "k"))
                of_heads = query, key
        rotates, dropout = decoder.rotary_width > 0, decoder.attention_dropout
        return cls(parts, heads, norm, joint, output, of_heads, bias, output_bias, rotates, dropout)

    @property
    def norms(self) -> tuple[Tensor, ...]:
        """Weights of normalizations and the result's bias, of which all GPUs of a group have a copy."""
        return (*self.norm, *(self.of_heads or ()), *(() if self.output_bias is None else (self.output_bias,)))

    def __call__(self, x: Tensor, samples: int) -> Tensor:
        """samples: whose tokens are the rows."""
        with self.parts.session.layer("self_attention"):
            joint = norm_product(self.parts, x, self.norm, self.joint, self.bias)
            attended = self._attended(joint, samples) if self.rotates else self._of_columns(joint, samples)
            return row_product(self.parts, attended, self.output)

    def _attended(self, joint: Tensor, samples: int) -> Tensor:
        """Of a product's columns: queries, keys and values of each group of heads after each other."""
        session, (queries, keys, width) = self.parts.session, self.heads
        tokens = joint.shape[0] // samples
        query, key, value = _split(session, joint, (queries * width, keys * width, keys * width))
        if self.of_heads is not None:
            query, key = (self._normalized(*each) for each in zip((query, key), self.of_heads, strict=True))
        with session.layer("query"):
            query = _rotated(session, query, (samples, queries, tokens, width))
        with session.layer("key"):
            key = _rotated(session, key, (samples, keys, tokens, width))
        value = _contiguous(session, value, (samples, keys, tokens, width))  # ``get_qkv_layout``
        query, key, value = (_of_all_tokens(self.parts, each) for each in (query, key, value))
        result = attention(session, "flash", query, key, value, self.dropout, causal=True)
        return _flat(session, _of_all_heads(self.parts, result))

    def _of_columns(self, joint: Tensor, samples: int) -> Tensor:
        """Of a product's columns, of which each head has its query, key and value after each other."""
        session, (heads, _, width) = self.parts.session, self.heads
        shape = samples, heads, joint.shape[0] // samples, width
        strides = joint.shape[1], 3 * width, samples * joint.shape[1], 1
        views = [joint.seen(shape, strides) for _ in range(3)]
        for place, view in enumerate(views):
            view.offset += place * width
        query, key, value = views
        result = attention(session, "flash", query, key, value, self.dropout, causal=True, columns_of=joint)
        return _flat(session, result)

    def _normalized(self, x: Tensor, scale: Tensor) -> Tensor:
        """Each head of each row, of a copy that is contiguous."""
        rows = x.count // self.heads[2], self.heads[2]
        return normalized(self.parts, _contiguous(self.parts.session, x, rows), scale)


@dataclass(frozen=True, slots=True)
class LatentSelfAttention:
    """Narrow vectors of each token, from which those of its heads are computed. One GPU has all of it.

    norm: of the layer's input. query_down, query_norm: None where queries are computed from the token itself.
    """

    parts: Parts
    decoder: Decoder
    latent: Latent
    norm: Tensor
    query_down: Tensor | None
    query_norm: Tensor | None
    query_up: Tensor
    down: Tensor
    down_norm: Tensor
    up: Tensor
    output: Tensor

    @property
    def output_bias(self) -> None:
        """There is none."""

    @property
    def norms(self) -> tuple[Tensor, ...]:
        """Weights of normalizations outside of products."""
        return (self.norm,)

    @classmethod
    def create(cls, parts: Parts, decoder: Decoder, latent: Latent) -> LatentSelfAttention:
        """Creates the weights."""
        width, heads, rotary = decoder.width, decoder.heads, decoder.rotary_width
        norm = parts.vector("input_layernorm.weight", width)
        query_down = query_norm = None
        with parts.session.layer("self_attention"):
            output = parts.matrix("linear_proj.weight", width, heads * latent.values)
            if latent.queries is None:
                query_up = parts.matrix("linear_q_proj.weight", heads * decoder.head_width, width)
            else:
                query_down = parts.matrix("linear_q_down_proj.weight", latent.queries, width)
                query_norm = parts.vector("linear_q_up_proj.layer_norm_weight", latent.queries)
                query_up = parts.matrix("linear_q_up_proj.weight", heads * decoder.head_width, latent.queries)
            down = parts.matrix("linear_kv_down_proj.weight", latent.keys + rotary, width)
            down_norm = parts.vector("linear_kv_up_proj.layer_norm_weight", latent.keys)
            both = decoder.head_width - rotary + latent.values
            up = parts.matrix("linear_kv_up_proj.weight", heads * both, latent.keys)
        return cls(parts, decoder, latent, norm, query_down, query_norm, query_up, down, down_norm, up, output)

    def __call__(self, x: Tensor, samples: int) -> Tensor:
        """samples: whose tokens are the rows."""
        parts, session, rotary = self.parts, self.parts.session, self.decoder.rotary_width
        shape = samples, self.decoder.heads, x.shape[0] // samples
        with session.layer("input_layernorm"):
            normal = normalized(parts, x, self.norm)
        with session.layer("self_attention"):
            narrow = normal if self.query_down is None else row_product(parts, normal, self.query_down)
            joint = row_product(parts, normal, self.down)
            of_pairs, of_key = _split(session, joint, (self.latent.keys, rotary))
            if self.query_norm is None:
                query = row_product(parts, narrow, self.query_up)
            else:
                query = norm_product(parts, narrow, (self.query_norm,), self.query_up)
            pairs = norm_product(parts, of_pairs, (self.down_norm,), self.up)
            with session.layer("query"):
                query = _rotated_in_place(session, query, (*shape, self.decoder.head_width))
            with session.layer("key"):
                widths = self.decoder.head_width, self.latent.values
                key, value = _joined(session, pairs, of_key, [(*shape, width) for width in widths])
            result = attention(session, "flash", query, key, value, 0.0, causal=True)
            return row_product(parts, _flat(session, result), self.output)


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


def _split(session: Session, joint: Tensor, columns: Sequence[int]) -> list[Tensor]:
    """Views of some columns each; backward puts their gradients together in one copy."""
    begins = accumulate(columns, initial=0)
    views = [joint.part(1, begin, size) for begin, size in zip(begins, columns, strict=False)]

    def backward(grads: _Grads) -> _Grads:
        given = [grad for grad in grads if grad is not None]
        return session.run("cat", given, ((joint.shape, joint.dtype),))

    session.record(views, (joint,), backward, in_python=True)
    return views


def _rotated(session: Session, x: Tensor, shape: Sizes) -> Tensor:
    """Rotated by position, as (samples, heads, tokens, width); nothing but the angles is saved."""
    (result,) = session.run("fused_rope", (x,), ((shape, x.dtype),), priced=(x,))

    def backward(grads: _Grads) -> _Grads:
        return session.run("fused_rope_backward", (only(grads),), ((x.shape, x.dtype),))

    session.record((result,), (x,), backward, in_python=True)
    return result


def _rotated_in_place(session: Session, x: Tensor, shape: Sizes) -> Tensor:
    """The same in the place of the values; backward does it in that of the gradient."""
    session.run_in_place("rotary_fwd_q_kernel", x)
    result = Tensor(x.block, shape, contiguous_strides(shape), is_view=True)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        session.run_in_place("rotary_bwd_q_kernel", grad)
        return (grad.seen(x.shape),)

    session.record((result,), (x,), backward, in_python=True)
    return result


def _joined(session: Session, pairs: Tensor, of_key: Tensor, shapes: Sequence[Sizes]) -> tuple[Tensor, Tensor]:
    """Keys, with their rotated part that all heads share, and values, in one kernel. shapes: of both."""
    key, value = session.run("rotary_fwd_kv_kernel", (pairs, of_key), [(shape, pairs.dtype) for shape in shapes])
    value.block.kind = BlockKind.ACTIVATION

    def backward(grads: _Grads) -> _Grads:
        given = [grad for grad in grads if grad is not None]
        return session.run("rotary_bwd_kv_kernel", given, [(x.shape, x.dtype) for x in (pairs, of_key)])

    session.record((key, value), (pairs, of_key), backward, in_python=True)
    return key, value


def _contiguous(session: Session, x: Tensor, shape: Sizes) -> Tensor:
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
