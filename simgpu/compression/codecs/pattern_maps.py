"""Generates synthetic feature maps from a pattern, which determines the positions of zeros and the other values.

A value is positive where a field of random numbers is above a threshold, and zero elsewhere, as after a ReLU. The field
is a sum of normally distributed numbers: one for each position, smoothed by a Gaussian so that neighbours in a plane
are similar (standard deviation 1), and one for each channel, the same in all images, so that some channels are almost
all zeros and others have almost none. The threshold gives the requested sparsity. A positive value is the field's
excess over the threshold times a power of two for each channel, so its mantissa is random to the last bit.

In larger planes, values are similar over larger distances, because pooling shrinks planes: the smoothing length is
proportional to the square root of the side (a fitted exponent was 0.505). Planes larger than the largest in the fit are
smoothed like that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Side of the largest planes in the fit.
LARGEST_SIDE = 32

#: Reach of the smoothing, pixels: the same for all patterns, so that all use the same random numbers.
_REACH = 14


@dataclass(frozen=True, slots=True)
class Pattern:
    """The parameters of a pattern of zeros and magnitudes; see the module.

    channels: standard deviation of the channels' contributions to the field. length: standard deviation of the Gaussian
    in planes of `LARGEST_SIDE` x `LARGEST_SIDE`, pixels. gain: standard deviation of the powers of two.
    """

    channels: float
    length: float
    gain: float


@dataclass(frozen=True, slots=True)
class Field:
    """The random numbers from which feature maps are made: heights (N, C, H, W), and the factor of each channel."""

    heights: NDArray[np.float64]
    gains: NDArray[np.float64]

    def maps(self, sparsity: float, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The feature maps with this share of zeros, rounded to an element; a larger share only adds zeros.

        >>> maps = field_of(Pattern(1.0, 3.0, 1.0), (2, 4, 8, 8), 8, 0).maps(0.75)
        >>> maps.dtype, maps.shape, int(np.count_nonzero(maps))
        (dtype('float32'), (2, 4, 8, 8), 128)
        """
        zeros = round(self.heights.size * sparsity)
        threshold = np.partition(self.heights, zeros - 1, axis=None)[zeros - 1] if zeros else self.heights.min() - 1
        above = np.maximum(self.heights - threshold, 0)
        maps: NDArray[Any] = (above * self.gains).astype(dtype)
        lost = (above > 0) & (maps == 0)  # too small for the number format
        maps[lost] = np.finfo(maps.dtype).smallest_subnormal
        return maps


def field_of(pattern: Pattern, shape: tuple[int, int, int, int], side: int, seed: int) -> Field:
    """Random numbers for maps of shape (N, C, H, W), cut out of planes of `side` x `side`; determined by the seed."""
    images, channels, height, width = shape
    random = np.random.default_rng(seed)
    kernel = _kernel(pattern.length * sqrt(min(side, LARGEST_SIDE) / LARGEST_SIDE))
    noise = random.standard_normal((images, channels, height + 2 * _REACH, width + 2 * _REACH))
    heights = _smoothed(_smoothed(noise, kernel, 2), kernel, 3)
    heights += pattern.channels * _spread(channels, random)
    return Field(heights, np.exp2(np.round(pattern.gain * _spread(channels, random))))


def _spread(channels: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Evenly spaced quantiles of a normal distribution in random order, so that few channels represent many."""
    normal = NormalDist()
    numbers = np.array([normal.inv_cdf((place + 0.5) / channels) for place in range(channels)])
    return random.permutation(numbers).reshape(channels, 1, 1)


def _kernel(deviation: float) -> NDArray[np.float64]:
    """A Gaussian filter that preserves the variance of the smoothed values."""
    weights = np.exp(-0.5 * (np.arange(-_REACH, _REACH + 1) / deviation) ** 2)
    kernel: NDArray[np.float64] = weights / np.sqrt((weights**2).sum())
    return kernel


def _smoothed(values: NDArray[np.float64], kernel: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    length = values.shape[axis] - kernel.size + 1
    result = np.zeros((*values.shape[:axis], length, *values.shape[axis + 1 :]))
    for begin, weight in enumerate(kernel):
        result += weight * values.take(range(begin, begin + length), axis)
    return result
