"""The sizes that compressed memory gives its entries, and how many entries of an array have each.

A memory-entry is 128 bytes, four sectors of 32. Bit-plane compressed it takes the smallest of eight sizes that holds
its code (Buddy Compression, Choukse et al., ISCA 2020, section 3.1); all zeros take none, the metadata say so. These
sizes are optimistic: hardware that cannot pack entries gives each its whole sectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.bpc_sizes import ENTRY_BYTES, RAW_BITS, ZERO_BITS, entry_bits

__all__ = ["ENTRY_BYTES", "ENTRY_SIZES", "SECTORS", "SECTOR_BYTES", "histogram", "size_classes"]

#: Bytes that are read and written together.
SECTOR_BYTES = 32

#: Bytes that an entry can take.
ENTRY_SIZES = (0, 8, 16, 32, 64, 80, 96, 128)

#: Whole sectors that an entry of each size takes.
SECTORS = (0, 1, 1, 1, 2, 3, 3, 4)


def size_classes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """For each entry of an array, which of `ENTRY_SIZES` it takes in bit-plane compression.

    array: of any dtype and shape, its bytes taken as they lie, in C order; what the last entry lacks is zeros.
    Returns ceil(bytes / 128) indices. Raises `InputError` for Python objects. Source: Buddy Compression section 3.1.

    >>> [ENTRY_SIZES[found] for found in size_classes(np.array([0.0] * 32 + [7.0] * 32 + [1.1, 9.9] * 16, np.float32))]
    [0, 8, 32]
    """
    return _CLASS_OF_BITS[entry_bits(array)]


def histogram(classes: NDArray[np.uint8]) -> tuple[int, ...]:
    """How many entries have each size: eight counts, of `ENTRY_SIZES` in order.

    >>> histogram(size_classes(np.zeros(100)))
    (7, 0, 0, 0, 0, 0, 0, 0)
    """
    return tuple(np.bincount(classes, minlength=len(ENTRY_SIZES)).tolist())


def _class_of_bits() -> NDArray[np.uint8]:
    found = np.searchsorted(8 * np.array(ENTRY_SIZES), np.arange(RAW_BITS + 1)).astype(np.uint8)
    found[: ZERO_BITS + 1] = 0
    return found


_CLASS_OF_BITS = _class_of_bits()
