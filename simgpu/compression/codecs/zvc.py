"""Zero-value compression: a bit for each element, and the elements that are not zero.

The format of cDMA (Rhu et al., HPCA 2018, section V-A and figure 8), also that of CSWAP (section IV-E): for every 32
consecutive elements a 32-bit mask, bit 0 for the first, 1 where the element is not zero; behind it those elements in
order. What is left at the end has a whole mask too. So 4 bytes for every 32 elements begun and the width of an element
for each that is not zero: 32x for float32 that is all zero, 3.125% more for float32 without a zero. No compression
window cuts a mask, so the window changes nothing.

Two implementations give the same bytes: NumPy's, and one that numba compiles where it is installed (extra ``fast``).
numba loads with the first array that is encoded or decoded, never for a size, and compiles for each width of elements
anew in every process (about a second); keeping what it compiled needs a writable folder, which an installation may not
have.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import ClassVar

import numpy as np

from simgpu.compression.codecs.base import Codec
from simgpu.compression.codecs.elements import Bits, Bytes
from simgpu.compression.codecs.frame import corrupt

#: Elements of a mask, and its bytes.
MASKED = 32
MASK_BYTES = 4


def zvc_bytes(elements: int, nonzeros: int, itemsize: int) -> int:
    """Size of that many elements of that width, of which that many are not zero.

    >>> zvc_bytes(64, 10, 4), zvc_bytes(33, 33, 1)
    (48, 41)
    """
    return -(-elements // MASKED) * MASK_BYTES + nonzeros * itemsize


class Zvc(Codec):
    """Zero-value compression; see the module."""

    name: ClassVar[str] = "zvc"
    number: ClassVar[int] = 1
    summary: ClassVar[str] = "32-bit mask for 32 elements, then those that are not zero"
    source: ClassVar[str] = "cDMA (Rhu et al., HPCA 2018) section V-A, figure 8"

    def _size(self, bits: Bits) -> int:
        return zvc_bytes(bits.size, int(np.count_nonzero(bits)), bits.itemsize)

    def _stream(self, bits: Bits, reserved: int) -> Bytes:
        stream = np.empty(reserved + self._size(bits), np.uint8)
        _implementation().write(bits, stream[reserved:].view(bits.dtype))
        return stream

    def _read(self, payload: Bytes, bits: Bits) -> None:
        if payload.size % bits.itemsize:
            raise corrupt(self.name, "", f"{payload.size} bytes are no whole number of {bits.itemsize}-byte values")
        fault: int = _implementation().read(np.require(payload.view(bits.dtype), requirements="A"), bits)
        if fault >= 0:
            what = "its mask does not agree with the values that follow and the elements there are"
            raise corrupt(self.name, f"mask {fault}", what)


@lru_cache(maxsize=1)
def _implementation() -> ModuleType:
    """The compiled one where numba is installed, else NumPy's."""
    try:
        from simgpu.compression.codecs import zvc_numba as found
    except ImportError:
        from simgpu.compression.codecs import zvc_numpy

        return zvc_numpy
    return found
