"""What GPT-OSS's layers do in their own way, as transformers 4.55 builds them: attention with sinks, and a mixture
whose experts' weights are tensors of all experts, which are called one after another in training.

The matrices of an expert that has tokens are copied out of those tensors, and autograd saves the copies for backward.
There each copy's gradient is put into zeros of the size of all experts, and these are added up.
"""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.configured.decoder import Experts
from simgpu.workloads.configured.parts import Build, Linear, heads_of, joined_heads, repeated
from simgpu.workloads.configured.places import Places
from simgpu.workloads.configured.rotary import turned
from simgpu.workloads.eager.normalization import softmax
from simgpu.workloads.eager.pointwise import (
    add,
    add_number,
    cast,
    cat,
    dropout,
    elementwise,
    limited,
    mul,
    scale,
    sigmoid,
    sub,
)
from simgpu.workloads.eager.products import batched_product, bmm, linear, matrix_by_batch
from simgpu.workloads.eager.routing import add_rows, indexed, largest, one_hot, put, where_chosen
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import alternating, expand, only_one, reshape, sliced, transpose, unsqueeze


@dataclass(frozen=True, slots=True)
class SinkAttention:
    """Separate products for queries, keys and values. sinks: of each head, the score of no token, which its softmax
    includes."""

    build: Build
    sinks: Tensor
    products: tuple[Linear, Linear, Linear]
    output: Linear

    @classmethod
    def create(cls, build: Build) -> SinkAttention:
        """Creates the weights."""
        decoder = build.decoder
        queries, keys = decoder.heads * decoder.head_width, decoder.key_heads * decoder.head_width
        with build.session.layer("self_attn"):
            sinks = build.weight("sinks", decoder.heads)
            query, key, value = (
                Linear.create(build, f"{name}_proj", decoder.width, width, decoder.query_bias)
                for name, width in (("q", queries), ("k", keys), ("v", keys))
            )
            output = Linear.create(build, "o_proj", queries, decoder.width, decoder.output_bias)
        return cls(build, sinks, (query, key, value), output)

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session, decoder = self.build.session, self.build.decoder
        with session.layer("self_attn"):
            query, key, value = (heads_of(session, each(x), decoder.head_width) for each in self.products)
            query, key = turned(self.build, query, key, places)
            key, value = (repeated(session, each, decoder.groups) for each in (key, value))
            scores = scale(session, batched_product(session, query, transpose(session, key, 2, 3)))
            assert places.mask is not None
            shares = self._shares(add(session, scores, places.mask))
            weights = dropout(session, shares, decoder.attention_dropout)
            return self.output(joined_heads(session, batched_product(session, weights, value)))

    def _shares(self, scores: Tensor) -> Tensor:
        """The softmax of scores and the sink, less their largest, without what the sink gets."""
        session, (batch, heads, tokens, keys) = self.build.session, scores.shape
        sinks = expand(session, reshape(session, self.sinks, (1, heads, 1, 1)), (batch, heads, tokens, 1))
        scores = cat(session, (scores, sinks))
        scores = sub(session, scores, largest(session, scores, 1, "max")[0])
        return sliced(session, softmax(session, scores), 0, keys)


@dataclass(frozen=True, slots=True)
class LoopedMixture:
    """A router and its experts. router, up, down: matrices and biases; those of all experts together."""

    build: Build
    sizes: Experts
    router: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]

    @classmethod
    def create(cls, build: Build, sizes: Experts) -> LoopedMixture:
        """Creates the weights."""
        width, count, inner = build.decoder.width, sizes.count, sizes.inner
        with build.session.layer("mlp"):
            with build.session.layer("router"):
                router = build.weight("weight", count, width), build.weight("bias", count)
            with build.session.layer("experts"):
                up = build.weight("gate_up_proj", count, width, 2 * inner)
                of_up = build.weight("gate_up_proj_bias", count, 2 * inner)
                down = build.weight("down_proj", count, inner, width)
                of_down = build.weight("down_proj_bias", count, width)
        return cls(build, sizes, router, (up, of_up), (down, of_down))

    def __call__(self, x: Tensor) -> Tensor:
        session, shape = self.build.session, (x.shape[0] * x.shape[1], x.shape[2])
        with session.layer("mlp"):
            with session.layer("router"):
                scores, places = self._scores(reshape(session, x, shape))
            with session.layer("experts"):
                result = self._routed(reshape(session, x, shape), scores, places)
                return reshape(session, result, x.shape)

    def _scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weight of each expert for each row, (rows, experts), 0 for others than the chosen; and the numbers of
        these, (rows, chosen)."""
        session = self.build.session
        logits = linear(session, x, *self.router)
        values, places = largest(session, logits, self.sizes.chosen)
        shares = softmax(session, values)
        (zeros,) = session.run("zeros_like", (), ((logits.shape, logits.dtype),))
        return put(session, zeros, places, shares), places

    def _routed(self, x: Tensor, scores: Tensor, places: Tensor) -> Tensor:
        """The sum of the chosen experts' results, each scaled by the router's weight, (rows, width).

        PyTorch waits for the number of each expert that has rows, and for that of its rows.
        """
        session, (rows, width), count = self.build.session, x.shape, self.sizes.count
        (total,) = session.run("zeros_like", (), ((x.shape, x.dtype),))
        mask = one_hot(session, places, count)
        (sums,) = session.run("sum", (mask,), (((count,), "int64"),))
        has_rows = elementwise(session, "gt", sums, dtype="bool")
        (numbers,) = session.run("nonzero", (has_rows,), (((count, 1), "int64"),))
        for place, size in enumerate(self.sizes.rows(rows)):
            number = numbers.part(0, place, 1).seen((1,))
            session.run("_local_scalar_dense", (number,), ())
            _, chosen = where_chosen(session, mask, size)
            value = only_one(session, self._expert(indexed(session, x, (chosen,), (size, width)), number))
            factor = indexed(session, unsqueeze(session, scores, 2), (chosen, number), (size, 1))
            scaled = cast(session, mul(session, value, factor), x.dtype)
            total = add_rows(session, total, chosen, scaled)
        return total

    def _expert(self, x: Tensor, number: Tensor) -> Tensor:
        """The result of one expert for its rows, (1, rows, width)."""
        session = self.build.session
        both = matrix_by_batch(session, x, self._of(self.up[0], number))
        gate, up = alternating(session, add(session, both, self._of(self.up[1], number)))
        gate = limited(session, gate, "le")
        up = limited(session, up, "ge", "le")
        gated = mul(session, gate, sigmoid(session, scale(session, gate)))
        value = bmm(session, mul(session, add_number(session, up), gated), self._of(self.down[0], number))
        return add(session, value, self._of(self.down[1], number))

    def _of(self, weights: Tensor, number: Tensor) -> Tensor:
        """A copy of one expert's part of the weights of all, with a first dimension of 1."""
        return indexed(self.build.session, weights, (number,), (1, *weights.shape[1:]))
