"""Memory-entries of 128 bytes: the bits of their bit-plane codes, and their sizes in compressed memory.

An entry is 32 words of 32 bits, little-endian and signed, in four sectors of 32 bytes. Compressed
(`simgpu.compression.codecs.bpc`), it takes the smallest of eight sizes that fits its code (Buddy Compression, Choukse
et al., ISCA 2020, section 3.1); an entry of zeros takes no bytes, because the metadata identify it. These sizes are
optimistic: hardware that cannot pack entries rounds each up to sectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.elements import Bytes, read_only
from simgpu.errors import InputError

#: Bytes and words of a memory-entry.
ENTRY_BYTES = 128
WORDS = 32

#: Bits of an entry that is stored uncompressed, because its code is not shorter.
RAW_BITS = 8 * ENTRY_BYTES

#: Bits of an entry that is all zeros: a first word of zero (3), and a run of 33 planes (7).
ZERO_BITS = 10

#: Bytes of a sector, the smallest unit that is read or written.
SECTOR_BYTES = 32

#: Possible compressed sizes of an entry, bytes.
ENTRY_SIZES = (0, 8, 16, 32, 64, 80, 96, 128)

#: Number of sectors that an entry of each size takes.
SECTORS = (0, 1, 1, 1, 2, 3, 3, 4)


def size_classes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """For each entry of an array, the index in `ENTRY_SIZES` of its size in bit-plane compression.

    array: of any dtype and shape; its bytes in memory, in C order; the last entry is padded with zeros. Returns
    ceil(bytes / 128) indices. Raises `InputError` for Python objects. Source: Buddy Compression section 3.1.

    >>> [ENTRY_SIZES[size] for size in size_classes(np.array([0.0] * 32 + [7.0] * 32 + [1.1, 9.9] * 16, np.float32))]
    [0, 8, 32]
    """
    return _CLASS_OF_BITS[entry_bits(array)]


def entry_bits(array: NDArray[Any]) -> NDArray[np.uint16]:
    """Bits of each entry's code; `RAW_BITS` for an entry that is stored uncompressed.

    array: of any dtype and shape, its bytes in C order; the last entry is padded with zeros.
    Returns ceil(bytes / 128) numbers. Raises `InputError` for Python objects. Source: Kim et al., ISCA 2016.

    >>> entry_bits(np.zeros(40, np.float32)).tolist(), entry_bits(np.arange(32, dtype=np.int32)).tolist()
    ([10, 10], [15])
    """
    from simgpu.compression.codecs import bpc_code

    raw = bytes_of(array)
    bits = np.empty(-(-raw.size // ENTRY_BYTES), np.uint16)
    full = raw.size // ENTRY_BYTES
    # Only the last entry is copied, to pad it.
    for part, counted in ((raw[: full * ENTRY_BYTES], bits[:full]), (raw[full * ENTRY_BYTES :], bits[full:])):
        if counted.size:
            bpc_code.count_bits(words_of(part), counted)
    return bits


def bytes_of(array: NDArray[Any]) -> Bytes:
    """The bytes of an array in C order; a view if the array is stored in that order, else a copy.

    Raises `InputError` for Python objects, which have no bytes of their own.

    >>> bytes_of(np.array([[1, 256]], "<i2")).tolist()
    [1, 0, 0, 1]
    """
    if array.dtype.hasobject:
        what = f"dtype '{array.dtype}' contains Python objects, which have no memory-entries"
        raise InputError.single("", "dtype", what, "give an array of numbers")
    if not array.nbytes:
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def words_of(raw: Bytes) -> NDArray[np.int32]:
    """The words of each entry to read, shape (entries, 32); a view if the bytes fill the last entry, else a copy."""
    missing = -raw.size % ENTRY_BYTES
    if missing:
        raw = np.concatenate((raw, np.zeros(missing, np.uint8)))
    return read_only(raw.view("<i4").reshape(-1, WORDS))


def histogram(classes: NDArray[np.uint8]) -> tuple[int, ...]:
    """Number of entries of each of `ENTRY_SIZES`, in that order. classes: indices from `size_classes`.

    >>> histogram(size_classes(np.zeros(100)))
    (7, 0, 0, 0, 0, 0, 0, 0)
    """
    return tuple(np.bincount(classes, minlength=len(ENTRY_SIZES)).tolist())


def _class_of_bits() -> NDArray[np.uint8]:
    result = np.searchsorted(8 * np.array(ENTRY_SIZES), np.arange(RAW_BITS + 1)).astype(np.uint8)
    result[: ZERO_BITS + 1] = 0
    return result


_CLASS_OF_BITS = _class_of_bits()
