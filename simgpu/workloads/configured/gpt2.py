"""GPT-2 as transformers 4.51 builds it: trained positions, weights stored transposed, dropout."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.parts import (
    Build,
    LayerNorm,
    Linear,
    activated,
    attended,
    heads_of,
    joined_heads,
    token_positions,
)
from simgpu.workloads.configured.places import Places
from simgpu.workloads.eager.normalization import softmax
from simgpu.workloads.eager.pointwise import add, cast, divided, dropout, masked, widened
from simgpu.workloads.eager.products import batched_product, embedding, transposed_linear
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import split, transpose


class Gpt2Model:
    """The weights of the model, created in the order of transformers' modules."""

    def __init__(self, build: Build) -> None:
        decoder, session = build.decoder, build.session
        self.build = build
        with session.layer("transformer"):
            with session.layer("wte"):
                self.table = build.weight("weight", decoder.vocabulary, decoder.width)
            with session.layer("wpe"):
                self.positions = build.weight("weight", decoder.positions, decoder.width)
            self.layers = [_Layer.create(build, number) for number in range(decoder.layers)]
            self.norm = LayerNorm.create(build, "ln_f", decoder.width)
        if decoder.tied:
            self.head = Linear(build, "lm_head", self.table)
        else:
            self.head = Linear.create(build, "lm_head", decoder.width, decoder.vocabulary, bias=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the output layer reads, (batch, tokens, width)."""
        session, length = self.build.session, tokens.shape[1]
        with session.layer("transformer"):
            places = token_positions(self.build, length)
            with session.layer("wte"):
                words = embedding(session, tokens, self.table)
            with session.layer("wpe"):
                positions = embedding(session, places, self.positions)
            x = add(session, words, positions)
            with session.layer("drop"):
                x = dropout(session, x, self.build.decoder.embedding_dropout)
            for layer in self.layers:
                x = layer(x)
            return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer's results."""
        return self.head(hidden)


@dataclass(frozen=True, slots=True)
class _Conv1D:
    """A linear layer whose weight is (inputs, outputs)."""

    build: Build
    name: str
    weight: Tensor
    bias: Tensor

    @classmethod
    def create(cls, build: Build, name: str, inputs: int, outputs: int) -> _Conv1D:
        with build.session.layer(name):
            return cls(build, name, build.weight("weight", inputs, outputs), build.weight("bias", outputs))

    def __call__(self, x: Tensor) -> Tensor:
        with self.build.session.layer(self.name):
            return transposed_linear(self.build.session, x, self.weight, self.bias)


def _create_mask(build: Build) -> Tensor:
    """Each layer keeps a causal mask of all positions, which fused attention does not read."""
    session, positions = build.session, build.decoder.positions
    path = session.tape.layer
    mask = session.constant(f"{path}.bias", (1, 1, positions, positions), "bool", BlockKind.OTHER)
    session.constant(f"{path}.masked_bias", (), build.dtype, BlockKind.OTHER)
    return mask


def _eager(build: Build, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """``eager_attention_forward`` of modeling_gpt2.py: scores divided by a number on the GPU, masked by a choice."""
    session = build.session
    scores = batched_product(session, query, transpose(session, key, 2, 3))
    (root,) = session.run("full", (), (((), scores.dtype),))
    scores = divided(session, scores, root)
    (least,) = session.run("full", (), (((), scores.dtype),))
    part = mask.seen((1, 1, *scores.shape[2:]), mask.strides)
    scores = masked(session, part, scores, least)
    weights = cast(session, softmax(session, widened(session, scores)), value.dtype)
    weights = dropout(session, weights, build.decoder.attention_dropout)
    return batched_product(session, weights, value)


@dataclass(frozen=True, slots=True)
class _Layer:
    build: Build
    name: str
    norms: tuple[LayerNorm, LayerNorm]
    attention: tuple[_Conv1D, _Conv1D]
    mask: Tensor
    inner: tuple[_Conv1D, _Conv1D]

    @classmethod
    def create(cls, build: Build, number: int) -> _Layer:
        name, width, inner = f"h.{number}", build.decoder.width, build.decoder.inner
        with build.session.layer(name):
            first = LayerNorm.create(build, "ln_1", width)
            with build.session.layer("attn"):
                mask = _create_mask(build)
                attention = (
                    _Conv1D.create(build, "c_attn", width, 3 * width),
                    _Conv1D.create(build, "c_proj", width, width),
                )
            second = LayerNorm.create(build, "ln_2", width)
            with build.session.layer("mlp"):
                parts = _Conv1D.create(build, "c_fc", width, inner), _Conv1D.create(build, "c_proj", inner, width)
        return cls(build, name, (first, second), attention, mask, parts)

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        first, second = self.norms
        with session.layer(self.name):
            x = add(session, self._attended(first(x)), x)
            return add(session, x, self._inner(second(x)))

    def _attended(self, x: Tensor) -> Tensor:
        session, decoder = self.build.session, self.build.decoder
        joint, output = self.attention
        with session.layer("attn"):
            parts = split(session, joint(x), [decoder.width] * 3)
            query, key, value = (heads_of(session, part, decoder.head_width) for part in parts)
            if self.build.fused is None:
                result = output(joined_heads(session, _eager(self.build, query, key, value, self.mask)))
            else:
                result = output(attended(self.build, query, key, value, Places()))
            with session.layer("resid_dropout"):
                return dropout(session, result, decoder.dropout)

    def _inner(self, x: Tensor) -> Tensor:
        session = self.build.session
        up, down = self.inner
        with session.layer("mlp"):
            result = down(activated(self.build, "act", up(x)))
            with session.layer("dropout"):
                return dropout(session, result, self.build.decoder.dropout)
