"""`norm_of`: the normalization of a decoder's family."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.configured.decoder import NormKind
from simgpu.workloads.configured.parts import Build, LayerNorm, RmsNorm
from simgpu.workloads.eager.pointwise import add_number, cast, mean, mul, power, rsqrt, sub
from simgpu.workloads.eager.strides import Sizes
from simgpu.workloads.eager.tensor import Tensor


@dataclass(frozen=True, slots=True)
class CentredNorm:
    """Layer normalization without a bias in float32, operator by operator, as Cohere's own module computes it."""

    build: Build
    name: str
    weight: Tensor

    @classmethod
    def create(cls, build: Build, name: str, shape: Sizes) -> CentredNorm:
        """Creates the weight."""
        with build.session.layer(name):
            return cls(build, name, build.weight("weight", *shape))

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            wide = cast(session, x, "float32")
            average = mean(session, wide)
            variance = mean(session, power(session, sub(session, wide, average)))
            centred = sub(session, wide, average)
            normal = mul(session, centred, rsqrt(session, add_number(session, variance)))
            return cast(session, mul(session, cast(session, self.weight, "float32"), normal), x.dtype)


Norm = RmsNorm | LayerNorm | CentredNorm


def norm_of(build: Build, name: str, *shape: int) -> Norm:
    """Creates the weights. shape: of the last dimensions, of which the last is normalized."""
    match build.decoder.norm_kind:
        case NormKind.CENTRED:
            return CentredNorm.create(build, name, shape)
        case NormKind.LAYER:
            return LayerNorm.create(build, name, *shape)
    return RmsNorm.create(build, name, *shape)
