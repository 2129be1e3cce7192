"""Segmentation networks: fully convolutional networks (FCN) on VGG-16, and U-Net."""

from __future__ import annotations

from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.network import Network

#: PASCAL VOC as in FCN's training: images of about 500 x 500, twenty classes and background.
VOC = "voc"
#: Microscope images of the ISBI challenge as in U-Net's training: one channel, 572 x 572, two classes.
ISBI = "isbi"
_VOC_CLASSES = 21
_ISBI_CLASSES = 2
_FCN_FOR_IMAGENET = (
    "for 224 x 224 images: every convolution keeps the image's size and there are no crops, as in later ports"
)


def fcn(stride: int, input: str) -> Network:
    """FCN-32s, FCN-16s or FCN-8s: Long, Shelhamer and Darrell, "Fully convolutional networks", CVPR 2015, section 4.

    For VOC, as published: the first convolution pads by 100, transposed convolutions upsample the results, and crops
    restore the image's size. For ImageNet's 224 x 224, every convolution keeps the image's size and there are no
    crops, as in later ports. Upsampling weights are trained.

    Chen et al. (moDNN, TPDS 2019, section 7) train an FCN at batch 128 without stating which one or the images. By
    their section 7.1 it needs more than 12 GB and at most 24 GB in the ideal case; FCN-32s does on ImageNet's images
    (23 GB), not on those of VOC (168 GB or more).

    >>> round(fcn(32, "voc").parameters / 1e6), fcn(8, "imagenet").label_shape
    (136, (224, 224))
    """
    as_published = input == VOC
    side = 500 if as_published else 224
    form = "" if as_published else _FCN_FOR_IMAGENET
    net = NetworkBuilder(f"fcn{stride}s", "Long, Shelhamer and Darrell, CVPR 2015, section 4", form)
    image = net.input("image", (3, side, side))
    pools = _vgg16(net, image, 100 if as_published else 1)
    x = net.relu("relu6", net.convolution("fc6", pools[5], 4096, 7, padding=0 if as_published else 3))
    x = net.relu("relu7", net.convolution("fc7", net.dropout("drop6", x, 0.5), 4096, 1))
    x = net.convolution("score", net.dropout("drop7", x, 0.5), _VOC_CLASSES, 1)
    for number, reached in ((4, 16), (3, 8)):
        if stride <= reached:
            x = _upsampled(net, f"upscore{number}", x, 2, as_published)
            scores = net.convolution(f"score_pool{number}", pools[number], _VOC_CLASSES, 1)
            x = net.add(f"fuse{number}", _cropped(net, f"score_pool{number}.crop", scores, x), x)
    x = _cropped(net, "crop", _upsampled(net, "upscore", x, stride, as_published), image)
    return net.finish(net.view("places", x, (side, side, _VOC_CLASSES)))


def _vgg16(net: NetworkBuilder, x: LayerOutput, first_padding: int) -> dict[int, LayerOutput]:
    pools = {}
    for stage, (count, width) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for place in range(1, count + 1):
            padding = first_padding if (stage, place) == (1, 1) else 1
            x = net.convolution(f"conv{stage}_{place}", x, width, 3, padding=padding)
            x = net.relu(f"relu{stage}_{place}", x)
        x = pools[stage] = net.max_pool(f"pool{stage}", x, 2, 2, ceil=True)
    return pools


def _upsampled(net: NetworkBuilder, name: str, x: LayerOutput, factor: int, as_published: bool) -> LayerOutput:
    padding = 0 if as_published else factor // 2
    return net.transposed_convolution(name, x, x.channels, 2 * factor, stride=factor, padding=padding, bias=False)


def _cropped(net: NetworkBuilder, name: str, x: LayerOutput, like: LayerOutput) -> LayerOutput:
    return x if x.shape[1:] == like.shape[1:] else net.crop(name, x, like.shape[1:])


def unet(input: str) -> Network:
    """U-Net: Ronneberger, Fischer and Brox, MICCAI 2015, figure 1; unpadded, 572 x 572 in, 388 x 388 out.

    >>> network = unet("isbi")
    >>> round(network.parameters / 1e6, 2), network.label_shape
    (31.03, (388, 388))
    """
    net = NetworkBuilder("unet", "Ronneberger, Fischer and Brox, MICCAI 2015, figure 1")
    x = net.input("image", (1, 572, 572))
    skipped = []
    for level, width in enumerate((64, 128, 256, 512), 1):
        x = _twice(net, f"down{level}", x, width)
        skipped.append(x)
        x = net.max_pool(f"down{level}.pool", x, 2, 2)
    x = _twice(net, "bottom", x, 1024)
    for level, width in ((4, 512), (3, 256), (2, 128), (1, 64)):
        x = net.transposed_convolution(f"up{level}.enlarge", x, width, 2, stride=2)
        retained = net.crop(f"up{level}.crop", skipped.pop(), x.shape[1:])
        x = _twice(net, f"up{level}", net.concatenate(f"up{level}.concatenate", (retained, x)), width)
    x = net.convolution("score", x, _ISBI_CLASSES, 1)
    return net.finish(net.view("places", x, (*x.shape[1:], _ISBI_CLASSES)))


def _twice(net: NetworkBuilder, name: str, x: LayerOutput, width: int) -> LayerOutput:
    for number in (1, 2):
        x = net.relu(f"{name}.relu{number}", net.convolution(f"{name}.conv{number}", x, width, 3))
    return x
