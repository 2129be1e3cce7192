"""What Llama 4's layers do in their own way, as transformers 4.51 builds them: rotation by complex numbers,
normalization without weights, and a mixture whose experts all multiply all tokens.

Complex numbers are pairs of float32 here, which take the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.decoder import Experts
from simgpu.workloads.configured.experts import GatedInner
from simgpu.workloads.configured.parts import Build, Linear, activated, attended, separated
from simgpu.workloads.configured.places import Places
from simgpu.workloads.eager.pointwise import (
    add_number,
    cast,
    clone,
    elementwise,
    mean,
    mul,
    only,
    power,
    rsqrt,
    sigmoid,
)
from simgpu.workloads.eager.products import bmm, product
from simgpu.workloads.eager.routing import gathered_rows, largest, put, put_rows
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import contiguous, reshape, split, transpose

#: What a trace's notes say of this mixture.
ALL_TOKENS_NOTE = " Each expert multiplies all tokens, scaled by zero where another one is chosen, as the modules do."


def complex_angles(build: Build, positions: Tensor) -> Tensor:
    """Cosines and sines as complex numbers, (1, tokens, 1, rotary width), computed in every iteration."""
    session, half = build.session, build.decoder.rotary_width // 2
    with session.layer("rotary_emb"):
        frequencies = session.constant(f"{session.tape.layer}.inv_freq", (1, half, 1), "float32", BlockKind.OTHER)
        tokens = positions.shape[1]
        turned = product(session, "bmm", frequencies, cast(session, positions.seen((1, 1, tokens)), "float32"))
        (ones,) = session.run("ones_like", (), ((turned.shape, "float32"),))
        (unscaled,) = session.run("polar", (ones, turned), (((1, tokens, 1, 2 * half), "float32"),))
        session.keep((ones, turned))
        return elementwise(session, "mul", unscaled)


def _rotated(session: Session, x: Tensor, angles: Tensor) -> Tensor:
    """The complex product of heads, (batch, tokens, heads, width) in float32.

    Backward copies a gradient that is not contiguous, and the conjugate angles.
    """
    rotated = elementwise(session, "mul", x, angles)

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        return (elementwise(session, "mul", only(grads), clone(session, angles)),)

    session.record((rotated,), (x,), backward, (angles,))
    result = rotated.seen(rotated.shape, rotated.strides)
    session.record((result,), (rotated,), lambda grads: (contiguous(session, only(grads)),))
    return result


def _normal(session: Session, x: Tensor) -> Tensor:
    """Values divided by their root mean square in float32."""
    with session.layer("qk_norm"):
        wide = cast(session, x, "float32")
        variance = mean(session, power(session, wide))
        return cast(session, mul(session, wide, rsqrt(session, add_number(session, variance))), x.dtype)


@dataclass(frozen=True, slots=True)
class Llama4Attention:
    """rotates: whether queries and keys are rotated and normalized; else queries grow with their position."""

    build: Build
    products: tuple[Linear, Linear, Linear]
    output: Linear
    rotates: bool

    @classmethod
    def create(cls, build: Build, *, rotates: bool) -> Llama4Attention:
        """Creates the weights."""
        decoder = build.decoder
        queries, keys = decoder.heads * decoder.head_width, decoder.key_heads * decoder.head_width
        with build.session.layer("self_attn"):
            query, key, value = (
                Linear.create(build, f"{name}_proj", decoder.width, width, bias=False)
                for name, width in (("q", queries), ("k", keys), ("v", keys))
            )
            output = Linear.create(build, "o_proj", queries, decoder.width, bias=False)
        return cls(build, (query, key, value), output, rotates)

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session, decoder = self.build.session, self.build.decoder
        with session.layer("self_attn"):
            query, key, value = (separated(session, each(x), decoder.head_width) for each in self.products)
            value = transpose(session, value, 1, 2)
            if self.rotates:
                query, key = self._turned(query, key, places)
            elif decoder.tempered:
                assert places.positions is not None
                query = cast(session, mul(session, query, self._growth(x, places.positions)), query.dtype)
            query, key = (transpose(session, each, 1, 2) for each in (query, key))
            return self.output(attended(self.build, query, key, value, places._replace(positions=None)))

    def _turned(self, query: Tensor, key: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        session, (angles,) = self.build.session, places.angles
        wide = [cast(session, each, "float32") for each in (query, key)]
        first, second = (_rotated(session, each, angles) for each in wide)
        query, key = cast(session, first, query.dtype), cast(session, second, key.dtype)
        if self.build.decoder.head_norms is None:
            return query, key
        return _normal(session, query), _normal(session, key)

    def _growth(self, x: Tensor, positions: Tensor) -> Tensor:
        """By what queries are multiplied, (batch, tokens, 1, 1): from the logarithm of their position."""
        session = self.build.session
        value = cast(session, positions, "float32")
        for op in ("add", "div", "floor", "add", "log", "mul", "add"):
            value = elementwise(session, op, value)
        return value.seen((*x.shape[:2], 1, 1), (0, 1, 1, 1))


@dataclass(frozen=True, slots=True)
class DenseMixture:
    """A router, experts whose weights are two tensors, and one expert that all tokens pass."""

    build: Build
    sizes: Experts
    up: Tensor
    down: Tensor
    router: Linear
    shared: GatedInner

    @classmethod
    def create(cls, build: Build, sizes: Experts) -> DenseMixture:
        """Creates the weights."""
        width, inner = build.decoder.width, sizes.inner
        with build.session.layer("feed_forward"):
            with build.session.layer("experts"):
                up = build.weight("gate_up_proj", sizes.count, width, 2 * inner)
                down = build.weight("down_proj", sizes.count, inner, width)
            router = Linear.create(build, "router", width, sizes.count, bias=False)
            return cls(build, sizes, up, down, router, GatedInner.create(build, "shared_expert", inner))

    def __call__(self, x: Tensor) -> Tensor:
        session, (batch, length, width) = self.build.session, x.shape
        tokens, count = batch * length, self.sizes.count
        with session.layer("feed_forward"):
            rows = reshape(session, x, (tokens, width))
            scores, places = self._scores(rows, tokens)
            repeated = gathered_rows(session, rows, places, count * tokens)
            factors = reshape(session, scores, (count * tokens, 1))
            routed = self._experts(reshape(session, mul(session, repeated, factors), (count, tokens, width)))
            shared = self.shared(rows)
            result = put_rows(session, shared, places, reshape(session, routed, (count * tokens, width)))
        return reshape(session, result, x.shape)

    def _scores(self, rows: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """The weight of each expert for each token, (experts, tokens); and the number of each expert's row."""
        session, count = self.build.session, self.sizes.count
        logits = self.router(rows)
        values, chosen = largest(session, logits, self.sizes.chosen)
        (least,) = session.run("full_like", (), ((logits.shape, logits.dtype),))
        scores = transpose(session, put(session, least, chosen, values), 0, 1)
        (numbers,) = session.run("arange", (), (((tokens,), "int64"),))
        scores = cast(session, sigmoid(session, cast(session, scores, "float32")), rows.dtype)
        places = clone(session, numbers.seen((count, tokens), (0, 1)))
        session.keep((numbers,))
        return scores, places

    def _experts(self, x: Tensor) -> Tensor:
        session, inner = self.build.session, self.sizes.inner
        with session.layer("experts"):
            gate, up = split(session, bmm(session, x, self.up), (inner, inner))
            return bmm(session, mul(session, up, activated(self.build, "act_fn", gate)), self.down)
