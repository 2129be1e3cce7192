"""Llama and the models that transformers 4.51 builds like it: Mistral, Qwen2, Qwen3, Gemma, Gemma 2 and Phi-3.

Mixtures of experts (Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE) differ in `simgpu.workloads.configured.experts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.configured.earlier import EARLIER, EarlierAttention
from simgpu.workloads.configured.experts import GatedInner, SparseInner
from simgpu.workloads.configured.parts import (
    Build,
    Linear,
    RmsNorm,
    activated,
    attended,
    capped,
    causal_mask,
    heads_of,
    partly_rotated,
    places_of,
    rotated,
    token_positions,
    window_mask,
)
from simgpu.workloads.configured.places import Places
from simgpu.workloads.eager.pointwise import add, dropout, mul, scale
from simgpu.workloads.eager.products import embedding
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import sliced, split, unsqueeze

#: Families that scale the embedding, and normalize with one plus a weight.
_GEMMA = ("gemma", "gemma2")
_TWO_NORMS = ("input", "post_attention")
_FOUR_NORMS = ("input", "post_attention", "pre_feedforward", "post_feedforward")


class LlamaModel:
    """The weights of the model, created in the order of transformers' modules."""

    def __init__(self, build: Build) -> None:
        decoder, gemma = build.decoder, build.decoder.family in _GEMMA
        self.build = build
        session = build.session
        with session.layer("model"):
            with session.layer("embed_tokens"):
                self.table = build.weight("weight", decoder.vocabulary, decoder.width)
            self.layers = [_Layer.create(build, number) for number in range(decoder.layers)]
            self.norm = RmsNorm.create(build, "norm", decoder.width, gemma)
        if decoder.tied:
            self.head = Linear(build, "lm_head", self.table)
        else:
            self.head = Linear.create(build, "lm_head", decoder.width, decoder.vocabulary, bias=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the output layer reads, (batch, tokens, width)."""
        session = self.build.session
        with session.layer("model"):
            with session.layer("embed_tokens"):
                x = embedding(session, tokens, self.table)
            positions = token_positions(self.build, tokens.shape[1])
            mask = causal_mask(self.build, tokens.shape[0], positions)
            places = places_of(self.build, mask, positions)
            if self.build.decoder.family in _GEMMA:
                x = scale(session, x)
            for layer in self.layers:
                x = layer(x, places)
            return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer's results, limited if the model limits them."""
        logits = self.head(hidden)
        if not self.build.decoder.capped_logits:
            return logits
        with self.build.session.layer("loss"):
            return capped(self.build.session, logits)


@dataclass(frozen=True, slots=True)
class _Layer:
    build: Build
    name: str
    attention: _Attention | _FusedAttention | EarlierAttention
    inner: GatedInner | _FusedInner | SparseInner
    norms: tuple[RmsNorm, ...]
    window: int | None

    @classmethod
    def create(cls, build: Build, number: int) -> _Layer:
        name = f"layers.{number}"
        places = _FOUR_NORMS if build.decoder.family == "gemma2" else _TWO_NORMS
        added_one = build.decoder.family in _GEMMA
        with build.session.layer(name):
            attention = _attention(build)
            inner = _inner(build, number)
            norms = tuple(
                RmsNorm.create(build, f"{place}_layernorm", build.decoder.width, added_one) for place in places
            )
        return cls(build, name, attention, inner, norms, build.decoder.window_of(number))

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session, rate = self.build.session, self.build.decoder.dropout
        places = places._replace(window=self.window)
        if len(self.norms) > len(_TWO_NORMS):
            return self._between_norms(x, places)
        first, second = self.norms
        with session.layer(self.name):
            x = add(session, x, dropout(session, self.attention(first(x), places), rate))
            return add(session, x, dropout(session, self.inner(second(x)), rate))

    def _between_norms(self, x: Tensor, places: Places) -> Tensor:
        """Gemma 2: each part between two normalizations, and a sliding window in every other layer."""
        session = self.build.session
        first, second, third, fourth = self.norms
        with session.layer(self.name):
            if self.window is not None and places.mask is not None:
                places = places._replace(mask=window_mask(session, places.mask))
            x = add(session, x, second(self.attention(first(x), places)))
            return add(session, x, fourth(self.inner(third(x))))


def _attention(build: Build) -> _Attention | _FusedAttention | EarlierAttention:
    """The attention of a layer of this family."""
    if build.decoder.family in EARLIER:
        return EarlierAttention.create(build)
    return _FusedAttention.create(build) if build.decoder.family == "phi3" else _Attention.create(build)


def _inner(build: Build, number: int) -> GatedInner | _FusedInner | SparseInner:
    """The feed-forward part of the layer of this number."""
    if build.decoder.family == "phi3":
        return _FusedInner.create(build)
    experts = build.decoder.experts
    if experts is not None and build.decoder.has_experts(number):
        return SparseInner.create(build, experts)
    return GatedInner.create(build, "mlp", build.decoder.inner)


@dataclass(frozen=True, slots=True)
class _Attention:
    """Separate products for queries, keys and values; Qwen3 normalizes queries and keys in each head."""

    build: Build
    products: tuple[Linear, Linear, Linear]
    output: Linear
    norms: tuple[RmsNorm, RmsNorm] | None

    @classmethod
    def create(cls, build: Build) -> _Attention:
        decoder = build.decoder
        head = decoder.head_width
        widths = (decoder.heads * head, decoder.key_heads * head, decoder.key_heads * head)
        with build.session.layer("self_attn"):
            query, key, value = (
                Linear.create(build, f"{name}_proj", decoder.width, width, decoder.query_bias)
                for name, width in zip("qkv", widths, strict=True)
            )
            output = Linear.create(build, "o_proj", widths[0], decoder.width, decoder.output_bias)
            norms = None
            if decoder.normalized_heads:
                norms = RmsNorm.create(build, "q_norm", head), RmsNorm.create(build, "k_norm", head)
        return cls(build, (query, key, value), output, norms)

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session, width = self.build.session, self.build.decoder.head_width
        with session.layer("self_attn"):
            norms = (*(self.norms or (None, None)), None)
            query, key, value = (
                heads_of(session, product(x), width, norm) for product, norm in zip(self.products, norms, strict=True)
            )
            cosines, sines = (unsqueeze(session, each, 1) for each in places.angles)
            query, key = (rotated(session, each, cosines, sines) for each in (query, key))
            return self.output(attended(self.build, query, key, value, places))


@dataclass(frozen=True, slots=True)
class _FusedAttention:
    """Phi-3's: one product for queries, keys and values; part of each head may be rotated."""

    build: Build
    product: Linear
    output: Linear

    @classmethod
    def create(cls, build: Build) -> _FusedAttention:
        decoder = build.decoder
        queries, keys = decoder.heads * decoder.head_width, decoder.key_heads * decoder.head_width
        with build.session.layer("self_attn"):
            output = Linear.create(build, "o_proj", queries, decoder.width, bias=False)
            product = Linear.create(build, "qkv_proj", decoder.width, queries + 2 * keys, bias=False)
        return cls(build, product, output)

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session, decoder = self.build.session, self.build.decoder
        queries, keys = decoder.heads * decoder.head_width, decoder.key_heads * decoder.head_width
        with session.layer("self_attn"):
            joint = self.product(x)
            bounds = (0, queries, queries + keys, queries + 2 * keys)
            parts = [sliced(session, joint, *bounds[place : place + 2]) for place in range(3)]
            query, key, value = (heads_of(session, part, decoder.head_width) for part in parts)
            cosines, sines = (unsqueeze(session, each, 1) for each in places.angles)
            query, key = partly_rotated(self.build, (query, key), cosines, sines, together=False)
            return self.output(attended(self.build, query, key, value, places))


@dataclass(frozen=True, slots=True)
class _FusedInner:
    """Phi-3's: one product for the gate and what it scales."""

    build: Build
    product: Linear
    down: Linear

    @classmethod
    def create(cls, build: Build) -> _FusedInner:
        width, inner = build.decoder.width, build.decoder.inner
        with build.session.layer("mlp"):
            product = Linear.create(build, "gate_up_proj", width, 2 * inner, bias=False)
            return cls(build, product, Linear.create(build, "down_proj", inner, width, bias=False))

    def __call__(self, x: Tensor) -> Tensor:
        session, inner = self.build.session, self.build.decoder.inner
        with session.layer("mlp"):
            gate, up = split(session, self.product(x), (inner, inner))
            return self.down(mul(session, up, activated(self.build, "activation_fn", gate)))
