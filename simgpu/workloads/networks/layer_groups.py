"""Layer groups that many networks share, and the image sets of the networks."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.shapes import Side


def normalized_convolution(
    net: NetworkBuilder,
    name: str,
    x: LayerOutput,
    channels: int,
    kernel: Side,
    *,
    stride: Side = 1,
    padding: Side = 0,
    groups: int = 1,
    relu: bool = True,
) -> LayerOutput:
    """A convolution without bias, batch normalization and, with `relu`, an in-place ReLU.

    The layers are called `name`, and `name` followed by ``.norm`` and ``.relu``.
    """
    x = net.convolution(name, x, channels, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    x = net.batch_norm(f"{name}.norm", x)
    return net.relu(f"{name}.relu", x) if relu else x


IMAGENET = "imagenet"
CIFAR10 = "cifar10"


@dataclass(frozen=True, slots=True)
class ImageSet:
    """A set of images. shape: (channels, height, width). classes: number of classes."""

    name: str
    shape: tuple[int, int, int]
    classes: int

    @property
    def small(self) -> bool:
        """Whether images are so small that networks do not downsample them in the first layers."""
        return self.name == CIFAR10


def image_set(name: str, side: int = 224) -> ImageSet:
    """ImageNet with images of `side` x `side`, or CIFAR10 with 32 x 32 images.

    >>> image_set("imagenet"), image_set("cifar10").shape
    (ImageSet(name='imagenet', shape=(3, 224, 224), classes=1000), (3, 32, 32))
    """
    return ImageSet(CIFAR10, (3, 32, 32), 10) if name == CIFAR10 else ImageSet(IMAGENET, (3, side, side), 1000)
