"""Llama and the models that transformers 4.51 builds like it: Mistral, Qwen2, Qwen3, Gemma 1 to 3, OLMo 2,
Granite, SmolLM3, Starcoder2, StableLM, GLM, GLM-4, Cohere, Phi-3 and GPT-OSS.

Mixtures of experts (Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE) differ in `simgpu.workloads.configured.experts`, DeepSeek-V3
in `simgpu.workloads.configured.grouped_experts` and `simgpu.workloads.configured.latent`, Llama 4 in
`simgpu.workloads.configured.llama4` and GPT-OSS in `simgpu.workloads.configured.gpt_oss`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.decoder import HeadNorms, Norms
from simgpu.workloads.configured.earlier import EARLIER, EarlierAttention
from simgpu.workloads.configured.experts import GatedInner, PlainInner, SparseInner
from simgpu.workloads.configured.gpt_oss import LoopedMixture, SinkAttention
from simgpu.workloads.configured.grouped_experts import GroupedInner
from simgpu.workloads.configured.latent import LatentAttention
from simgpu.workloads.configured.later_mask import later_mask
from simgpu.workloads.configured.llama4 import DenseMixture, Llama4Attention, complex_angles
from simgpu.workloads.configured.norms import Norm, norm_of
from simgpu.workloads.configured.parts import (
    Build,
    Linear,
    activated,
    attended,
    capped,
    causal_mask,
    heads_of,
    separated,
    token_positions,
    window_mask,
)
from simgpu.workloads.configured.places import Places
from simgpu.workloads.configured.rotary import partly_rotated, places_of, turned
from simgpu.workloads.eager.collectives import embedded_part, gathered
from simgpu.workloads.eager.pointwise import add, cast, dropout, mul, scale
from simgpu.workloads.eager.products import embedding
from simgpu.workloads.eager.strides import Sizes
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import sliced, split, transpose, unsqueeze

#: Families that scale the embedding by a number on the host, after the angles of the rotary embedding.
_SCALED_LATE = ("gemma", "gemma2")
#: The normalizations of a layer before and after attention, and before and after the feed-forward part.
_NORMS: dict[Norms, tuple[str | None, ...]] = {
    Norms.BEFORE: ("input", None, "post_attention", None),
    Norms.AROUND: ("input", "post_attention", "pre_feedforward", "post_feedforward"),
    Norms.SHARED: ("input", None, None, None),
    Norms.AFTER: (None, "post_attention", None, "post_feedforward"),
}
_GLM4_NORMS = ("input", "post_self_attn", "post_attention", "post_mlp")


class LlamaModel:
    """The weights of the model, created in the order of transformers' modules."""

    def __init__(self, build: Build) -> None:
        decoder = build.decoder
        self.build = build
        session = build.session
        with session.layer("model"):
            with session.layer("embed_tokens"):
                self.table = build.weight("weight", decoder.vocabulary, decoder.width)
            self.layers = [_Layer.create(build, number) for number in range(decoder.layers)]
            self.norm = norm_of(build, "norm", decoder.width)
        if decoder.tied:
            self.head = Linear(build, "lm_head", self.table)
        else:
            self.head = Linear.create(build, "lm_head", decoder.width, decoder.vocabulary, bias=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the output layer reads, (batch, tokens, width)."""
        session = self.build.session
        with session.layer("model"):
            with session.layer("embed_tokens"):
                x = self._embedded(tokens)
                if self.build.decoder.family == "gemma3_text":
                    x = mul(session, x, self._scale())
            if self.build.decoder.multiplied:
                x = scale(session, x)
            positions = token_positions(self.build, tokens.shape[1])
            mask = (later_mask if self.build.decoder.is_later else causal_mask)(self.build, tokens.shape[0], positions)
            x = dropout(session, x, self.build.decoder.embedding_dropout)
            windowed = None
            if self.build.decoder.has_sinks:
                windowed = later_mask(self.build, tokens.shape[0], positions, has_window=True)
            places = self._places(mask, positions)._replace(windowed=windowed)
            if self.build.decoder.family in _SCALED_LATE:
                x = scale(session, x)
            for layer in self.layers:
                x = layer(x, places)
            return self.norm(x)

    def _embedded(self, tokens: Tensor) -> Tensor:
        """The tokens' rows of the table; of a group of GPUs, each has them for its part of the tokens."""
        session, group = self.build.session, self.build.group
        if group is None:
            return embedding(session, tokens, self.table)
        return embedded_part(session, group, tokens, self.table)

    def _places(self, mask: Tensor | None, positions: Tensor) -> Places:
        if self.build.decoder.family == "llama4_text":
            return Places((complex_angles(self.build, positions),), mask, positions)
        return places_of(self.build, mask, positions)

    def _scale(self) -> Tensor:
        """The number on the GPU by which Gemma 3 scales its embedding."""
        session = self.build.session
        return session.constant(f"{session.tape.layer}.embed_scale", (), self.build.dtype, BlockKind.OTHER)

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer's results, scaled or limited if the model does so."""
        session, decoder = self.build.session, self.build.decoder
        if self.build.group is not None:
            with session.layer("lm_head"):
                hidden = gathered(session, self.build.group, hidden)
        logits = self.head(hidden)
        with session.layer("loss"):
            logits = logits if decoder.logits_by is None else scale(session, logits, decoder.logits_by)
            return capped(session, logits) if decoder.capped_logits else logits


@dataclass(frozen=True, slots=True)
class _Layer:
    """norms: before and after attention, and before and after the feed-forward part."""

    build: Build
    name: str
    attention: _AnyAttention
    inner: _AnyInner
    norms: tuple[Norm | None, ...]
    window: int | None

    @classmethod
    def create(cls, build: Build, number: int) -> _Layer:
        name, width = f"layers.{number}", build.decoder.width
        with build.session.layer(name):
            attention = _attention(build, number)
            inner = _inner(build, number)
            norms = tuple(
                None if place is None else norm_of(build, f"{place}_layernorm", width)
                for place in (_GLM4_NORMS if build.decoder.family == "glm4" else _NORMS[build.decoder.norms])
            )
        return cls(build, name, attention, inner, norms, build.decoder.window_of(number))

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            places = self._places(places)
            if self.build.decoder.parallel:
                (first, *_) = self.norms
                assert first is not None
                normal = first(x)
                both = self.attention(normal, places), self._inner(normal)
                return add(session, add(session, x, both[0]), both[1])
            x = self._added(x, lambda normal: self.attention(normal, places), *self.norms[:2])
            return self._added(x, self._inner, *self.norms[2:])

    def _inner(self, x: Tensor) -> Tensor:
        session, result = self.build.session, self.inner(x)
        with session.layer("dropout"):
            return dropout(session, result, self.build.decoder.inner_dropout)

    def _places(self, places: Places) -> Places:
        """What attention of this layer reads. Gemma 2 and 3 hide what is outside the window in each layer with one."""
        places = places._replace(window=self.window)
        if self.window is None or not self.build.decoder.whole_step:
            return places
        if places.windowed is not None:
            return places._replace(mask=places.windowed)
        mask = None if places.mask is None else window_mask(self.build.session, places.mask)
        return places._replace(mask=mask, angles=places.local)

    def _added(self, x: Tensor, part: Callable[[Tensor], Tensor], before: Norm | None, after: Norm | None) -> Tensor:
        """The sum of a value and what a part computes from it, normalized before and after."""
        session, decoder = self.build.session, self.build.decoder
        normal = x if before is None else before(x)
        result = part(normal if self.build.group is None else gathered(session, self.build.group, normal))
        result = result if after is None else after(result)
        result = scale(session, result) if decoder.multiplied else result
        return add(session, x, dropout(session, result, decoder.dropout))


def _attention(build: Build, number: int) -> _AnyAttention:
    """The attention of the layer of this number."""
    if build.decoder.latent is not None:
        return LatentAttention.create(build, build.decoder.latent)
    if build.decoder.family in EARLIER:
        return EarlierAttention.create(build)
    if build.decoder.family == "phi3":
        return _FusedAttention.create(build)
    if build.decoder.has_sinks:
        return SinkAttention.create(build)
    rotates = number not in build.decoder.unrotated
    own = Llama4Attention if build.decoder.family == "llama4_text" else _Attention
    return own.create(build, rotates=rotates)


def _inner(build: Build, number: int) -> _AnyInner:
    """The feed-forward part of the layer of this number."""
    if build.decoder.family == "starcoder2":
        return PlainInner.create(build, "c_fc", "c_proj", "act")
    if build.decoder.family in ("phi3", "glm", "glm4"):
        return _FusedInner.create(build)
    experts = build.decoder.experts
    if experts is not None and build.decoder.has_experts(number):
        if build.decoder.family == "llama4_text":
            return DenseMixture.create(build, experts)
        if build.decoder.family == "gpt_oss":
            return LoopedMixture.create(build, experts)
        if experts.groups is not None:
            return GroupedInner.create(build, experts, experts.groups)
        return SparseInner.create(build, experts)
    return GatedInner.create(
        build, "feed_forward" if build.decoder.family == "llama4_text" else "mlp", build.decoder.inner
    )


@dataclass(frozen=True, slots=True)
class _Attention:
    """Separate products for queries, keys and values; `HeadNorms` normalize queries and keys."""

    build: Build
    products: tuple[Linear, Linear, Linear]
    output: Linear
    norms: tuple[Norm, Norm] | None
    rotates: bool

    @classmethod
    def create(cls, build: Build, *, rotates: bool) -> _Attention:
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
            if decoder.head_norms is not None:
                shapes: tuple[Sizes, Sizes] = (head,), (head,)
                if decoder.head_norms == HeadNorms.TOKEN:
                    shapes = (widths[0],), (widths[1],)
                elif decoder.head_norms == HeadNorms.APART:
                    shapes = (decoder.heads, head), (decoder.key_heads, head)
                norms = norm_of(build, "q_norm", *shapes[0]), norm_of(build, "k_norm", *shapes[1])
        return cls(build, (query, key, value), output, norms, rotates)

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session = self.build.session
        with session.layer("self_attn"):
            query, key, value = self._heads(x)
            if self.rotates:
                query, key = turned(self.build, query, key, places)
            if places.mask is not None and self.build.decoder.head_norms == HeadNorms.TURNED:
                places = places._replace(mask=cast(session, places.mask, query.dtype))
            return self.output(attended(self.build, query, key, value, places))

    def _heads(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values, (batch, heads, tokens, width)."""
        session, decoder = self.build.session, self.build.decoder
        width, pairs = decoder.head_width, self._normalized()
        match decoder.head_norms:
            case HeadNorms.TURNED:
                heads = [(heads_of(session, product(x), width), norm) for product, norm in pairs]
                return [each if norm is None else norm(each) for each, norm in heads]
            case HeadNorms.TOKEN:
                values = [product(x) if norm is None else norm(product(x)) for product, norm in pairs]
                return [heads_of(session, each, width) for each in values]
            case HeadNorms.APART:
                apart = [(separated(session, product(x), width), norm) for product, norm in pairs]
                normal = [each if norm is None else norm(each) for each, norm in apart]
                return [transpose(session, each, 1, 2) for each in normal]
        return [heads_of(session, product(x), width, norm) for product, norm in pairs]

    def _normalized(self) -> Iterator[tuple[Linear, Norm | None]]:
        """The products for queries, keys and values, with what normalizes each one's result."""
        return zip(self.products, (*(self.norms or (None, None)), None), strict=True)


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
    """Phi-3's and GLM's: one product for the gate and what it scales."""

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


_AnyAttention = _Attention | _FusedAttention | EarlierAttention | LatentAttention | Llama4Attention | SinkAttention
_AnyInner = PlainInner | GatedInner | _FusedInner | SparseInner | GroupedInner | DenseMixture | LoopedMixture
