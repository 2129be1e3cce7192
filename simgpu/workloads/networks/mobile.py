"""Networks for small devices: MobileNet v1 and SqueezeNet."""

from __future__ import annotations

from collections.abc import Callable

from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.network import Network
from simgpu.workloads.networks.layer_groups import ImageSet, image_set
from simgpu.workloads.networks.layer_groups import normalized_convolution as unit

#: Channels and stride of MobileNet's thirteen separable convolutions.
_SEPARABLE = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)


_MOBILENET_FOR_CIFAR10 = "for 32 x 32 images: no stride in the first convolution, as in kuangliu's pytorch-cifar"


def mobilenet(input: str, *, width: float = 1.0) -> Network:
    """MobileNet v1: Howard et al., "MobileNets", arXiv:1704.04861, table 1.

    width: the paper's multiplier alpha.
    The last separable convolution has stride 1: the table's 2 does not result in its 7 x 7. For CIFAR10, the first
    convolution has stride 1 as well, as in kuangliu's pytorch-cifar.

    >>> round(mobilenet("imagenet").parameters / 1e6, 2), round(mobilenet("imagenet").macs / 1e6)
    (4.23, 569)
    """
    images = image_set(input)
    net = NetworkBuilder(
        "mobilenet", "Howard et al., arXiv:1704.04861, table 1", _MOBILENET_FOR_CIFAR10 if images.small else ""
    )
    x = net.input("image", images.shape)
    x = unit(net, "conv1", x, max(1, round(32 * width)), 3, stride=1 if images.small else 2, padding=1)
    for number, (channels, stride) in enumerate(_SEPARABLE, 2):
        with net.scope(f"conv{number}"):
            x = unit(net, "depthwise", x, x.channels, 3, stride=stride, padding=1, groups=x.channels)
            x = unit(net, "pointwise", x, max(1, round(channels * width)), 1)
    x = net.flatten("flatten", net.global_avg_pool("pool", x))
    return net.finish(net.linear("fc", x, images.classes))


#: Channels of each fire module: squeeze layer, and each half of the expand layer.
_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
#: Fire modules that pooling follows, by version.
_POOLS = {"1.0": (4, 8), "1.1": (3, 5)}
#: Fire modules with a bypass (input added to the result), in the form with simple bypasses.
_BYPASSED = (3, 5, 7)


_SQUEEZENET_FOR_CIFAR10 = (
    "for 32 x 32 images: the first convolution 3 x 3 without stride, as in weiaicunzai's pytorch-cifar100; the rest as "
    "published, without that project's normalization and bypasses"
)
_SQUEEZENET_NORMALIZED = (
    "for 32 x 32 images: normalized, with simple bypasses, pooling 2 x 2 and no dropout, as in weiaicunzai's "
    "pytorch-cifar100"
)


def squeezenet(version: str, input: str, *, batch_norm: bool = False) -> Network:
    """SqueezeNet 1.0: Iandola et al., arXiv:1602.07360, table 1; 1.1: the authors' cheaper release.

    As in the authors' Caffe model and in torchvision, the last convolution has a ReLU too and the first one has no
    padding. For CIFAR10, only the first convolution differs: 3 x 3 of stride 1 and padding 1. batch_norm: the form of
    1.0 for CIFAR10 in weiaicunzai's pytorch-cifar100, see `_normalized_squeezenet`.

    >>> squeezenet("1.0", "imagenet").parameters, squeezenet("1.1", "imagenet").parameters
    (1248424, 1235496)
    """
    images = image_set(input)
    if batch_norm:
        return _normalized_squeezenet(images)
    form = _SQUEEZENET_FOR_CIFAR10 if images.small else ""
    net = NetworkBuilder(f"squeezenet{version}", "Iandola et al., arXiv:1602.07360, table 1", form)
    x = net.input("image", images.shape)
    channels, kernel = (96, 7) if version == "1.0" else (64, 3)
    if images.small:
        x = _activated(net, "conv1", x, channels, 3, padding=1)
    else:
        x = _activated(net, "conv1", x, channels, kernel, stride=2)
    x = net.max_pool("pool1", x, 3, 2, ceil=True)
    for number, (squeeze, expand) in enumerate(_FIRES, 2):
        with net.scope(f"fire{number}"):
            x = _fire(net, x, squeeze, expand, _activated)
        if number in _POOLS[version]:
            x = net.max_pool(f"pool{number}", x, 3, 2, ceil=True)
    x = _activated(net, "conv10", net.dropout("drop9", x, 0.5), images.classes, 1)
    return net.finish(net.flatten("flatten", net.global_avg_pool("pool10", x)))


def _normalized_squeezenet(images: ImageSet) -> Network:
    """SqueezeNet 1.0 with batch normalization after each convolution but the last, and the paper's simple bypass.

    As in weiaicunzai's pytorch-cifar100, and unlike the paper's figure 2, the ninth module has no bypass.
    """
    net = NetworkBuilder("squeezenet1.0", "Iandola et al., arXiv:1602.07360, table 1", _SQUEEZENET_NORMALIZED)
    x = _normalized(net, "conv1", net.input("image", images.shape), 96, 3, padding=1)
    x = net.max_pool("pool1", x, 2, 2)
    for number, (squeeze, expand) in enumerate(_FIRES, 2):
        with net.scope(f"fire{number}"):
            created = _fire(net, x, squeeze, expand, _normalized)
            x = net.add("bypass", created, x) if number in _BYPASSED else created
        if number in _POOLS["1.0"]:
            x = net.max_pool(f"pool{number}", x, 2, 2)
    x = net.convolution("conv10", x, images.classes, 1)
    return net.finish(net.flatten("flatten", net.global_avg_pool("pool10", x)))


def _fire(
    net: NetworkBuilder, x: LayerOutput, squeeze: int, expand: int, layer: Callable[..., LayerOutput]
) -> LayerOutput:
    x = layer(net, "squeeze", x, squeeze, 1)
    small = layer(net, "expand1x1", x, expand, 1)
    large = layer(net, "expand3x3", x, expand, 3, padding=1)
    return net.concatenate("concatenate", (small, large))


def _activated(
    net: NetworkBuilder, name: str, x: LayerOutput, channels: int, kernel: int, *, stride: int = 1, padding: int = 0
) -> LayerOutput:
    x = net.convolution(name, x, channels, kernel, stride=stride, padding=padding)
    return net.relu(name.replace("conv", "relu") if name.startswith("conv") else f"{name}.relu", x)


def _normalized(
    net: NetworkBuilder, name: str, x: LayerOutput, channels: int, kernel: int, *, padding: int = 0
) -> LayerOutput:
    """A convolution, batch normalization and ReLU; the convolution has a bias although normalization removes it."""
    x = net.batch_norm(f"{name}.norm", net.convolution(name, x, channels, kernel, padding=padding))
    return net.relu(f"{name}.relu", x)
