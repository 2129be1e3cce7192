"""GPT-NeoX and Phi as transformers 4.51 builds them: layer normalization, biases, part of each head rotated."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.configured.experts import PlainInner
from simgpu.workloads.configured.parts import (
    Build,
    LayerNorm,
    Linear,
    attended,
    causal_mask,
    heads_of,
    token_positions,
)
from simgpu.workloads.configured.places import Places
from simgpu.workloads.configured.rotary import partly_rotated, places_of
from simgpu.workloads.eager.pointwise import add, dropout
from simgpu.workloads.eager.products import embedding
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import split, unsqueeze


@dataclass(frozen=True, slots=True)
class _Names:
    """What the two families call their modules."""

    model: str
    table: str
    dropout: str
    final: str
    head: str
    attention: str
    up: str
    down: str
    act: str


_NEOX = _Names(
    model="gpt_neox",
    table="embed_in",
    dropout="emb_dropout",
    final="final_layer_norm",
    head="embed_out",
    attention="attention",
    up="dense_h_to_4h",
    down="dense_4h_to_h",
    act="act",
)
_PHI = _Names(
    model="model",
    table="embed_tokens",
    dropout="embed_dropout",
    final="final_layernorm",
    head="lm_head",
    attention="self_attn",
    up="fc1",
    down="fc2",
    act="activation_fn",
)


def _inner(build: Build, names: _Names) -> PlainInner:
    return PlainInner.create(build, names.up, names.down, names.act)


class NeoxModel:
    """The weights of the model, created in the order of transformers' modules."""

    def __init__(self, build: Build) -> None:
        decoder, session = build.decoder, build.session
        self.build, self.names = build, _PHI if decoder.family == "phi" else _NEOX
        create = _PhiLayer.create if decoder.family == "phi" else _NeoxLayer.create
        with session.layer(self.names.model):
            with session.layer(self.names.table):
                self.table = build.weight("weight", decoder.vocabulary, decoder.width)
            self.layers = [create(build, number) for number in range(decoder.layers)]
            self.norm = LayerNorm.create(build, self.names.final, decoder.width)
        self.head = self._head()

    def _head(self) -> Linear:
        """The output layer; Phi's has a bias."""
        build, decoder, name = self.build, self.build.decoder, self.names.head
        has_bias = decoder.family == "phi"
        if not decoder.tied:
            return Linear.create(build, name, decoder.width, decoder.vocabulary, has_bias)
        with build.session.layer(name):
            return Linear(build, name, self.table, build.weight("bias", decoder.vocabulary) if has_bias else None)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the output layer reads, (batch, tokens, width)."""
        session, names = self.build.session, self.names
        with session.layer(names.model):
            with session.layer(names.table):
                x = embedding(session, tokens, self.table)
            positions = token_positions(self.build, tokens.shape[1])
            mask = causal_mask(self.build, tokens.shape[0], positions)
            with session.layer(names.dropout):
                x = dropout(session, x, self.build.decoder.embedding_dropout)
            places = places_of(self.build, mask, positions)
            for layer in self.layers:
                x = layer(x, places)
            return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer's results."""
        return self.head(hidden)


@dataclass(frozen=True, slots=True)
class _NeoxLayer:
    build: Build
    name: str
    norms: tuple[LayerNorm, LayerNorm]
    joint: Linear
    dense: Linear
    inner: PlainInner

    @classmethod
    def create(cls, build: Build, number: int) -> _NeoxLayer:
        name, width, decoder = f"layers.{number}", build.decoder.width, build.decoder
        with build.session.layer(name):
            first, second = (
                LayerNorm.create(build, f"{place}_layernorm", width) for place in ("input", "post_attention")
            )
            with build.session.layer(_NEOX.attention):
                joint = Linear.create(build, "query_key_value", width, 3 * width, decoder.query_bias)
                dense = Linear.create(build, "dense", width, width, decoder.output_bias)
            return cls(build, name, (first, second), joint, dense, _inner(build, _NEOX))

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session, decoder = self.build.session, self.build.decoder
        first, second = self.norms
        with session.layer(self.name):
            branch = self._dropped("post_attention_dropout", self._attended(first(x), places))
            if decoder.parallel:
                inner = self._dropped("post_mlp_dropout", self.inner(second(x)))
                return add(session, add(session, inner, branch), x)
            x = add(session, branch, x)
            return add(session, self._dropped("post_mlp_dropout", self.inner(second(x))), x)

    def _dropped(self, name: str, x: Tensor) -> Tensor:
        with self.build.session.layer(name):
            return dropout(self.build.session, x, self.build.decoder.dropout)

    def _attended(self, x: Tensor, places: Places) -> Tensor:
        session, decoder = self.build.session, self.build.decoder
        with session.layer(_NEOX.attention):
            joint = heads_of(session, self.joint(x), 3 * decoder.head_width)
            query, key, value = split(session, joint, [decoder.head_width] * 3)
            cosines, sines = (unsqueeze(session, each, 1) for each in places.angles)
            query, key = partly_rotated(self.build, (query, key), cosines, sines, together=True)
            return self.dense(attended(self.build, query, key, value, places))


@dataclass(frozen=True, slots=True)
class _PhiLayer:
    build: Build
    name: str
    products: tuple[Linear, Linear, Linear]
    dense: Linear
    inner: PlainInner
    norm: LayerNorm

    @classmethod
    def create(cls, build: Build, number: int) -> _PhiLayer:
        name, decoder = f"layers.{number}", build.decoder
        queries, keys = decoder.heads * decoder.head_width, decoder.key_heads * decoder.head_width
        with build.session.layer(name):
            with build.session.layer(_PHI.attention):
                query, key, value = (
                    Linear.create(build, f"{each}_proj", decoder.width, width, bias=True)
                    for each, width in zip("qkv", (queries, keys, keys), strict=True)
                )
                dense = Linear.create(build, "dense", queries, decoder.width, bias=True)
            inner = _inner(build, _PHI)
            return cls(
                build,
                name,
                (query, key, value),
                dense,
                inner,
                LayerNorm.create(build, "input_layernorm", decoder.width),
            )

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            normal = self.norm(x)
            branch = self._dropped(self._attended(normal, places))
            inner = self._dropped(self.inner(normal))
            return add(session, add(session, branch, inner), x)

    def _dropped(self, x: Tensor) -> Tensor:
        with self.build.session.layer("resid_dropout"):
            return dropout(self.build.session, x, self.build.decoder.dropout)

    def _attended(self, x: Tensor, places: Places) -> Tensor:
        session, decoder = self.build.session, self.build.decoder
        with session.layer(_PHI.attention):
            query, key, value = (heads_of(session, product(x), decoder.head_width) for product in self.products)
            cosines, sines = (unsqueeze(session, each, 1) for each in places.angles)
            query, key = partly_rotated(self.build, (query, key), cosines, sines, together=True)
            return self.dense(attended(self.build, query, key, value, places))
