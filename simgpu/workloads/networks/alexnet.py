"""AlexNet, OverFeat and Network in Network; each function's docstring names its source."""

from __future__ import annotations

from simgpu.errors import InputError
from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.network import Network
from simgpu.workloads.networks.layer_groups import ImageSet, image_set

_ALEXNET_FOR_CIFAR10 = (
    "for 32 x 32 images: poolings of 2 x 2 and one linear layer in place of three, as in Wei Yang's "
    "pytorch-classification"
)


def alexnet(input: str, *, grouped: bool = True, conv4_channels: int = 256) -> Network:
    """AlexNet: five convolutions, three linear layers.

    grouped: the form of Krizhevsky, Sutskever and Hinton (NIPS 2012), figure 2, on 227 x 227 images: local response
    normalization, and two groups in the convolutions that the paper splits over two GPUs, as in Caffe's reference model
    (which GPU memory studies measured). Else the single column of Krizhevsky, "One weird trick" (2014), on 224 x 224,
    without normalization, as in torchvision.
    conv4_channels: channels of the single column's fourth convolution, 384 in TensorFlow's benchmarks. Raises
    `InputError` if combined with `grouped`.

    For CIFAR10: the single column with 2 x 2 poolings, which result in 256 values for one linear layer, as in Wei
    Yang's pytorch-classification (2.47 M parameters).

    >>> round(alexnet("imagenet").parameters / 1e6, 2), round(alexnet("imagenet", grouped=False).parameters / 1e6, 2)
    (60.97, 61.1)
    """
    if input == "cifar10" or not grouped:
        return _single_column(image_set(input), conv4_channels)
    if conv4_channels != 256:
        problem = "applies only to the single column"
        raise InputError.single("", "network alexnet, variant conv4_channels", problem, "choose grouped=false too")
    return _two_groups(image_set(input, 227))


def _two_groups(images: ImageSet) -> Network:
    net = NetworkBuilder("alexnet", "Krizhevsky, Sutskever and Hinton, NIPS 2012, figure 2")
    x = net.input("image", images.shape)
    x = net.relu("relu1", net.convolution("conv1", x, 96, 11, stride=4))
    x = net.max_pool("pool1", net.local_response_norm("norm1", x), 3, 2)
    x = net.relu("relu2", net.convolution("conv2", x, 256, 5, padding=2, groups=2))
    x = net.max_pool("pool2", net.local_response_norm("norm2", x), 3, 2)
    x = net.relu("relu3", net.convolution("conv3", x, 384, 3, padding=1))
    x = net.relu("relu4", net.convolution("conv4", x, 384, 3, padding=1, groups=2))
    x = net.relu("relu5", net.convolution("conv5", x, 256, 3, padding=1, groups=2))
    x = net.flatten("flatten", net.max_pool("pool5", x, 3, 2))
    for number in (6, 7):
        x = net.relu(f"relu{number}", net.linear(f"fc{number}", x, 4096))
        x = net.dropout(f"drop{number}", x, 0.5)
    return net.finish(net.linear("fc8", x, images.classes))


def _single_column(images: ImageSet, conv4_channels: int) -> Network:
    source = "Krizhevsky, One weird trick for parallelizing CNNs, arXiv:1404.5997, section 5"
    net = NetworkBuilder("alexnet", source, _ALEXNET_FOR_CIFAR10 if images.small else "")
    x = net.input("image", images.shape)
    pool = 2 if images.small else 3
    x = net.relu("relu1", net.convolution("conv1", x, 64, 11, stride=4, padding=5 if images.small else 2))
    x = net.max_pool("pool1", x, pool, 2)
    x = net.relu("relu2", net.convolution("conv2", x, 192, 5, padding=2))
    x = net.max_pool("pool2", x, pool, 2)
    for number, width in ((3, 384), (4, conv4_channels), (5, 256)):
        x = net.relu(f"relu{number}", net.convolution(f"conv{number}", x, width, 3, padding=1))
    x = net.flatten("flatten", net.max_pool("pool5", x, pool, 2))
    if images.small:
        return net.finish(net.linear("fc", x, images.classes))
    for number in (6, 7):
        x = net.dropout(f"drop{number}", x, 0.5)
        x = net.relu(f"relu{number}", net.linear(f"fc{number}", x, 4096))
    return net.finish(net.linear("fc8", x, images.classes))


