"""GoogLeNet (Inception v1), its normalized successor v2, and Inception v3, without their auxiliary classifiers.

v3: Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016.
"""

from __future__ import annotations

from typing import NamedTuple

from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.network import Network
from simgpu.workloads.networks.layer_groups import image_set
from simgpu.workloads.networks.layer_groups import normalized_convolution as unit


class _Module(NamedTuple):
    """Channels of a module: 1 x 1 branch, reduction and result of the next two branches, projection after pooling."""

    name: str
    single: int
    reduce_small: int
    small: int
    reduce_large: int
    large: int
    projection: int


#: Szegedy et al. 2015, table 1.
_GOOGLENET = (
    _Module("3a", 64, 96, 128, 16, 32, 32),
    _Module("3b", 128, 128, 192, 32, 96, 64),
    _Module("4a", 192, 96, 208, 16, 48, 64),
    _Module("4b", 160, 112, 224, 24, 64, 64),
    _Module("4c", 128, 128, 256, 24, 64, 64),
    _Module("4d", 112, 144, 288, 32, 64, 64),
    _Module("4e", 256, 160, 320, 32, 128, 128),
    _Module("5a", 256, 160, 320, 32, 128, 128),
    _Module("5b", 384, 192, 384, 48, 128, 128),
)


_FOR_CIFAR10 = (
    "for 32 x 32 images: a 3 x 3 convolution to 192 channels instead of all layers before the first module, "
    "as in GoogLeNet of kuangliu's pytorch-cifar"
)


def googlenet(input: str, *, batch_norm: bool = False, local_response_norm: bool = True) -> Network:
    """GoogLeNet: Szegedy et al., "Going deeper with convolutions", CVPR 2015, table 1.

    It has 1.58 G multiply-accumulates. The paper's 1.5 G, also the sum of its table, counts 34 M for the first
    convolution, whose filters need 118 M.

    batch_norm: torchvision's form, with batch normalization after each convolution instead of local response
    normalization, and 3 x 3 instead of 5 x 5 convolutions.
    local_response_norm: as in the paper; Torch's published models have none.
    For CIFAR10, a 3 x 3 convolution to 192 channels replaces all layers before the first module, as in kuangliu's
    pytorch-cifar.

    >>> round(googlenet("imagenet").parameters / 1e6, 2), googlenet("imagenet", batch_norm=True).parameters
    (7.0, 6624904)
    """
    images, responses = image_set(input), local_response_norm and not batch_norm
    net = NetworkBuilder("googlenet", "Szegedy et al., CVPR 2015, table 1", _FOR_CIFAR10 if images.small else "")
    x = net.input("image", images.shape)
    if images.small:
        x = _step(net, "conv2", x, 192, 3, batch_norm, padding=1)
    else:
        x = _step(net, "conv1", x, 64, 7, batch_norm, stride=2, padding=3)
        x = net.max_pool("pool1", x, 3, 2, ceil=True)
        x = net.local_response_norm("norm1", x) if responses else x
        x = _step(net, "conv2.reduce", x, 64, 1, batch_norm)
        x = _step(net, "conv2", x, 192, 3, batch_norm, padding=1)
        x = net.local_response_norm("norm2", x) if responses else x
        x = net.max_pool("pool2", x, 3, 2, ceil=True)
    for module in _GOOGLENET:
        with net.scope(f"inception_{module.name}"):
            x = _googlenet_module(net, x, module, batch_norm)
        if module.name in ("3b", "4e"):
            kernel = 2 if batch_norm and module.name == "4e" else 3
            x = net.max_pool(f"pool{module.name[0]}", x, kernel, 2, ceil=True)
    x = net.flatten("flatten", net.global_avg_pool("pool5", x))
    x = net.dropout("drop", x, 0.2 if batch_norm else 0.4)
    return net.finish(net.linear("fc", x, images.classes))


