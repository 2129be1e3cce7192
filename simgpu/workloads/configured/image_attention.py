"""`Attention` of image patches or pixels as diffusers runs it (``AttnProcessor2_0``), in DiT and in U-Nets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simgpu.workloads.configured.parts import Linear, Weights, heads_of
from simgpu.workloads.eager.attention import attention
from simgpu.workloads.eager.pointwise import dropout, scale
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import reshape, transpose


class Heads(NamedTuple):
    """Width of each head. fused: the operator for it, a result of `simgpu.workloads.eager.attention.fused_kernel`."""

    width: int
    fused: str


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention of all tokens to all tokens of a source; the result is divided by one."""

    build: Weights
    name: str
    heads: Heads
    products: tuple[Linear, Linear, Linear]
    output: Linear

    @classmethod
    def create(cls, build: Weights, name: str, widths: tuple[int, int], heads: Heads, *, bias: bool) -> Attention:
        """Creates the weights. widths: of the tokens and of the source. bias: of queries, keys and values."""
        width, source = widths
        with build.session.layer(name):
            query, key, value = (
                Linear.create(build, f"to_{each}", inputs, width, bias=bias)
                for each, inputs in (("q", width), ("k", source), ("v", source))
            )
            output = Linear.create(build, "to_out.0", width, width, bias=True)
        return cls(build, name, heads, (query, key, value), output)

    def __call__(self, x: Tensor, source: Tensor, rate: float = 0.0) -> Tensor:
        """x, source: (batch, tokens, width). rate: of the dropout of the result."""
        session = self.build.session
        with session.layer(self.name):
            inputs = zip(self.products, (x, source, source), strict=True)
            products = [product(each) for product, each in inputs]
            query, key, value = (heads_of(session, each, self.heads.width) for each in products)
            result = attention(session, self.heads.fused, query, key, value, 0.0, causal=False)
            result = transpose(session, result, 1, 2)
            result = self.output(reshape(session, result, x.shape))
            with session.layer("to_out.1"):
                result = dropout(session, result, rate)
            return scale(session, result, "div")
