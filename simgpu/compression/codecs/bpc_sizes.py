"""How many bits memory-entries take in bit-plane compression, without making their codes.

Memory is cut into entries of 128 bytes: 32 words of 32 bits, little-endian, signed, whatever is kept there. The code
(`simgpu.compression.codecs.bpc`) is one of the first word and one for each of 33 planes; how long a plane's is depends
on whether it is zero, all ones, or has one bit or two neighbouring bits, and whether the plane before the exclusive-or
is zero. All that can be counted in all planes of an entry at once, so none is ever put together: the 31 differences are
gone through once, and the bits of a 64-bit integer stand for the planes.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs import bpc_numpy
from simgpu.compression.codecs.elements import Bytes
from simgpu.errors import InputError

#: Bytes of a memory-entry, and its words.
ENTRY_BYTES = 128
WORDS = 32

#: Bits of an entry whose code is no shorter than the entry: it is kept as it is.
RAW_BITS = 8 * ENTRY_BYTES

#: Bytes from which on the compiled form is asked for sizes: to load it takes about a second, in which NumPy's counts
#: some hundred megabytes.
WORTH_COMPILING = 2**26

#: Bits of an entry that is all zeros, and of no other: a first word of zero (3), and a run of 33 planes (7).
ZERO_BITS = 10


def bytes_of(array: NDArray[Any]) -> Bytes:
    """The bytes of an array in C order, as they lie; a view where the array lies in that order.

    Raises `InputError` for Python objects, which have no bytes of their own.

    >>> bytes_of(np.array([[1, 256]], "<i2")).tolist()
    [1, 0, 0, 1]
    """
    if array.dtype.hasobject:
        what = f"dtype '{array.dtype}' holds Python objects, which memory-entries cannot"
        raise InputError.single("", "dtype", what, "give an array of numbers")
    if not array.nbytes:
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def entry_bits(array: NDArray[Any]) -> NDArray[np.uint16]:
    """Bits of each entry's code, at most `RAW_BITS`, which is an entry that is kept as it is.

    array: of any dtype and shape, its bytes taken as they lie, in C order; what the last entry lacks is zeros.
    Returns ceil(bytes / 128) numbers. Raises `InputError` for Python objects. Source: Kim et al., ISCA 2016.

    >>> entry_bits(np.zeros(40, np.float32)).tolist(), entry_bits(np.arange(32, dtype=np.int32)).tolist()
    ([10, 10], [15])
    """
    raw = bytes_of(array)
    found = np.empty(-(-raw.size // ENTRY_BYTES), np.uint16)
    count_bits = (implementation() if raw.size >= WORTH_COMPILING else bpc_numpy).count_bits
    whole = raw.size // ENTRY_BYTES
    for part, counted in ((raw[: whole * ENTRY_BYTES], found[:whole]), (raw[whole * ENTRY_BYTES :], found[whole:])):
        if counted.size:
            count_bits(words_of(part), counted)
    return found


def words_of(raw: Bytes) -> NDArray[np.int32]:
    """The words of each entry of bytes, a row of 32; a view where the bytes fill the last entry, else a copy."""
    missing = -raw.size % ENTRY_BYTES
    if missing:
        raw = np.concatenate((raw, np.zeros(missing, np.uint8)))
    return raw.view("<i4").reshape(-1, WORDS)


@lru_cache(maxsize=1)
def implementation() -> ModuleType:
    """The compiled one where numba is installed, else NumPy's."""
    try:
        from simgpu.compression.codecs import bpc_numba as found
    except ImportError:
        return bpc_numpy
    return found
