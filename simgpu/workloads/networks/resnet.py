"""Residual and plain networks: He, Zhang, Ren and Sun, "Deep residual learning", CVPR 2016.

As in torchvision, convolutions have no bias and are followed by batch normalization, ReLUs are in place, and the sum
overwrites the branch's result.
"""

from __future__ import annotations

from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.network import Network
from simgpu.workloads.networks.layer_groups import image_set
from simgpu.workloads.networks.layer_groups import normalized_convolution as unit

SOURCE = "He, Zhang, Ren and Sun, CVPR 2016"

#: Blocks in each of the four stages, and whether they are bottlenecks (table 1).
_STAGES = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}


_FOR_CIFAR10 = (
    "for 32 x 32 images: a 3 x 3 convolution of stride 1 in place of the first convolution and the pooling, as in "
    "kuangliu's pytorch-cifar"
)


def resnet(depth: int, input: str, *, stride_in_3x3: bool = False) -> Network:
    """ResNet of 18, 34, 50, 101 or 152 layers; projections where the shape changes (option B).

    stride_in_3x3: bottlenecks that halve the image do so in their 3 x 3 convolution, as in torchvision ("v1.5"),
    instead of their first 1 x 1, as in the paper. For CIFAR10, a 3 x 3 convolution of stride 1 replaces the first
    convolution and the pooling, as in public CIFAR10 trainings.

    >>> round(resnet(50, "imagenet").parameters / 1e6, 2)
    25.56
    """
    images, (blocks, bottlenecks) = image_set(input), _STAGES[depth]
    net = NetworkBuilder(f"resnet{depth}", f"{SOURCE}, table 1", _FOR_CIFAR10 if images.small else "")
    x = net.input("image", images.shape)
    if images.small:
        x = unit(net, "conv1", x, 64, 3, padding=1)
    else:
        x = unit(net, "conv1", x, 64, 7, stride=2, padding=3)
        x = net.max_pool("pool1", x, 3, 2, padding=1)
    for stage, count in enumerate(blocks, 1):
        width = 32 * 2**stage
        for place in range(count):
            stride = 2 if stage > 1 and place == 0 else 1
            with net.scope(f"layer{stage}.{place}"):
                x = _bottleneck(net, x, width, stride, stride_in_3x3) if bottlenecks else _basic(net, x, width, stride)
    x = net.flatten("flatten", net.global_avg_pool("pool", x))
    return net.finish(net.linear("fc", x, images.classes))


def _basic(net: NetworkBuilder, x: LayerOutput, width: int, stride: int) -> LayerOutput:
    branch = unit(net, "conv1", x, width, 3, stride=stride, padding=1)
    branch = unit(net, "conv2", branch, width, 3, padding=1, relu=False)
    return _joined(net, branch, _projected(net, x, branch, stride))


def _bottleneck(net: NetworkBuilder, x: LayerOutput, width: int, stride: int, stride_in_3x3: bool) -> LayerOutput:
    first, second = (1, stride) if stride_in_3x3 else (stride, 1)
    branch = unit(net, "conv1", x, width, 1, stride=first)
    branch = unit(net, "conv2", branch, width, 3, stride=second, padding=1)
    branch = unit(net, "conv3", branch, 4 * width, 1, relu=False)
    return _joined(net, branch, _projected(net, x, branch, stride))


def _projected(net: NetworkBuilder, x: LayerOutput, branch: LayerOutput, stride: int) -> LayerOutput:
    if x.shape == branch.shape:
        return x
    return unit(net, "shortcut", x, branch.channels, 1, stride=stride, relu=False)


def _joined(net: NetworkBuilder, branch: LayerOutput, shortcut: LayerOutput) -> LayerOutput:
    return net.relu("relu", net.add("add", branch, shortcut, in_place=True))


_ITS_OWN_IMAGES = "for 32 x 32 images, as in the paper"
_LARGER_IMAGES = "for 224 x 224 images and 1000 classes, otherwise unchanged; not in the paper"


def small_resnet(depth: int, input: str, *, shortcuts: bool = True, width: float = 1.0) -> Network:
    """ResNet of 6n + 2 layers for CIFAR10 (section 4.2): 16, 32 and 64 channels, n blocks of each.

    shortcuts: without them it is the paper's plain network (Plain20). They have no parameters (option A): where the
    shape changes they subsample by 2 and double the channels with zeros.
    width: multiplies the channels.
    For ImageNet, the same network on 224 x 224 images and 1000 classes, as used in memory studies.

    >>> round(small_resnet(20, "cifar10").parameters / 1e6, 2)
    0.27
    """
    images = image_set(input)
    name, form = f"{'resnet' if shortcuts else 'plain'}{depth}", _ITS_OWN_IMAGES if images.small else _LARGER_IMAGES
    net = NetworkBuilder(name, f"{SOURCE}, section 4.2", form)
    x = net.input("image", images.shape)
    narrowest = max(1, round(16 * width))
    x = unit(net, "conv1", x, narrowest, 3, padding=1)
    for stage, channels in enumerate((narrowest, 2 * narrowest, 4 * narrowest), 1):
        for place in range((depth - 2) // 6):
            stride = 2 if stage > 1 and place == 0 else 1
            with net.scope(f"layer{stage}.{place}"):
                branch = unit(net, "conv1", x, channels, 3, stride=stride, padding=1)
                branch = unit(net, "conv2", branch, channels, 3, padding=1, relu=not shortcuts)
                x = _joined(net, branch, _padded(net, x, branch)) if shortcuts else branch
    x = net.flatten("flatten", net.global_avg_pool("pool", x))
    return net.finish(net.linear("fc", x, images.classes))


def _padded(net: NetworkBuilder, x: LayerOutput, branch: LayerOutput) -> LayerOutput:
    """x subsampled by 2, with as many zero channels added, computed as in the authors' framework."""
    if x.shape == branch.shape:
        return x
    x = net.avg_pool("shortcut.pool", x, 1, 2)
    return net.concatenate("shortcut.concatenate", (x, net.scale("shortcut.zeros", x)))
