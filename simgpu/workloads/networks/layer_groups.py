"""Groups of layers that many networks are made of, and the image sets that networks are written for."""

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
    """A convolution without bias, batch normalization and, if wanted, ReLU in place.

    Their names are `name`, and `name` with ``.norm`` and ``.relu``.
    """
    x = net.convolution(name, x, channels, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    x = net.batch_norm(f"{name}.norm", x)
    return net.relu(f"{name}.relu", x) if relu else x


IMAGENET = "imagenet"
CIFAR10 = "cifar10"


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Images as a network gets them: shape (channels, height, width), and how many classes they fall into."""

    name: str
    shape: tuple[int, int, int]
    classes: int

    @property
    def small(self) -> bool:
        """Whether images are so small that networks keep their size in the first layers."""
        return self.name == CIFAR10


def image_set(name: str, side: int = 224) -> ImageSet:
    """ImageNet with images of `side` x `side`, or CIFAR10, whose images are 32 x 32.

    >>> image_set("imagenet"), image_set("cifar10").shape
    (ImageSet(name='imagenet', shape=(3, 224, 224), classes=1000), (3, 32, 32))
    """
    return ImageSet(CIFAR10, (3, 32, 32), 10) if name == CIFAR10 else ImageSet(IMAGENET, (3, side, side), 1000)
