"""Layers of images, (batch, channels, height, width): `Convolution` and `GroupNorm`."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.configured.parts import Weights
from simgpu.workloads.eager.convolution import convolution
from simgpu.workloads.eager.normalization import group_norm
from simgpu.workloads.eager.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with a bias, whose kernel is square."""

    build: Weights
    name: str
    weight: Tensor
    bias: Tensor
    stride: int
    padding: int

    @classmethod
    def create(
        cls, build: Weights, name: str, channels: tuple[int, int], side: int, *, stride: int = 1, padding: int = 0
    ) -> Convolution:
        """Creates the weights. channels: of the image and of the result. side: of the kernel."""
        inputs, outputs = channels
        with build.session.layer(name):
            weight, bias = build.weight("weight", outputs, inputs, side, side), build.weight("bias", outputs)
        return cls(build, name, weight, bias, stride, padding)

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            return convolution(session, x, self.weight, self.bias, stride=self.stride, padding=self.padding)


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """Normalization over groups of channels, with weight and bias."""

    build: Weights
    name: str
    groups: int
    weight: Tensor
    bias: Tensor

    @classmethod
    def create(cls, build: Weights, name: str, channels: int, groups: int) -> GroupNorm:
        """Creates the weights."""
        with build.session.layer(name):
            return cls(build, name, groups, build.weight("weight", channels), build.weight("bias", channels))

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        with session.layer(self.name):
            return group_norm(session, x, self.weight, self.bias, self.groups)
