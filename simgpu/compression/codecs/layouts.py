"""The orders in which frameworks keep a batch of feature maps in memory.

N images, C channels, H rows, W columns, the last letter changing fastest: Caffe keeps them as NCHW, cuDNN as NCHW or
NHWC, Neon and cuda-convnet as CHWN (cDMA, Rhu et al., HPCA 2018, section II).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from simgpu.errors import InputError, did_you_mean

#: Which axis of an NCHW array stands where.
LAYOUTS: Mapping[str, tuple[int, int, int, int]] = MappingProxyType(
    {"nchw": (0, 1, 2, 3), "nhwc": (0, 2, 3, 1), "chwn": (1, 2, 3, 0)}
)


def in_layout(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """A view of an array with axes N, C, H, W, its axes in the order of a layout, in which codecs take its elements.

    Raises `InputError` for an unknown layout or an array that has not four axes.

    >>> import numpy as np
    >>> in_layout(np.zeros((16, 3, 32, 48), np.float32), "chwn").shape
    (3, 32, 48, 16)
    """
    if layout not in LAYOUTS:
        raise InputError.single("", "layout", f"unknown layout '{layout}'", did_you_mean(layout, LAYOUTS))
    if array.ndim != 4:
        what = f"shape {array.shape} has {array.ndim} axes, a layout orders four: N, C, H, W"
        raise InputError.single("", "layout", what, "give a 4-D array in the order NCHW, or no layout")
    return array.transpose(LAYOUTS[layout])