def _googlenet_module(net: NetworkBuilder, x: LayerOutput, module: _Module, batch_norm: bool) -> LayerOutput:
    single = _step(net, "1x1", x, module.single, 1, batch_norm)
    small = _step(net, "3x3.reduce", x, module.reduce_small, 1, batch_norm)
    small = _step(net, "3x3", small, module.small, 3, batch_norm, padding=1)
    large = _step(net, "5x5.reduce", x, module.reduce_large, 1, batch_norm)
    kernel = 3 if batch_norm else 5
    large = _step(net, "5x5", large, module.large, kernel, batch_norm, padding=kernel // 2)
    pooled = net.max_pool("pool", x, 3, 1, padding=1, ceil=batch_norm)
    pooled = _step(net, "projection", pooled, module.projection, 1, batch_norm)
    return net.concatenate("concatenate", (single, small, large, pooled))


def _step(
    net: NetworkBuilder,
    name: str,
    x: LayerOutput,
    channels: int,
    kernel: int,
    batch_norm: bool,
    *,
    stride: int = 1,
    padding: int = 0,
) -> LayerOutput:
    if batch_norm:
        return unit(net, name, x, channels, kernel, stride=stride, padding=padding)
    return net.relu(f"{name}.relu", net.convolution(name, x, channels, kernel, stride=stride, padding=padding))


#: Ioffe and Szegedy 2015, figure 5; modules without a 1 x 1 branch halve the image and do not project their pooling.
_INCEPTION_V2 = (
    _Module("3a", 64, 64, 64, 64, 96, 32),
    _Module("3b", 64, 64, 96, 64, 96, 64),
    _Module("3c", 0, 128, 160, 64, 96, 0),
    _Module("4a", 224, 64, 96, 96, 128, 128),
    _Module("4b", 192, 96, 128, 96, 128, 128),
    _Module("4c", 160, 128, 160, 128, 160, 128),
    _Module("4d", 96, 128, 192, 160, 192, 128),
    _Module("4e", 0, 128, 192, 192, 256, 0),
    _Module("5a", 352, 192, 320, 160, 224, 128),
    _Module("5b", 352, 192, 320, 192, 224, 128),
)


def inception_v2(input: str) -> Network:
    """Inception v2, that is BN-Inception: Ioffe and Szegedy, "Batch normalization", ICML 2015, figure 5.

    Modules 4c and 4d project their pooling to 128 channels, as in the published models but not in the figure's sums.
    (The Inception-v2 of the Inception v3 paper is an intermediate step and was not published as a model.) For CIFAR10,
    a 3 x 3 convolution to 192 channels replaces all layers before the first module.

    >>> round(inception_v2("imagenet").parameters / 1e6, 2)
    11.29
    """
    images = image_set(input)
    net = NetworkBuilder("inception-v2", "Ioffe and Szegedy, ICML 2015, figure 5", _FOR_CIFAR10 if images.small else "")
    x = net.input("image", images.shape)
    if images.small:
        x = unit(net, "conv2", x, 192, 3, padding=1)
    else:
        x = unit(net, "conv1", x, 64, 7, stride=2, padding=3)
        x = net.max_pool("pool1", x, 3, 2, ceil=True)
        x = unit(net, "conv2", unit(net, "conv2.reduce", x, 64, 1), 192, 3, padding=1)
        x = net.max_pool("pool2", x, 3, 2, ceil=True)
    for module in _INCEPTION_V2:
        with net.scope(f"inception_{module.name}"):
            x = _inception_v2_module(net, x, module)
    x = net.flatten("flatten", net.global_avg_pool("pool5", x))
    return net.finish(net.linear("fc", x, images.classes))


def _inception_v2_module(net: NetworkBuilder, x: LayerOutput, module: _Module) -> LayerOutput:
    halves = module.single == 0
    stride = 2 if halves else 1
    small = unit(net, "3x3.reduce", x, module.reduce_small, 1)
    small = unit(net, "3x3", small, module.small, 3, stride=stride, padding=1)
    large = unit(net, "double3x3.reduce", x, module.reduce_large, 1)
    large = unit(net, "double3x3.first", large, module.large, 3, padding=1)
    large = unit(net, "double3x3.second", large, module.large, 3, stride=stride, padding=1)
    if halves:
        return net.concatenate("concatenate", (small, large, net.max_pool("pool", x, 3, 2, ceil=True)))
    single = unit(net, "1x1", x, module.single, 1)
    pool = net.max_pool if module.name == "5b" else net.avg_pool
    pooled = unit(net, "projection", pool("pool", x, 3, 1, padding=1), module.projection, 1)
    return net.concatenate("concatenate", (single, small, large, pooled))


_V3_FOR_CIFAR10 = (
    "for 32 x 32 images: no stride and no pooling before the first module, as in weiaicunzai's pytorch-cifar100"
)


def inception_v3(input: str, side: int = 299) -> Network:
    """Inception v3 on 299 x 299 images (table 1, else the published model).

    side: pixels of ImageNet's images along each side, at least 75

    For CIFAR10, the first convolutions have no stride and no pooling, so the first module's input is 30 x 30, as in
    weiaicunzai's pytorch-cifar100.

    >>> round(inception_v3("imagenet").parameters / 1e6, 2), round(inception_v3("imagenet").macs / 1e9, 2)
    (23.83, 5.71)
    """
    images = image_set(input, side)
    net = NetworkBuilder("inception-v3", "Szegedy et al., CVPR 2016, table 1", _V3_FOR_CIFAR10 if images.small else "")
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


def _stem(net: NetworkBuilder, x: LayerOutput, small: bool) -> LayerOutput:
    x = unit(net, "conv_1a", x, 32, 3, stride=1 if small else 2, padding=1 if small else 0)
    x = unit(net, "conv_2a", x, 32, 3, padding=1 if small else 0)
    x = unit(net, "conv_2b", x, 64, 3, padding=1)
    if not small:
        x = net.max_pool("pool1", x, 3, 2)
    x = unit(net, "conv_4a", unit(net, "conv_3b", x, 80, 1), 192, 3)
    return x if small else net.max_pool("pool2", x, 3, 2)


def _chain(net: NetworkBuilder, name: str, x: LayerOutput, *steps: tuple[int, int | tuple[int, int]]) -> LayerOutput:
    """A chain of convolutions, each (channels, kernel), padded to keep the image's size."""
    for number, (channels, kernel) in enumerate(steps, 1):
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        x = unit(net, f"{name}_{number}", x, channels, kernel, padding=padding)
    return x


def _module_a(net: NetworkBuilder, x: LayerOutput, pooled: int) -> LayerOutput:
    branches = (
        _chain(net, "branch1x1", x, (64, 1)),
        _chain(net, "branch5x5", x, (48, 1), (64, 5)),
        _chain(net, "branch3x3double", x, (64, 1), (96, 3), (96, 3)),
        _pooled(net, x, pooled),
    )
    return net.concatenate("concatenate", branches)


def _module_b(net: NetworkBuilder, x: LayerOutput) -> LayerOutput:
    double = _chain(net, "branch3x3double", x, (64, 1), (96, 3))
    branches = (
        unit(net, "branch3x3", x, 384, 3, stride=2),
        unit(net, "branch3x3double_3", double, 96, 3, stride=2),
        net.max_pool("pool", x, 3, 2),
    )
    return net.concatenate("concatenate", branches)


def _module_c(net: NetworkBuilder, x: LayerOutput, width: int) -> LayerOutput:
    row, column = (1, 7), (7, 1)
    double = ((width, 1), (width, column), (width, row), (width, column), (192, row))
    branches = (
        _chain(net, "branch1x1", x, (192, 1)),
        _chain(net, "branch7x7", x, (width, 1), (width, row), (192, column)),
        _chain(net, "branch7x7double", x, *double),
        _pooled(net, x, 192),
    )
    return net.concatenate("concatenate", branches)


def _module_d(net: NetworkBuilder, x: LayerOutput) -> LayerOutput:
    small = _chain(net, "branch3x3", x, (192, 1))
    large = _chain(net, "branch7x7x3", x, (192, 1), (192, (1, 7)), (192, (7, 1)))
    branches = (
        unit(net, "branch3x3_2", small, 320, 3, stride=2),
        unit(net, "branch7x7x3_4", large, 192, 3, stride=2),
        net.max_pool("pool", x, 3, 2),
    )
    return net.concatenate("concatenate", branches)


def _module_e(net: NetworkBuilder, x: LayerOutput) -> LayerOutput:
    branches = (
        _chain(net, "branch1x1", x, (320, 1)),
        _split(net, "branch3x3", _chain(net, "branch3x3", x, (384, 1))),
        _split(net, "branch3x3double", _chain(net, "branch3x3double", x, (448, 1), (384, 3))),
        _pooled(net, x, 192),
    )
    return net.concatenate("concatenate", branches)


def _split(net: NetworkBuilder, name: str, x: LayerOutput) -> LayerOutput:
    row = unit(net, f"{name}_row", x, 384, (1, 3), padding=(0, 1))
    column = unit(net, f"{name}_column", x, 384, (3, 1), padding=(1, 0))
    return net.concatenate(f"{name}_concatenate", (row, column))


def _pooled(net: NetworkBuilder, x: LayerOutput, channels: int) -> LayerOutput:
    return unit(net, "branch_pool", net.avg_pool("pool", x, 3, 1, padding=1), channels, 1)
