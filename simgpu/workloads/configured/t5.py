"""T5 as transformers 4.51 builds it: an encoder and a decoder with relative positions, whose attention is eager."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.configured.encoder_decoder import EncoderDecoder
from simgpu.workloads.configured.parts import Build, Linear, activated, heads_of
from simgpu.workloads.eager.normalization import softmax
from simgpu.workloads.eager.pointwise import (
    add,
    add_in_place,
    add_number,
    cast,
    dropout,
    elementwise,
    mean,
    mul,
    power,
    rsqrt,
    scale,
)
from simgpu.workloads.eager.products import batched_product, embedding
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import contiguous, reshape, sliced_rows, transpose, unsqueeze


class T5Model:
    """The weights of the model, created in the order of transformers' modules; calling it computes the logits."""

    def __init__(self, build: Build, sizes: EncoderDecoder) -> None:
        decoder = sizes.decoder
        self.build = build
        with build.session.layer("shared"):
            self.table = build.weight("weight", decoder.vocabulary, decoder.width)
        self.encoder = _Stack.create(build, sizes, "encoder", sizes.encoder_layers)
        self.decoder = _Stack.create(build, sizes, "decoder", decoder.layers)
        if decoder.tied:
            self.head = Linear(build, "lm_head", self.table)
        else:
            self.head = Linear.create(build, "lm_head", decoder.width, decoder.vocabulary, bias=False)

    def __call__(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The logits, (batch, target tokens, vocabulary), the encoder's result, and what variables hold up to the loss.

        The last are the decoder's result and, with a shared table, what it is scaled to.
        """
        session = self.build.session
        encoded = self.encoder(self._embedded(tokens), None)
        decoded = [self.decoder(self._embedded(self._shifted(labels)), encoded)]
        if self.build.decoder.tied:
            decoded.append(scale(session, decoded[0]))
        return self.head(decoded[-1]), encoded, decoded

    def _embedded(self, tokens: Tensor) -> Tensor:
        with self.build.session.layer("shared"):
            return embedding(self.build.session, tokens, self.table)

    def _shifted(self, labels: Tensor) -> Tensor:
        """``_shift_right``: the decoder reads the labels after a first token."""
        session, (batch, length) = self.build.session, labels.shape
        with session.layer("shift_right"):
            (shifted,) = session.run("new_zeros", (), ((labels.shape, labels.dtype),))
            rest = labels.seen((batch, length - 1), labels.strides)
            (copied,) = session.run("clone", (rest,), ((rest.shape, rest.dtype),))
            session.run_in_place("copy_", shifted.seen(rest.shape, labels.strides), (copied,))
            session.run_in_place("fill_", shifted.seen((batch,), labels.strides[:1]))
            ignored = elementwise(session, "eq", shifted, dtype="bool")
            session.run_in_place("masked_fill_", shifted, (ignored,))
        return shifted


@dataclass(frozen=True, slots=True)
class _Norm:
    """``T5LayerNorm``: the mean square is computed in float32, then the value itself is scaled."""

    build: Build
    name: str
    weight: Tensor

    @classmethod
    def create(cls, build: Build, name: str) -> _Norm:
        with build.session.layer(name):
            return cls(build, name, build.weight("weight", build.decoder.width))

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            variance = mean(session, power(session, cast(session, x, "float32")))
            normal = mul(session, x, rsqrt(session, add_number(session, variance)))
            return mul(session, self.weight, cast(session, normal, x.dtype))


@dataclass(frozen=True, slots=True)
class _Stack:
    """The encoder or the decoder. Its layers share the bias of their positions, which the first one computes."""

    build: Build
    name: str
    blocks: tuple[_Block, ...]
    norm: _Norm

    @classmethod
    def create(cls, build: Build, sizes: EncoderDecoder, name: str, layers: int) -> _Stack:
        with build.session.layer(name):
            blocks = tuple(_Block.create(build, sizes, number, name == "decoder") for number in range(layers))
            return cls(build, name, blocks, _Norm.create(build, "final_layer_norm"))

    def __call__(self, x: Tensor, encoded: Tensor | None) -> Tensor:
        session, (batch, length, _) = self.build.session, x.shape
        with session.layer(self.name):
            (positions,) = session.run("arange", (), (((length,), "int64"),))
            (ones,) = session.run("ones", (), (((batch, length), "float32"),))
            if encoded is None:
                mask, of_encoded = self._inverted(ones), None
            else:
                mask = self._causal(ones, positions)
                (ones,) = session.run("ones", (), ((encoded.shape[:2], "int64"),))
                of_encoded = self._inverted(ones)
            x = self._dropped(x)
            bias = cross_bias = None
            for block in self.blocks:
                x, bias, cross_bias = block(x, encoded, positions, (mask, of_encoded), (bias, cross_bias))
            return self._dropped(self.norm(x))

    def _dropped(self, x: Tensor) -> Tensor:
        with self.build.session.layer("dropout"):
            return dropout(self.build.session, x, self.build.decoder.dropout)

    def _inverted(self, ones: Tensor) -> Tensor:
        """A mask (batch, 1, 1, tokens) that is added to scores; hides nothing here."""
        session, (batch, length) = self.build.session, ones.shape
        mask = cast(session, ones.seen((batch, 1, 1, length)), self.build.dtype)
        return elementwise(session, "mul", elementwise(session, "rsub", mask))

    def _causal(self, ones: Tensor, positions: Tensor) -> Tensor:
        """A mask (batch, 1, tokens, tokens) that hides later tokens; then padding is hidden, of which there is none."""
        session, (batch, length) = self.build.session, ones.shape
        (mask,) = session.run("full", (), (((length, length), self.build.dtype),))
        if length > 1:
            mask = elementwise(session, "triu", mask)
        (columns,) = session.run("arange", (), (((length,), "int64"),))
        hidden = elementwise(session, "gt", columns, positions.seen((length, 1)), dtype="bool")
        session.run_in_place("mul_", mask, (hidden,))
        shape = (batch, 1, length, length)
        (whole,) = session.run("clone", (mask.seen(shape, (0, 0, length, 1)),), ((shape, mask.dtype),))
        padding = elementwise(session, "add", whole, ones.seen((batch, 1, 1, length)))
        padding = elementwise(session, "eq", padding, dtype="bool")
        filled = elementwise(session, "masked_fill", whole, padding, dtype=mask.dtype)
        session.overwrite("copy_", whole, (filled,))
        return whole


#: A bias for the tokens of the same sequence, and one for those of the encoder.
_Biases = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class _Block:
    """Attention, in the decoder attention to the encoder's result, and the feed-forward part."""

    build: Build
    name: str
    attentions: tuple[_Attention, ...]
    inner: _Inner

    @classmethod
    def create(cls, build: Build, sizes: EncoderDecoder, number: int, has_cross: bool) -> _Block:
        name = f"block.{number}"
        with build.session.layer(name):
            buckets = 0 if number else sizes.buckets
            attentions = [_Attention.create(build, "layer.0", "SelfAttention", buckets, bidirectional=not has_cross)]
            if has_cross:
                attentions.append(_Attention.create(build, "layer.1", "EncDecAttention", 0, bidirectional=True))
            inner = _Inner.create(build, f"layer.{len(attentions)}", sizes.gated)
        return cls(build, name, tuple(attentions), inner)

    def __call__(
        self, x: Tensor, encoded: Tensor | None, positions: Tensor, masks: tuple[Tensor, Tensor | None], biases: _Biases
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        session, (bias, cross_bias), (mask, of_encoded) = self.build.session, biases, masks
        with session.layer(self.name):
            x, bias = self.attentions[0](x, None, positions, mask, bias)
            if encoded is not None:
                assert of_encoded is not None
                _real_length(self.build, positions)
                x, cross_bias = self.attentions[1](x, encoded, positions, of_encoded, cross_bias)
            return self.inner(x), bias, cross_bias


def _real_length(build: Build, positions: Tensor) -> None:
    """``cache_position[-1] + 1``, computed on the device although nothing reads it."""
    elementwise(build.session, "add", positions.seen(()))


@dataclass(frozen=True, slots=True)
class _Attention:
    """Normalization, attention by products, and the sum; a table of biases for distances in the first layer only."""

    build: Build
    names: tuple[str, str]
    products: tuple[Linear, Linear, Linear]
    output: Linear
    table: Tensor | None
    bidirectional: bool
    norm: _Norm

    @classmethod
    def create(cls, build: Build, layer: str, name: str, buckets: int, *, bidirectional: bool) -> _Attention:
        session, decoder = build.session, build.decoder
        width, joint = decoder.width, decoder.heads * decoder.head_width
        with session.layer(layer):
            with session.layer(name):
                query, key, value = (Linear.create(build, each, width, joint, bias=False) for each in "qkv")
                output = Linear.create(build, "o", joint, width, bias=False)
                table = None
                if buckets:
                    with session.layer("relative_attention_bias"):
                        table = build.weight("weight", buckets, decoder.heads)
            norm = _Norm.create(build, "layer_norm")
        return cls(build, (layer, name), (query, key, value), output, table, bidirectional, norm)

    def __call__(
        self, x: Tensor, encoded: Tensor | None, positions: Tensor, mask: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The sum, and the bias that was added to the scores, (batch, heads, tokens, keys)."""
        session, rate = self.build.session, self.build.decoder.dropout
        with session.layer(self.names[0]):
            normal = self.norm(x)
            with session.layer(self.names[1]):
                result, bias = self._attended(normal, encoded or normal, positions, mask, bias)
            with session.layer("dropout"):
                result = dropout(session, result, rate)
            return add(session, x, result), bias

    def _attended(
        self, x: Tensor, source: Tensor, positions: Tensor, mask: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        session, decoder = self.build.session, self.build.decoder
        query, key, value = (
            heads_of(session, product(each), decoder.head_width)
            for product, each in zip(self.products, (x, source, source), strict=True)
        )
        scores = batched_product(session, query, transpose(session, key, 2, 3))
        if bias is None:
            bias = add(session, self._bias(scores, positions), mask)
        scores = add_in_place(session, scores, bias)
        weights = softmax(session, cast(session, scores, "float32"))
        weights = dropout(session, cast(session, weights, scores.dtype), decoder.dropout)
        result = contiguous(session, transpose(session, batched_product(session, weights, value), 1, 2))
        return self.output(reshape(session, result, (*x.shape[:2], decoder.heads * decoder.head_width))), bias

    def _bias(self, scores: Tensor, positions: Tensor) -> Tensor:
        """(1, heads, tokens, keys): zeros, or the table's values for the distance of each pair of tokens."""
        session, (_, heads, length, keys) = self.build.session, scores.shape
        if self.table is None:
            (zeros,) = session.run("zeros", (), (((1, heads, length, keys), scores.dtype),))
            return zeros
        _real_length(self.build, positions)
        (columns,) = session.run("arange", (), (((keys,), "int64"),))
        distances = elementwise(session, "sub", columns.seen((1, keys)), positions.seen((length, 1)))
        buckets = self._buckets(distances)
        with session.layer("relative_attention_bias"):
            values = embedding(session, buckets, self.table)
        turned = transpose(session, transpose(session, values, 0, 2), 1, 2)
        return sliced_rows(session, unsqueeze(session, turned, 0))

    def _buckets(self, distances: Tensor) -> Tensor:
        """``_relative_position_bucket``: exact for small distances, then logarithmic; one kernel for each operation."""
        session, before = self.build.session, None
        if self.bidirectional:
            later = cast(session, elementwise(session, "gt", distances, dtype="bool"), "int64")
            before = elementwise(session, "add", elementwise(session, "mul", later))
            distances = elementwise(session, "abs", distances)
        else:
            (zeros,) = session.run("zeros_like", (), ((distances.shape, distances.dtype),))
            distances = elementwise(session, "neg", elementwise(session, "minimum", distances, zeros))
        is_small = elementwise(session, "lt", distances, dtype="bool")
        far = cast(session, distances, "float32")
        for op in ("div", "log", "div", "mul"):
            far = elementwise(session, op, far)
        far = elementwise(session, "add", cast(session, far, "int64"))
        (most,) = session.run("full_like", (), ((far.shape, far.dtype),))
        far = elementwise(session, "minimum", far, most)
        buckets = elementwise(session, "where", is_small, distances, far, dtype="int64")
        if before is None:
            return elementwise(session, "add", buckets)
        session.run_in_place("add_", before, (buckets,))
        return before


@dataclass(frozen=True, slots=True)
class _Inner:
    """Normalization, the feed-forward part, gated or not, and the sum."""

    build: Build
    name: str
    inputs: tuple[Linear, ...]
    output: Linear
    norm: _Norm

    @classmethod
    def create(cls, build: Build, name: str, gated: bool) -> _Inner:
        session, width, inner = build.session, build.decoder.width, build.decoder.inner
        with session.layer(name):
            with session.layer("DenseReluDense"):
                names = ("wi_0", "wi_1") if gated else ("wi",)
                inputs = tuple(Linear.create(build, each, width, inner, bias=False) for each in names)
                output = Linear.create(build, "wo", inner, width, bias=False)
            return cls(build, name, inputs, output, _Norm.create(build, "layer_norm"))

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            normal = self.norm(x)
            with session.layer("DenseReluDense"):
                result = activated(self.build, "act", self.inputs[0](normal))
                if len(self.inputs) > 1:
                    result = mul(session, result, self.inputs[1](normal))
                result = self.output(cast(session, self._dropped(result), self.output.weight.dtype))
            return add(session, x, self._dropped(result))

    def _dropped(self, x: Tensor) -> Tensor:
        with self.build.session.layer("dropout"):
            return dropout(self.build.session, x, self.build.decoder.dropout)
