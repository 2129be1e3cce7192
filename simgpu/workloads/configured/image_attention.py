"""`Attention` of image patches or pixels as diffusers runs it, in DiT and in U-Nets.

By default it is fused (``AttnProcessor2_0``); else products and softmax run one after another (``AttnProcessor``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from simgpu.workloads.configured.parts import Linear, Weights, heads_of
from simgpu.workloads.eager.attention import attention
from simgpu.workloads.eager.normalization import softmax
from simgpu.workloads.eager.pointwise import cast, dropout, scale
from simgpu.workloads.eager.products import bmm, scaled_bmm
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import reshape, transpose


class Heads(NamedTuple):
    """Width of each head. fused: the operator for it, a result of `simgpu.workloads.eager.attention.fused_kernel`; None
    for products and softmax. upcast: whether these are in float32 outside autocast."""

    width: int
    fused: str | None
    upcast: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of all tokens to all tokens of a source; the result is divided by one."""

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
        session, held = self.build.session, list[Tensor]()
        with session.layer(self.name):
            inputs = zip(self.products, (x, source, source), strict=True)
            products = [product(each) for product, each in inputs]
            query, key, value = (heads_of(session, each, self.heads.width) for each in products)
            if self.heads.fused is not None:
                result = attention(session, self.heads.fused, query, key, value, 0.0, causal=False)
            else:
                result, held = self._scored(query, key, value)
            result = transpose(session, result, 1, 2)
            result = self.output(reshape(session, result, x.shape))
            with session.layer("to_out.1"):
                result = dropout(session, result, rate)
            result = scale(session, result, "div")
            session.keep(held)
            return result

    def _scored(self, *heads: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Products and softmax; also what variables hold until the module returns. heads: as of `heads_of`."""
        session, shape = self.build.session, heads[0].shape
        query, key, value = (reshape(session, x, (prod(x.shape[:2]), *x.shape[2:])) for x in heads)
        factors = [cast(session, x, "float32") if self.heads.upcast else x for x in (query, key)]
        scores = scaled_bmm(session, factors[0], transpose(session, factors[1], 1, 2))
        shares = softmax(session, scores, dtype=None if session.autocast is None else "float32")
        session.keep(factors)
        shares = cast(session, shares, query.dtype)
        return reshape(session, bmm(session, shares, value), shape), [query, key, value, shares]
