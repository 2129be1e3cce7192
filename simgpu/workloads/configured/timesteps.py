"""Embeddings of timesteps as diffusers computes them: sines and cosines, then two linear layers."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.configured.parts import Linear, Weights
from simgpu.workloads.eager.pointwise import activation, cast, cat, elementwise
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor


def waves(session: Session, numbers: Tensor, width: int, *, flipped: bool = True) -> Tensor:
    """``get_timestep_embedding``: (numbers, width) in float32, one kernel for each operation.

    width: even. flipped: whether the cosines are moved to the front.
    """
    count, half = numbers.count, width // 2
    (exponents,) = session.run("arange", (), (((half,), "float32"),))
    for op in ("mul", "div", "exp"):
        exponents = elementwise(session, op, exponents)
    angles = elementwise(session, "mul", cast(session, numbers.seen((count, 1)), "float32"), exponents.seen((1, half)))
    angles = elementwise(session, "mul", angles)
    both = cat(session, [elementwise(session, op, angles) for op in ("sin", "cos")])
    if not flipped:
        return both
    sines, cosines = (both.seen((count, half), both.strides) for _ in range(2))
    cosines.offset = half
    return cat(session, (cosines, sines))


@dataclass(frozen=True, slots=True)
class TimeEmbedding:
    """``TimestepEmbedding``: two linear layers with an activation between them."""

    build: Weights
    name: str
    first: Linear
    second: Linear

    @classmethod
    def create(cls, build: Weights, name: str, inputs: int, width: int) -> TimeEmbedding:
        """Creates the weights. inputs, width: values of each sample, before and after."""
        with build.session.layer(name):
            first = Linear.create(build, "linear_1", inputs, width, bias=True)
            return cls(build, name, first, Linear.create(build, "linear_2", width, width, bias=True))

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            hidden = self.first(x)
            with session.layer("act"):
                hidden = activation(session, "silu", hidden)
            return self.second(hidden)
