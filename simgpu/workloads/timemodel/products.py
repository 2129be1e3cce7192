"""The time of products of matrices: that of the library's fastest tile and number of parts of the sums.

A product of m x k and k x n computes its result in tiles of x by y values, one on a multiprocessor at a time. With
s parts of the sums and M multiprocessors, each has t = ceil(m / x) ceil(n / y) s / M tiles, and the arithmetic takes

    sqrt(1 + t^2) x  2 x y (k / s) / (rate / M)  x  (1 + h / x + h / y) / (1 + h / 256 + h / 128)

- sqrt(1 + t^2): one tile's time if there are few tiles, t times as long if there are many. The steps between are not
  modelled: libraries avoid them in ways that are not published.
- h / x + h / y: time to load a row of x and a column of y values from the L2 cache, next to their x y multiplications;
  so h is half the rate times the bytes of a value, divided by the cache's bandwidth. `rate` is that of products of
  large matrices, whose tiles have 256 x 128 values.
- Parts are at least 64 deep; a second kernel adds them, which were written and are read in single precision. Sums are
  split no further once every multiprocessor has a tile.

The product takes at least the time of its traffic to and from device memory. Tiles are those of cublasLtMatmulTile_t
(NVIDIA, cuBLAS documentation) up to 256 x 128; the library can use more. Layouts of the operands are not modelled, but
unaligned rows lower the rate that is given here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, sqrt

from simgpu.workloads.timemodel.operation import GemmShape

#: Rows and columns of a tile, or columns and rows.
_TILES = (
    *((8, 8), (8, 16), (8, 32), (8, 64), (16, 16), (16, 32), (32, 32), (32, 64), (32, 128)),
    *((64, 64), (64, 128), (64, 256), (128, 128), (128, 256)),
)
_BOTH_WAYS = tuple(dict.fromkeys(tile for x, y in _TILES for tile in ((x, y), (y, x))))
_LARGEST = (256, 128)
#: Depth of the smallest part of a sum, and bytes of a sum that is written and of one that is read.
_PART, _SUM = 64, 4


@dataclass(frozen=True, slots=True)
class ProductRates:
    """What limits products in one number format on a GPU.

    arithmetic: operations per second of products of large matrices. memory, cache: bytes per second of DRAM and of the
    L2 cache. itemsize: bytes of a value. launch: seconds that one more kernel takes.
    """

    arithmetic: float
    memory: float
    cache: float
    multiprocessors: int
    itemsize: int
    launch: float


@lru_cache(maxsize=4096)
def product_seconds(product: GemmShape, moved: int, rates: ProductRates) -> float:
    """Seconds of a product without the launch of its kernel. moved: bytes to and from device memory.

    >>> rates = ProductRates(14.4e12, 780e9, 3.15e12, multiprocessors=80, itemsize=4, launch=4e-6)
    >>> round(product_seconds(GemmShape(4, 2, 1024), 24_608, rates) * 1e6, 1)  # microseconds: two labels
    2.2
    >>> side = 8192
    >>> round(2e-12 * side**3 / product_seconds(GemmShape(side, side, side), 12 * side**2, rates), 1)  # TFLOP/s
    14.4
    """
    return min(_ways(product, moved, rates))


def _ways(product: GemmShape, moved: int, rates: ProductRates) -> Iterator[float]:
    """Seconds with each tile and number of parts."""
    load = rates.arithmetic / 2 * rates.itemsize / rates.cache
    largest = _LARGEST[0] * _LARGEST[1] / _step(*_LARGEST, load)
    for x, y in _BOTH_WAYS:
        tiles, parts = product.count * ceil(product.m / x) * ceil(product.n / y), 1
        step = 2 * _step(x, y, load) * largest * rates.multiprocessors / rates.arithmetic
        while True:
            depth = max(min(product.k, _PART), product.k / parts)
            arithmetic = step * depth * sqrt(1 + (tiles * parts / rates.multiprocessors) ** 2)
            sums = 0 if parts == 1 else 2 * _SUM * parts * product.count * product.m * product.n
            yield max(arithmetic, (moved + sums) / rates.memory) + (rates.launch if parts > 1 else 0)
            if tiles * parts >= rates.multiprocessors:
                break
            parts *= 2


def _step(x: int, y: int, load: float) -> float:
    """Time of one step of a tile's sums, in multiply-accumulates; `load` is that of loading one value."""
    return x * y + load * (x + y)
