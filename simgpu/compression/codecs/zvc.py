"""Zero-value compression: one bit for each element, and the nonzero elements.

The format of cDMA (Rhu et al., HPCA 2018, section V-A and figure 8), also that of CSWAP (section IV-E): for every 32
consecutive elements a 32-bit mask, bit 0 for the first element and 1 for a nonzero one, followed by the nonzero
elements in order. A shorter group at the end has a full mask too. So the size is 4 bytes per group of 32 elements, and
the nonzero elements: float32 zeros are compressed 32 times, and float32 without zeros takes 3.125% more. No group
crosses the border of a compression window, so the window has no effect.

Compiled functions read and write streams in *units* of an element's width, one, two or four per mask; computing the
size does not use them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar

import numpy as np

from simgpu.compiling import compiled
from simgpu.compression.codecs.base import Codec
from simgpu.compression.codecs.elements import Bits, Bytes, read_only
from simgpu.compression.codecs.frame import corrupt

#: Number of elements per mask, and bytes of a mask.
MASKED = 32
MASK_BYTES = 4

#: Indices are unsigned: a signed index would be compared with zero at every use, because negative ones count from the
#: end.
_Place = np.uint64
_Mask = np.uint32


def zvc_bytes(elements: int, nonzeros: int, itemsize: int) -> int:
    """Compressed size in bytes of an array with `elements` elements of `itemsize` bytes, `nonzeros` of them nonzero.

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
        _compiled()[0](read_only(bits), stream[reserved:].view(bits.dtype))
        return stream

    def _read(self, payload: Bytes, bits: Bits) -> None:
        if payload.size % bits.itemsize:
            raise corrupt(self.name, "", f"{payload.size} bytes are not a multiple of {bits.itemsize}-byte values")
        fault = _compiled()[1](read_only(np.require(payload.view(bits.dtype), requirements="A")), bits)
        if fault >= 0:
            what = "its mask does not match the number of values and elements"
            raise corrupt(self.name, f"mask {fault}", what)


def _write(bits: Bits, units: Bits) -> None:
    """Fills `units`, which has the right size, with the compressed elements."""
    mask_units = MASK_BYTES // bits.itemsize
    last = (bits.size - 1) // MASKED * MASKED
    at = _Place(0)
    # To avoid branches, every element, zero or not, is written at the position of the next nonzero one; another mask
    # follows, so the last write is within bounds.
    for begin in range(0, last, MASKED):
        place = at
        at += _Place(mask_units)
        mask = _Mask(0)
        for index in range(MASKED):
            value = bits[_Place(begin + index)]
            units[at] = value
            retained = _Mask(value != 0)
            at += _Place(retained)
            mask |= retained << _Mask(index)
        for part in range(mask_units):
            units[place + _Place(part)] = mask >> _Mask(part * MASKED // mask_units)
    if bits.size:
        place = at
        at += _Place(mask_units)
        mask = _Mask(0)
        for index in range(bits.size - last):
            if bits[last + index] != 0:
                units[at] = bits[last + index]
                at += _Place(1)
                mask |= _Mask(1) << _Mask(index)
        for part in range(mask_units):
            units[place + _Place(part)] = mask >> _Mask(part * MASKED // mask_units)


def _read(units: Bits, bits: Bits) -> int:
    """Fills `bits` from the compressed elements; returns the index of the first wrong mask, or -1."""
    mask_units = MASK_BYTES // bits.itemsize
    last = (bits.size - 1) // MASKED * MASKED
    safe = _Place(max(units.size - mask_units - MASKED, 0))
    size = _Place(units.size)
    at = _Place(0)
    begin = 0
    # While a full mask and 32 values certainly follow, no bounds checks are needed.
    while begin < last and at < safe:
        mask = _Mask(0)
        for part in range(mask_units):
            mask |= _Mask(units[at + _Place(part)]) << _Mask(part * MASKED // mask_units)
        at += _Place(mask_units)
        for index in range(MASKED):
            is_set = (mask >> _Mask(index)) & _Mask(1)
            bits[_Place(begin + index)] = units[at] * is_set
            at += _Place(is_set)
        begin += MASKED
    while begin < bits.size:
        if at + _Place(mask_units) > size:
            return begin // MASKED
        mask = _Mask(0)
        for part in range(mask_units):
            mask |= _Mask(units[at + _Place(part)]) << _Mask(part * MASKED // mask_units)
        at += _Place(mask_units)
        for index in range(MASKED):
            is_set = (mask >> _Mask(index)) & _Mask(1)
            if is_set and (at >= size or begin + index >= bits.size):
                return begin // MASKED
            if begin + index < bits.size:
                bits[begin + index] = units[at] if is_set else 0
            at += _Place(is_set)
        begin += MASKED
    return -1 if at == size else max(last // MASKED, 0)


@cache
def _compiled() -> tuple[Callable[[Bits, Bits], None], Callable[[Bits, Bits], int]]:
    return compiled(_write), compiled(_read)