def overfeat(input: str) -> Network:
    """OverFeat's fast model: Sermanet et al., "OverFeat", ICLR 2014, table 1; no normalization, images of 231 x 231."""
    images = image_set(input, 231)
    net = NetworkBuilder("overfeat", "Sermanet et al., ICLR 2014, table 1 (fast model)")
    x = net.input("image", images.shape)
    x = net.relu("relu1", net.convolution("conv1", x, 96, 11, stride=4))
    x = net.max_pool("pool1", x, 2, 2)
    x = net.relu("relu2", net.convolution("conv2", x, 256, 5))
    x = net.max_pool("pool2", x, 2, 2)
    for number, width in ((3, 512), (4, 1024), (5, 1024)):
        x = net.relu(f"relu{number}", net.convolution(f"conv{number}", x, width, 3, padding=1))
    x = net.flatten("flatten", net.max_pool("pool5", x, 2, 2))
    for number, width in ((6, 3072), (7, 4096)):
        x = net.relu(f"relu{number}", net.linear(f"fc{number}", x, width))
        x = net.dropout(f"drop{number}", x, 0.5)
    return net.finish(net.linear("fc8", x, images.classes))


#: The authors' forms for CIFAR10 and for ImageNet.
_NIN_FOR_CIFAR10 = "for 32 x 32 images as in the paper, in the sizes that its authors published"
_NIN_FOR_IMAGENET = "for 224 x 224 images with four blocks, as in the Caffe model that its authors published later"


def nin(input: str) -> Network:
    """Network in Network: Lin, Chen and Yan, ICLR 2014; a block is a convolution and two 1 x 1 convolutions.

    For CIFAR10, the paper's network (figure 2, with the sizes that the authors published). For ImageNet, the authors'
    later network of four blocks on 224 x 224, published as a Caffe model.
    """
    images = image_set(input)
    net = NetworkBuilder("nin", "Lin, Chen and Yan, ICLR 2014", _NIN_FOR_CIFAR10 if images.small else _NIN_FOR_IMAGENET)
    x = net.input("image", images.shape)
    if images.small:
        x = _nin_block(net, x, 1, (192, 160, 96), 5, padding=2)
        x = net.dropout("drop1", net.max_pool("pool1", x, 3, 2, ceil=True), 0.5)
        x = _nin_block(net, x, 2, (192, 192, 192), 5, padding=2)
        x = net.dropout("drop2", net.avg_pool("pool2", x, 3, 2, ceil=True), 0.5)
        x = _nin_block(net, x, 3, (192, 192, images.classes), 3, padding=1)
    else:
        x = _nin_block(net, x, 1, (96, 96, 96), 11, stride=4)
        x = net.max_pool("pool1", x, 3, 2, ceil=True)
        x = _nin_block(net, x, 2, (256, 256, 256), 5, padding=2)
        x = net.max_pool("pool2", x, 3, 2, ceil=True)
        x = _nin_block(net, x, 3, (384, 384, 384), 3, padding=1)
        x = net.dropout("drop3", net.max_pool("pool3", x, 3, 2, ceil=True), 0.5)
        x = _nin_block(net, x, 4, (1024, 1024, images.classes), 3, padding=1)
    return net.finish(net.flatten("flatten", net.global_avg_pool("pool", x)))


def _nin_block(
    net: NetworkBuilder,
    x: LayerOutput,
    number: int,
    widths: tuple[int, int, int],
    kernel: int,
    *,
    stride: int = 1,
    padding: int = 0,
) -> LayerOutput:
    first, second, third = widths
    x = net.relu(f"relu{number}", net.convolution(f"conv{number}", x, first, kernel, stride=stride, padding=padding))
    x = net.relu(f"relu{number}a", net.convolution(f"cccp{number}a", x, second, 1))
    return net.relu(f"relu{number}b", net.convolution(f"cccp{number}b", x, third, 1))
