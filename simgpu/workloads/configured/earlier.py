"""Attention of Qwen2-MoE, OLMoE and StableLM, from before transformers had one function for that of all models."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.package_attention import package_attended
from simgpu.workloads.configured.parts import Build, Linear, RmsNorm, heads_of, repeated
from simgpu.workloads.configured.places import Places
from simgpu.workloads.configured.rotary import partly_rotated, rotated
from simgpu.workloads.eager.attention import attention
from simgpu.workloads.eager.normalization import layer_norm, softmax
from simgpu.workloads.eager.pointwise import add, add_in_place, cast, cat, dropout, scale
from simgpu.workloads.eager.products import batched_product
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import contiguous, reshape, split, transpose, unsqueeze

#: Families whose attention has this form.
EARLIER = frozenset(("qwen2_moe", "olmoe", "stablelm"))


@dataclass(frozen=True, slots=True)
class _NormOfHeads:
    """Layer normalization without a bias, with a weight for each head, one head after another (StableLM 2)."""

    build: Build
    name: str
    weights: tuple[Tensor, ...]

    @classmethod
    def create(cls, build: Build, name: str, heads: int) -> _NormOfHeads:
        weights = []
        for number in range(heads):
            with build.session.layer(f"{name}.norms.{number}"):
                weights.append(build.weight("weight", build.decoder.head_width))
        return cls(build, name, tuple(weights))

    def __call__(self, x: Tensor) -> Tensor:
        """x: (batch, heads, tokens, width)."""
        session, normal = self.build.session, []
        for number, head in enumerate(split(session, x, [1] * len(self.weights), 1)):
            with session.layer(f"{self.name}.norms.{number}"):
                normal.append(layer_norm(session, head, self.weights[number]))
        return cat(session, normal, 1)


@dataclass(frozen=True, slots=True)
class EarlierAttention:
    """Separate products for queries, keys and values.

    norms: of all queries and all keys of a token (OLMoE). norms_of_heads: of each head (StableLM 2).
    """

    build: Build
    products: tuple[Linear, Linear, Linear]
    output: Linear
    norms: tuple[RmsNorm, RmsNorm] | None
    norms_of_heads: tuple[_NormOfHeads, _NormOfHeads] | None

    @classmethod
    def create(cls, build: Build) -> EarlierAttention:
        """Creates the weights, and but for OLMoE a table of frequencies that no kernel reads."""
        decoder, session = build.decoder, build.session
        widths = (decoder.width, *[decoder.key_heads * decoder.head_width] * 2)
        with session.layer("self_attn"):
            query, key, value = (
                Linear.create(build, f"{name}_proj", decoder.width, width, decoder.query_bias)
                for name, width in zip("qkv", widths, strict=True)
            )
            output = Linear.create(build, "o_proj", decoder.width, decoder.width, decoder.output_bias)
            norms = norms_of_heads = None
            if decoder.family == "stablelm" and decoder.head_norms is not None:
                counts = (("q", decoder.heads), ("k", decoder.key_heads))
                first, second = (_NormOfHeads.create(build, f"{name}_layernorm", count) for name, count in counts)
                norms_of_heads = first, second
            if decoder.family == "olmoe":
                norms = RmsNorm.create(build, "q_norm", widths[0]), RmsNorm.create(build, "k_norm", widths[1])
            else:
                name = f"{session.tape.layer}.rotary_emb.inv_freq"
                session.constant(name, (decoder.rotary_width // 2,), "float32", BlockKind.OTHER)
        return cls(build, (query, key, value), output, norms, norms_of_heads)

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session, family = self.build.session, self.build.decoder.family
        with session.layer("self_attn"):
            query, key, value = self._heads(x)
            if self.norms_of_heads is not None:
                query, key = (norm(each) for norm, each in zip(self.norms_of_heads, (query, key), strict=True))
            cosines, sines = (unsqueeze(session, each, 1) for each in places.angles)
            if family == "stablelm":
                query, key = partly_rotated(self.build, (query, key), cosines, sines, together=True)
            else:
                query, key = (rotated(session, each, cosines, sines) for each in (query, key))
            if not self.build.of_package or family == "qwen2_moe":  # which repeats them for the package too
                key, value = (repeated(session, each, self.build.decoder.groups) for each in (key, value))
            result = transpose(session, self._attended(query, key, value, places), 1, 2)
            return self.output(reshape(session, contiguous(session, result), x.shape))

    def _heads(self, x: Tensor) -> list[Tensor]:
        session, width = self.build.session, self.build.decoder.head_width
        products = [product(x) for product in self.products] if self.norms is None else self._normalized(x, self.norms)
        return [heads_of(session, each, width) for each in products]

    def _normalized(self, x: Tensor, norms: tuple[RmsNorm, RmsNorm]) -> list[Tensor]:
        query, key, value = self.products
        return [norms[0](query(x)), norms[1](key(x)), value(x)]

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, places: Places) -> Tensor:
        """(batch, heads, tokens, width). The operands of the fused operator are copied only if there is a mask."""
        session, rate, mask = self.build.session, self.build.decoder.attention_dropout, places.mask
        if self.build.of_package:  # OLMoE gives it no positions
            places = places if self.norms is None else places._replace(positions=None)
            return package_attended(session, query, key, value, rate, places)
        if self.build.fused is not None:
            if mask is not None:
                query, key, value = (contiguous(session, each) for each in (query, key, value))
            return attention(session, self.build.fused, query, key, value, rate, mask)
        assert mask is not None
        scores = scale(session, batched_product(session, query, transpose(session, key, 2, 3)), "div")
        added = add_in_place if self.build.decoder.family == "stablelm" else add
        weights = softmax(session, added(session, scores, mask), dtype="float32")
        weights = dropout(session, cast(session, weights, query.dtype), rate)
        return batched_product(session, weights, value)
