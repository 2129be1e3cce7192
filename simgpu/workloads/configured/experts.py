"""Feed-forward parts: plain ones, gated ones, and mixtures of these between which a router chooses, as in transformers
4.51.

The modules call each expert with the tokens that the router chose for it, one expert after another. Their numbers
depend on the values at run time. Here the router balances them: each expert receives tokens x chosen / experts, and the
remainder is given to the first experts, one each. The bytes that autograd saves depend on the sum only, so they are
exact for any routing; the sizes of products and temporaries are those of balanced routing.
"""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.configured.decoder import Experts
from simgpu.workloads.configured.parts import Build, Linear, activated
from simgpu.workloads.eager.normalization import softmax
from simgpu.workloads.eager.pointwise import add, cast, mul, sigmoid
from simgpu.workloads.eager.routing import add_rows, divided_by_sum, largest, one_hot, taken, taken_values, where_chosen
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import reshape

#: What a trace's notes say of a mixture of experts.
ROUTING_NOTE = (
    " Every expert receives an equal number of tokens (balanced routing); a real router's products and temporaries "
    "differ in size. PyTorch waits for the number of each expert's tokens; durations do not include this wait."
)


@dataclass(frozen=True, slots=True)
class PlainInner:
    """Two products with an activation between them. act: name of its module."""

    build: Build
    act: str
    up: Linear
    down: Linear

    @classmethod
    def create(cls, build: Build, up: str, down: str, act: str) -> PlainInner:
        """Creates the weights of the products of these names."""
        width, inner, bias = build.decoder.width, build.decoder.inner, build.decoder.inner_bias
        with build.session.layer("mlp"):
            first = Linear.create(build, up, width, inner, bias)
            return cls(build, act, first, Linear.create(build, down, inner, width, bias))

    def __call__(self, x: Tensor) -> Tensor:
        with self.build.session.layer("mlp"):
            return self.down(activated(self.build, self.act, self.up(x)))


@dataclass(frozen=True, slots=True)
class GatedInner:
    """The gated feed-forward part."""

    build: Build
    name: str
    gate: Linear
    up: Linear
    down: Linear

    @classmethod
    def create(cls, build: Build, name: str, inner: int) -> GatedInner:
        """Creates the weights of three products; inner: values between them."""
        width, bias = build.decoder.width, build.decoder.inner_bias
        with build.session.layer(name):
            if build.decoder.family == "mixtral":
                gate = Linear.create(build, "w1", width, inner, bias)
                down = Linear.create(build, "w2", inner, width, bias)
                return cls(build, name, gate, Linear.create(build, "w3", width, inner, bias), down)
            gate, up = (Linear.create(build, f"{each}_proj", width, inner, bias) for each in ("gate", "up"))
            return cls(build, name, gate, up, Linear.create(build, "down_proj", inner, width, bias))

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            name = "activation_fn" if self.build.decoder.family == "llama4_text" else "act_fn"
            gated = activated(self.build, name, self.gate(x))
            return self.down(mul(session, gated, self.up(x)))


@dataclass(frozen=True, slots=True)
class SparseInner:
    """A router and its experts; Qwen2-MoE adds one that all tokens pass, scaled by a gate."""

    build: Build
    name: str
    sizes: Experts
    router: Linear
    experts: tuple[GatedInner, ...]
    shared: tuple[GatedInner, Linear] | None

    @classmethod
    def create(cls, build: Build, sizes: Experts) -> SparseInner:
        """Creates the weights of router and experts."""
        name = "block_sparse_moe" if build.decoder.family == "mixtral" else "mlp"
        with build.session.layer(name):
            router = Linear.create(build, "gate", build.decoder.width, sizes.count, bias=False)
            experts = tuple(GatedInner.create(build, f"experts.{number}", sizes.inner) for number in range(sizes.count))
            shared = None
            if sizes.shared:
                inner = GatedInner.create(build, "shared_expert", sizes.shared)
                shared = inner, Linear.create(build, "shared_expert_gate", build.decoder.width, 1, bias=False)
        return cls(build, name, sizes, router, experts, shared)

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        batch, length, width = x.shape
        with session.layer(self.name):
            rows = reshape(session, x, (batch * length, width))
            result = self._routed(rows)
            if self.shared is not None:
                inner, gate = self.shared
                value = inner(rows)
                result = add(session, result, mul(session, sigmoid(session, gate(rows)), value))
            return reshape(session, result, x.shape)

    def _routed(self, x: Tensor) -> Tensor:
        """The sum of the chosen experts' results, each scaled by the router's weight, (tokens, width)."""
        session, tokens = self.build.session, x.shape[0]
        weights, places = largest(session, softmax(session, self.router(x), dtype="float32"), self.sizes.chosen)
        if self.sizes.normalized:
            weights = divided_by_sum(session, weights)
        weights = cast(session, weights, x.dtype)
        (total,) = session.run("zeros", (), ((x.shape, x.dtype),))
        mask = one_hot(session, places, self.sizes.count)
        for expert, count in zip(self.experts, self.sizes.rows(tokens), strict=True):
            choices, rows = where_chosen(session, mask, count)
            value = expert(reshape(session, taken(session, x, rows), (count, x.shape[1])))
            scaled = mul(session, value, taken_values(session, weights, rows, choices))
            total = add_rows(session, total, rows, scaled)
        return total
