"""VGG networks: stacks of 3 x 3 convolutions between poolings, three linear layers.

Source: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015, table
1. For CIFAR10, one linear layer on the remaining 512 values replaces the three, as in public CIFAR10 trainings.
"""

from __future__ import annotations

from simgpu.workloads.builder import NetworkBuilder
from simgpu.workloads.network import Network
from simgpu.workloads.networks.layer_groups import image_set

SOURCE = "Simonyan and Zisserman, ICLR 2015, table 1"

_WIDTHS = (64, 128, 256, 512, 512)
#: Convolutions in each of the five stages. Depth counts them and the three linear layers.
_CONVOLUTIONS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
    101: (2, 22, 66, 4, 4),
}


_FOR_CIFAR10 = (
    "for 32 x 32 images: one linear layer in place of three, as in kuangliu's pytorch-cifar, which also normalizes "
    "(batch_norm)"
)


def vgg(depth: int, input: str, *, batch_norm: bool = False) -> Network:
    """VGG of 11, 13, 16, 19 (configurations A, B, D, E of table 1) or 101 layers.

    VGG-101 is VGG-19 with more convolutions; Chen et al. (moDNN, TPDS 2019, section 7) do not publish its layout. The
    layout here, 2, 22, 66, 4, 4 instead of VGG-19's 2, 2, 4, 4, 4, was chosen to match the two sizes in their section
    7.1: at batch 128 nearly 100 GB in the ideal case (here 98.6, with the largest workspace on a K40) and a lower bound
    of 1.4 GB (here 1.40), both in units of 2**30 bytes, like the 12 GB of that board (106 and 1.50 in units of 10**9).
    If all stages grew in proportion, weights and their gradients alone would take 2.05 GB.

    batch_norm: batch normalization after each convolution, which still has a bias, as in torchvision.

    >>> round(vgg(16, "imagenet").parameters / 1e6, 2), round(vgg(16, "imagenet").macs / 1e9, 2)
    (138.36, 15.47)
    """
    images = image_set(input)
    net = NetworkBuilder(f"vgg{depth}", SOURCE, _FOR_CIFAR10 if images.small else "")
    x = net.input("image", images.shape)
    for stage, (count, width) in enumerate(zip(_CONVOLUTIONS[depth], _WIDTHS, strict=True), 1):
        for place in range(1, count + 1):
            x = net.convolution(f"conv{stage}_{place}", x, width, 3, padding=1)
            if batch_norm:
                x = net.batch_norm(f"norm{stage}_{place}", x)
            x = net.relu(f"relu{stage}_{place}", x)
        x = net.max_pool(f"pool{stage}", x, 2, 2)
    x = net.flatten("flatten", x)
    if not images.small:
        for number in (6, 7):
            x = net.relu(f"relu{number}", net.linear(f"fc{number}", x, 4096))
            x = net.dropout(f"drop{number}", x, 0.5)
    return net.finish(net.linear("fc" if images.small else "fc8", x, images.classes))
