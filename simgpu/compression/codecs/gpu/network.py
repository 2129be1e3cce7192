"""What the codec takes for a network: all its tensors encoded and decoded once, as an iteration does."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simgpu.compression.codecs.gpu.response import ResponseSurface
from simgpu.compression.codecs.gpu.setting import LaunchSetting, Whole, all_settings
from simgpu.compression.codecs.gpu.tensors import SparseTensor


def network_ns(surface: ResponseSurface, codec: str, tensors: Iterable[SparseTensor], setting: LaunchSetting) -> int:
    """Nanoseconds to encode and decode every tensor at one launch setting; raises as the surface does."""
    return sum(
        surface.encode_ns(codec, tensor.bytes, tensor.sparsity, setting.grid, setting.threads)
        + surface.decode_ns(codec, tensor.bytes, tensor.sparsity, setting.grid, setting.threads)
        for tensor in tensors
    )


def network_times(surface: ResponseSurface, codec: str, tensors: Iterable[SparseTensor]) -> Whole:
    """The same for each of `all_settings()`, in that order."""
    grids, threads = all_settings()
    total = np.zeros(len(grids), np.int64)
    for tensor in tensors:
        total += surface.encode_times(codec, tensor.bytes, tensor.sparsity, grids, threads)
        total += surface.decode_times(codec, tensor.bytes, tensor.sparsity, grids, threads)
    return total
