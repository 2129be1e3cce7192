"""Densely connected networks: Huang, Liu, van der Maaten and Weinberger, CVPR 2017."""

from __future__ import annotations

from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.network import Network
from simgpu.workloads.networks.layer_groups import image_set
from simgpu.workloads.networks.layer_groups import normalized_convolution as unit

_GROWTH = 32
_BLOCKS = {121: (6, 12, 24, 16)}
_FOR_CIFAR10 = (
    "for 32 x 32 images: a 3 x 3 convolution of stride 1 in place of the first convolution and the pooling, as in "
    "kuangliu's pytorch-cifar"
)


def densenet(depth: int, input: str) -> Network:
    """DenseNet-121 (table 1): growth 32, bottlenecks of 128 channels, transitions that halve the channels.

    Each layer concatenates all earlier results again, as in torchvision. For CIFAR10, a 3 x 3 convolution of stride 1
    replaces the first convolution and the pooling.

    >>> densenet(121, "imagenet").parameters
    7978856
    """
    images = image_set(input)
    source = "Huang, Liu, van der Maaten and Weinberger, CVPR 2017, table 1"
    net = NetworkBuilder(f"densenet{depth}", source, _FOR_CIFAR10 if images.small else "")
    x = net.input("image", images.shape)
    if images.small:
        x = net.convolution("conv0", x, 2 * _GROWTH, 3, padding=1, bias=False)
    else:
        x = unit(net, "conv0", x, 2 * _GROWTH, 7, stride=2, padding=3)
        x = net.max_pool("pool0", x, 3, 2, padding=1)
    for number, count in enumerate(_BLOCKS[depth], 1):
        with net.scope(f"block{number}"):
            x = _block(net, x, count)
        if number < len(_BLOCKS[depth]):
            with net.scope(f"transition{number}"):
                x = net.relu("relu", net.batch_norm("norm", x))
                x = net.avg_pool("pool", net.convolution("conv", x, x.channels // 2, 1, bias=False), 2, 2)
    x = net.relu("relu5", net.batch_norm("norm5", x))
    x = net.flatten("flatten", net.global_avg_pool("pool5", x))
    return net.finish(net.linear("fc", x, images.classes))


def _block(net: NetworkBuilder, x: LayerOutput, count: int) -> LayerOutput:
    features = [x]
    for number in range(1, count + 1):
        with net.scope(f"layer{number}"):
            joined = net.concatenate("concatenate", features) if len(features) > 1 else x
            branch = net.relu("relu1", net.batch_norm("norm1", joined))
            branch = unit(net, "conv1", branch, 4 * _GROWTH, 1)
            features.append(net.convolution("conv2", branch, _GROWTH, 3, padding=1, bias=False))
    return net.concatenate("concatenate", features)
