"""Whose habits with memory a modelled iteration follows.

Lives here: the choice. Does not live here: what it changes (`pointwise` and `pooling_and_norm`).
"""

from __future__ import annotations

from enum import StrEnum


class Framework(StrEnum):
    """PyTorch's, or those of the frameworks that call cuDNN for every layer, as Caffe and Torch7 do with it.

    cuDNN needs no indices of the maxima: its pooling saves input and result. And where a ReLU is in place, so is its
    gradient, unless another layer still needs what it would rewrite. PyTorch notes an int64 index for each maximum and
    gives each gradient of a ReLU a block of its own.
    """

    PYTORCH = "pytorch"
    CUDNN = "cudnn"
