"""Groups of layers that many networks are made of."""

from __future__ import annotations

from simgpu.workloads.builder import NetworkBuilder, Tensor
from simgpu.workloads.shapes import Side


def normalized_convolution(
    net: NetworkBuilder,
    name: str,
    x: Tensor,
    channels: int,
    kernel: Side,
    *,
    stride: Side = 1,
    padding: Side = 0,
    groups: int = 1,
    relu: bool = True,
) -> Tensor:
    """A convolution without bias, batch normalization and, if wanted, ReLU in place.

    Their names are `name`, and `name` with ``.norm`` and ``.relu``.
    """
    x = net.convolution(name, x, channels, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    x = net.batch_norm(f"{name}.norm", x)
    return net.relu(f"{name}.relu", x) if relu else x
