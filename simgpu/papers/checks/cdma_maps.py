"""Sizes of feature maps in RLE and zlib, by the assumed pattern of their zeros.

By default sizes are those of the shipped table (`simgpu.compression.codecs.patterns`). For experiments, synthetic maps
of another pattern are compressed by the real codecs. Overlapping maximum pooling is applied to synthetic maps: it
repeats a value wherever two windows share their maximum, which zlib exploits and the table's maps do not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2, prod, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.measure import measure
from simgpu.compression.codecs.pattern_maps import Pattern, field_of
from simgpu.compression.codecs.patterns import load_patterns, modelled_bytes
from simgpu.trace.model import Block, CompressedSize, Phase, Trace
from simgpu.trace.operators import OpClass, op_class

#: Codecs whose sizes depend on the positions of zeros.
CODECS = ("rle", "zlib")
ITEM = 4
_SHARES = (0.0, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
_SIDES = (7, 14, 28, 56)
_CHANNELS = 64
#: Elements of synthetic maps, for enough windows; where images change fastest, rows of a plane, and the minimum of
#: channels that differ.
_ELEMENTS, _ROWS, _FEWEST = 2**16, 4, 8
#: Adjacent images where they change fastest, as in the shipped table.
_IMAGES = 8


class Pool(NamedTuple):
    """Maximum pooling: side of its window, and the stride, both in values."""

    window: int
    stride: int


@dataclass(frozen=True, slots=True)
class ZeroPattern:
    """The assumed positions of zeros.

    channels, length: of the pattern (`simgpu.compression.codecs.pattern_maps.Pattern`), 0 for the fitted ones.
    overlapping: whether overlapping maximum pooling repeats its values.
    """

    channels: float = 0.0
    length: float = 0.0
    overlapping: bool = False

    @property
    def pattern(self) -> Pattern:
        """The pattern of synthetic maps."""
        fitted = load_patterns().pattern
        return Pattern(self.channels or fitted.channels, self.length or fitted.length, fitted.gain)

    @property
    def as_shipped(self) -> bool:
        """Whether the shipped table has all maps except those of overlapping pooling."""
        return not (self.channels or self.length)

    def size(self, block: Block, sparsity: float, codec: str, layout: str, pool: Pool | None = None) -> int:
        """Bytes of a feature map of 4-byte elements in a codec. pool: that writes it, if its windows overlap."""
        is_plane = block.shape is not None and len(block.shape) == 4 and prod(block.shape[2:]) > 1
        pooled = pool if self.overlapping else None
        if not is_plane or (self.as_shipped and pooled is None):
            return modelled_bytes(block.bytes, ITEM, block.shape, codec, sparsity, layout)
        assert block.shape is not None
        side = sqrt(prod(block.shape[2:]))
        nearest = min(_SIDES, key=lambda known: abs(log2(known / side)))
        shares, parts = _curve(self.pattern, nearest, pooled, codec, layout)
        return round(block.bytes * float(np.interp(sparsity, shares, parts)))


@lru_cache(maxsize=256)
def _curve(
    pattern: Pattern, side: int, pool: Pool | None, codec: str, layout: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Ascending shares of zeros, and the compressed share of bytes at each."""
    window, stride = pool or (1, 1)
    source = side * stride + window - stride
    if layout == "chwn":
        rows = min(source, _ROWS * stride + window - stride)
        shape = (_IMAGES, max(_FEWEST, _ELEMENTS // (_IMAGES * rows * source)), rows, source)
    else:
        shape = (max(1, _ELEMENTS // (_CHANNELS * source**2)), _CHANNELS, source, source)
    field = field_of(pattern, shape, source, seed=0)
    points = []
    for share in _SHARES:
        maps = field.maps(share)
        if pool is not None:
            maps = max_pooled(maps, pool)
        (measured,) = measure(maps, [codec], [layout])
        points.append((1 - np.count_nonzero(maps) / maps.size, measured.compressed / measured.bytes))
    shares, parts = zip(*sorted(points), strict=True)
    return shares, parts


def max_pooled(maps: NDArray[Any], pool: Pool) -> NDArray[Any]:
    """Maximum pooling without padding of maps (N, C, H, W).

    >>> max_pooled(np.array([[[[1.0, 5.0, 2.0], [0.0, 3.0, 4.0]]]]), Pool(2, 1))
    array([[[[5., 5.]]]])
    """
    window, stride = pool
    rows, columns = ((side - window) // stride + 1 for side in maps.shape[2:])
    corners = [
        maps[:, :, y : y + stride * (rows - 1) + 1 : stride, x : x + stride * (columns - 1) + 1 : stride]
        for y in range(window)
        for x in range(window)
    ]
    pooled: NDArray[Any] = np.max(corners, axis=0)
    return pooled


def overlapping_pools(trace: Trace) -> dict[str, Pool]:
    """The maximum poolings of forward whose windows overlap, by the block of their result."""
    table, pools = trace.block_by_id, {}
    for kernel in trace.kernels:
        if kernel.phase is not Phase.FORWARD or op_class(kernel.op) is not OpClass.POOLING or "max" not in kernel.op:
            continue
        source, pooled = table[kernel.reads[0]], table[kernel.writes[0]]
        if kernel.flops and source.shape and pooled.shape:
            pool = Pool(round(sqrt(kernel.flops / prod(pooled.shape))), round(source.shape[2] / pooled.shape[2]))
            if pool.window > pool.stride:
                pools[pooled.id] = pool
    return pools


def sized(trace: Trace, zeros: ZeroPattern, codecs: Mapping[str, str]) -> Iterator[tuple[str, int, str, int]]:
    """Block, epoch, codec and compressed bytes of each feature map with known zeros. codecs: each with its layout."""
    table, pools = trace.block_by_id, overlapping_pools(trace)
    for sample in trace.sparsity:
        for codec, layout in codecs.items():
            size = zeros.size(table[sample.block], sample.sparsity, codec, layout, pools.get(sample.block))
            yield sample.block, sample.epoch, codec, size


def with_sizes(trace: Trace, zeros: ZeroPattern) -> Trace:
    """The trace with zlib sizes of a pattern in NCHW; unchanged for the default pattern."""
    if zeros == ZeroPattern():
        return trace
    table, layouts = trace.block_by_id, {"zlib": "nchw"}
    rows = tuple(
        CompressedSize(block, epoch, codec, layouts[codec], table[block].bytes, size, 1)
        for block, epoch, codec, size in sized(trace, zeros, layouts)
    )
    return replace(trace, compressibility=rows)
