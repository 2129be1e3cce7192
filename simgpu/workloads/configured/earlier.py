"""Attention of Qwen2-MoE and OLMoE, written before transformers had one function for the attention of all models."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.package_attention import package_attended
from simgpu.workloads.configured.parts import Build, Linear, RmsNorm, heads_of, repeated
from simgpu.workloads.configured.places import Places
from simgpu.workloads.configured.rotary import rotated
from simgpu.workloads.eager.attention import attention
from simgpu.workloads.eager.normalization import softmax
from simgpu.workloads.eager.pointwise import add, cast, dropout, scale
from simgpu.workloads.eager.products import batched_product
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import contiguous, reshape, transpose, unsqueeze

#: Families whose attention has this form.
EARLIER = frozenset(("qwen2_moe", "olmoe"))


@dataclass(frozen=True, slots=True)
class EarlierAttention:
    """Separate products for queries, keys and values; OLMoE normalizes all queries and all keys of a token."""

    build: Build
    products: tuple[Linear, Linear, Linear]
    output: Linear
    norms: tuple[RmsNorm, RmsNorm] | None

    @classmethod
    def create(cls, build: Build) -> EarlierAttention:
        """Creates the weights, and for Qwen2-MoE a table of frequencies that no kernel reads."""
        decoder, session = build.decoder, build.session
        widths = (decoder.width, *[decoder.key_heads * decoder.head_width] * 2)
        with session.layer("self_attn"):
            query, key, value = (
                Linear.create(build, f"{name}_proj", decoder.width, width, decoder.query_bias)
                for name, width in zip("qkv", widths, strict=True)
            )
            output = Linear.create(build, "o_proj", decoder.width, decoder.width, decoder.output_bias)
            norms = None
            if decoder.family == "olmoe":
                norms = RmsNorm.create(build, "q_norm", widths[0]), RmsNorm.create(build, "k_norm", widths[1])
            else:
                name = f"{session.tape.layer}.rotary_emb.inv_freq"
                session.constant(name, (decoder.rotary_width // 2,), "float32", BlockKind.OTHER)
        return cls(build, (query, key, value), output, norms)

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session = self.build.session
        with session.layer("self_attn"):
            query, key, value = self._heads(x)
            cosines, sines = (unsqueeze(session, each, 1) for each in places.angles)
            query, key = (rotated(session, each, cosines, sines) for each in (query, key))
            if not self.build.of_package or self.norms is None:  # Qwen2-MoE repeats them for the package too
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
        weights = softmax(session, add(session, scores, mask), dtype="float32")
        weights = dropout(session, cast(session, weights, query.dtype), rate)
        return batched_product(session, weights, value)
