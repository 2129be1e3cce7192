"""CSWAP's published codec times on a V100, and a comparison of them with a surface.

Source: Chen et al., CLUSTER 2021.

The paper's numbers need interpretation. It does not state the data set of figure 12 (an iteration of VGG-16). Its
random setting takes 54% of the iteration, which leaves 466 ms for all but the codec: less than VGG-16 computes for 128
images of ImageNet, and near what the rest takes for 2560 of CIFAR10, the batches of table III. So we read it as
CIFAR10, where nine tensors have 1.8 GB: 37 ms per GB at the setting found by Bayesian search.

Figure 5 (one tensor of 500 MB) has 88 ms per GB at nearly the same setting, 2.4 times as much, and both cannot be
right. A surface whose costs of blocks grow with the tensor would fit both figures within 10%, but then small tensors
would gain by compression, which section II-C excludes. We use only ratios of figure 5, its times divided by that at a
grid of 197, and the absolute times of figure 12. The paper does not state which tensors are compressed in figure 12,
their sparsity, or the expert's grid. Assumed:

* The tensors are those nine of VGG-16's twelve convolution inputs after the first that are ever compressed (section
  V-B: MAX4, ReLU7 and ReLU8 never are).
* Each has 50% sparsity, as in figure 5.
* The expert's blocks have 128 threads, and all threads run concurrently, as published. We assume eight such blocks on
  each multiprocessor: 1024 threads, which every generation since Kepler can run concurrently.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from simgpu.compression.codecs.gpu.setting import EXPERT_BLOCKS, LaunchSetting
from simgpu.compression.codecs.gpu.surface import ResponseSurface, network_ns, network_times
from simgpu.compression.codecs.gpu.tensors import SparseTensor

_MIB = 2**20
#: Sizes of VGG-16's feature maps after ReLU and maximum pooling; batch 128, single precision, 224 x 224 images.
VGG16_SIZES = {
    "ReLU1": 1568 * _MIB,
    "MAX1": 392 * _MIB,
    "ReLU2": 784 * _MIB,
    "MAX2": 196 * _MIB,
    "ReLU3": 392 * _MIB,
    "ReLU4": 392 * _MIB,
    "MAX3": 98 * _MIB,
    "ReLU5": 196 * _MIB,
    "ReLU6": 196 * _MIB,
    "MAX4": 49 * _MIB,
    "ReLU7": 49 * _MIB,
    "ReLU8": 49 * _MIB,
}
#: Bytes for 2560 images of CIFAR10 (32 x 32) over those for 128 of ImageNet.
_CIFAR10 = Fraction(2560 * 32**2, 128 * 224**2)
NEVER_COMPRESSED = ("MAX4", "ReLU7", "ReLU8")
FIGURE_5 = (SparseTensor(500_000_000, 0.5),)
FIGURE_12 = tuple(
    SparseTensor(int(size * _CIFAR10), 0.5) for name, size in VGG16_SIZES.items() if name not in NEVER_COMPRESSED
)
_V100_MULTIPROCESSORS = 80


@dataclass(frozen=True, slots=True)
class CodecFigure:
    """One published time: encoding plus decoding with ZVC, milliseconds.

    setting: None for the best of all settings. of: the fitted quantity: the time itself (``scale``, figure 12) or its
    ratio to the time of `ANCHOR` (``shape``, figure 5).
    """

    name: str
    setting: LaunchSetting | None
    paper_ms: int
    of: Literal["scale", "shape"]


#: The time of figure 5 that its other times are divided by.
ANCHOR = CodecFigure("figure 5, grid 197", LaunchSetting(197, 64), 44, "shape")
FIGURES = (
    CodecFigure("figure 5, grid 10", LaunchSetting(10, 64), 146, "shape"),
    ANCHOR,
    CodecFigure("figure 5, grid 1024", LaunchSetting(1024, 64), 150, "shape"),
    CodecFigure("figure 12, random", LaunchSetting(2024, 64), 547, "scale"),
    CodecFigure("figure 12, expert", LaunchSetting(EXPERT_BLOCKS * _V100_MULTIPROCESSORS, 128), 178, "scale"),
    CodecFigure("figure 12, Bayesian", LaunchSetting(199, 64), 66, "scale"),
    CodecFigure("figure 12, grid search", None, 56, "scale"),
)


@dataclass(frozen=True, slots=True)
class FigureComparison:
    """A published time and that of a surface. error: relative error of the fitted quantity (a time or a ratio)."""

    figure: CodecFigure
    modelled_ns: int
    error: float


def against_paper(surface: ResponseSurface) -> tuple[FigureComparison, ...]:
    """Compares the seven published times with those of a surface, in the order of `FIGURES`.

    >>> from simgpu.compression.codecs.gpu.response import response_of
    >>> from simgpu import load_node
    >>> for each in against_paper(response_of(load_node("v100").gpu))[3:]:
    ...     print(f"{each.figure.name}: {each.figure.paper_ms} ms, {each.modelled_ns / 1e6:.1f} ms, {each.error:+.1%}")
    figure 12, random: 547 ms, 573.6 ms, +4.9%
    figure 12, expert: 178 ms, 200.6 ms, +12.7%
    figure 12, Bayesian: 66 ms, 70.5 ms, +6.8%
    figure 12, grid search: 56 ms, 43.7 ms, -22.0%
    """
    anchor = _modelled_ns(surface, ANCHOR)
    compared = []
    for figure in FIGURES:
        modelled = _modelled_ns(surface, figure)
        if figure.of == "shape":
            error = (modelled / anchor) / (figure.paper_ms / ANCHOR.paper_ms) - 1
        else:
            error = modelled / (figure.paper_ms * 1e6) - 1
        compared.append(FigureComparison(figure, modelled, error))
    return tuple(compared)


def _modelled_ns(surface: ResponseSurface, figure: CodecFigure) -> int:
    tensors = FIGURE_5 if figure.of == "shape" else FIGURE_12
    if figure.setting is None:
        return int(network_times(surface, "zvc", tensors).min())
    return network_ns(surface, "zvc", tensors, figure.setting)
