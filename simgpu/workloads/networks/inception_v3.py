"""Inception v3: Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016.

The auxiliary classifier is left out.
"""

from __future__ import annotations

from simgpu.workloads.builder import NetworkBuilder, Tensor
from simgpu.workloads.network import Network
from simgpu.workloads.networks.images import image_set
from simgpu.workloads.networks.layer_groups import normalized_convolution as unit

_FOR_CIFAR10 = (
    "for 32 x 32 images: no stride and no pooling before the first module, as in weiaicunzai's pytorch-cifar100"
)


def inception_v3(input: str) -> Network:
    """Inception v3 on 299 x 299 images (table 1, and the published model where that is silent).

    For CIFAR10 the first convolutions keep the image's size and are not followed by poolings, so that modules begin at
    30 x 30, as in weiaicunzai's pytorch-cifar100.

    >>> round(inception_v3("imagenet").parameters / 1e6, 2), round(inception_v3("imagenet").macs / 1e9, 2)
    (23.83, 5.71)
    """
    images = image_set(input, 299)
    net = NetworkBuilder("inception-v3", "Szegedy et al., CVPR 2016, table 1", _FOR_CIFAR10 if images.small else "")
    x = _stem(net, net.input("image", images.shape), images.small)
    for name, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        with net.scope(f"mixed_{name}"):
            x = _module_a(net, x, pooled)
    with net.scope("mixed_6a"):
        x = _module_b(net, x)
    for name, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        with net.scope(f"mixed_{name}"):
            x = _module_c(net, x, width)
    with net.scope("mixed_7a"):
        x = _module_d(net, x)
    for name in ("7b", "7c"):
        with net.scope(f"mixed_{name}"):
            x = _module_e(net, x)
    x = net.flatten("flatten", net.dropout("drop", net.global_avg_pool("pool", x), 0.5))
    return net.finish(net.linear("fc", x, images.classes))


def _stem(net: NetworkBuilder, x: Tensor, small: bool) -> Tensor:
    x = unit(net, "conv_1a", x, 32, 3, stride=1 if small else 2, padding=1 if small else 0)
    x = unit(net, "conv_2a", x, 32, 3, padding=1 if small else 0)
    x = unit(net, "conv_2b", x, 64, 3, padding=1)
    if not small:
        x = net.max_pool("pool1", x, 3, 2)
    x = unit(net, "conv_4a", unit(net, "conv_3b", x, 80, 1), 192, 3)
    return x if small else net.max_pool("pool2", x, 3, 2)


def _chain(net: NetworkBuilder, name: str, x: Tensor, *steps: tuple[int, int | tuple[int, int]]) -> Tensor:
    """Convolutions one after another, each (channels, kernel), padded so that they keep the image's size."""
    for number, (channels, kernel) in enumerate(steps, 1):
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        x = unit(net, f"{name}_{number}", x, channels, kernel, padding=padding)
    return x


def _module_a(net: NetworkBuilder, x: Tensor, pooled: int) -> Tensor:
    branches = (
        _chain(net, "branch1x1", x, (64, 1)),
        _chain(net, "branch5x5", x, (48, 1), (64, 5)),
        _chain(net, "branch3x3double", x, (64, 1), (96, 3), (96, 3)),
        _pooled(net, x, pooled),
    )
    return net.concatenate("concatenate", branches)


def _module_b(net: NetworkBuilder, x: Tensor) -> Tensor:
    double = _chain(net, "branch3x3double", x, (64, 1), (96, 3))
    branches = (
        unit(net, "branch3x3", x, 384, 3, stride=2),
        unit(net, "branch3x3double_3", double, 96, 3, stride=2),
        net.max_pool("pool", x, 3, 2),
    )
    return net.concatenate("concatenate", branches)


def _module_c(net: NetworkBuilder, x: Tensor, width: int) -> Tensor:
    row, column = (1, 7), (7, 1)
    double = ((width, 1), (width, column), (width, row), (width, column), (192, row))
    branches = (
        _chain(net, "branch1x1", x, (192, 1)),
        _chain(net, "branch7x7", x, (width, 1), (width, row), (192, column)),
        _chain(net, "branch7x7double", x, *double),
        _pooled(net, x, 192),
    )
    return net.concatenate("concatenate", branches)


def _module_d(net: NetworkBuilder, x: Tensor) -> Tensor:
    small = _chain(net, "branch3x3", x, (192, 1))
    large = _chain(net, "branch7x7x3", x, (192, 1), (192, (1, 7)), (192, (7, 1)))
    branches = (
        unit(net, "branch3x3_2", small, 320, 3, stride=2),
        unit(net, "branch7x7x3_4", large, 192, 3, stride=2),
        net.max_pool("pool", x, 3, 2),
    )
    return net.concatenate("concatenate", branches)


def _module_e(net: NetworkBuilder, x: Tensor) -> Tensor:
    branches = (
        _chain(net, "branch1x1", x, (320, 1)),
        _split(net, "branch3x3", _chain(net, "branch3x3", x, (384, 1))),
        _split(net, "branch3x3double", _chain(net, "branch3x3double", x, (448, 1), (384, 3))),
        _pooled(net, x, 192),
    )
    return net.concatenate("concatenate", branches)


def _split(net: NetworkBuilder, name: str, x: Tensor) -> Tensor:
    row = unit(net, f"{name}_row", x, 384, (1, 3), padding=(0, 1))
    column = unit(net, f"{name}_column", x, 384, (3, 1), padding=(1, 0))
    return net.concatenate(f"{name}_concatenate", (row, column))


def _pooled(net: NetworkBuilder, x: Tensor, channels: int) -> Tensor:
    return unit(net, "branch_pool", net.avg_pool("pool", x, 3, 1, padding=1), channels, 1)
