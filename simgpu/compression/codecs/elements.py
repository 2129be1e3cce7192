"""Converts arrays to the bit patterns of their elements, which codecs compress.

Codecs compare bit patterns, so -0.0 is not zero, and every NaN keeps its payload.

NumPy has no bfloat16: such an array has either the type ``ml_dtypes.bfloat16`` (that package need not be installed) or,
by simgpu's convention, its bit patterns as uint16.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import InputError

Scalar = TypeVar("Scalar", bound=np.generic)

#: Bit patterns in memory order, one dimension.
Bits = NDArray[np.unsignedinteger[Any]]

#: Bytes, the input and output of codecs.
Bytes = NDArray[np.uint8]

#: The format of an array's elements, by the name of its NumPy type.
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "float32": "float32",
        "float16": "float16",
        "bfloat16": "bfloat16",
        "uint16": "bfloat16",
        "int8": "int8",
        "uint8": "uint8",
    }
)


def format_of(dtype: np.dtype[Any]) -> str:
    """The format of the elements: float32, float16, bfloat16, int8 or uint8.

    Raises `InputError` for any other format, and for a byte order other than this machine's.

    >>> format_of(np.dtype(np.float16)), format_of(np.dtype(np.uint16))
    ('float16', 'bfloat16')
    """
    name = FORMATS.get(dtype.name)
    if name is None:
        known = ", ".join(dict.fromkeys(FORMATS.values()))
        remedy = f"codecs support {known} (bfloat16 also as its bit patterns in uint16)"
        raise InputError.single("", "dtype", f"codecs are not applicable to dtype '{dtype}'", remedy)
    if not dtype.isnative:
        remedy = "convert it first: array.astype(array.dtype.newbyteorder('='))"
        raise InputError.single("", "dtype", f"the byte order of dtype '{dtype.str}' is not this machine's", remedy)
    return name


def bits_of(array: NDArray[Any]) -> Bits:
    """The elements as unsigned integers of their width, in C order; a view where the array lies in that order.

    Raises `InputError` as `format_of`.

    >>> bits_of(np.array([0.0, -0.0], np.float32)).tolist()
    [0, 2147483648]
    """
    format_of(array.dtype)
    bits: Bits = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    return bits


def sparsity_of(bits: Bits) -> float:
    """Share of elements with all bits zero; 0 for none at all.

    >>> sparsity_of(bits_of(np.array([0.0, -0.0, 1.0, 0.0], np.float32)))
    0.5
    """
    return 1 - int(np.count_nonzero(bits)) / bits.size if bits.size else 0.0


def read_only(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A view that refuses writes: numba compiles a function once more for arrays that may be written.

    >>> read_only(np.zeros(2)).flags.writeable
    False
    """
    view = array.view()
    view.flags.writeable = False
    return view
