"""Zero-value compression, compiled by numba: one pass over the elements.

Streams are taken in *units* of an element's width, of which a mask has one, two or four. Importing this needs numba
(extra ``fast``).
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np

from simgpu.compression.codecs.elements import Bits

_MASKED = 32
_MASK_BYTES = 4

#: Places are unsigned, since a signed one is compared with zero at every use: Python counts negative ones from the end.
_Place = np.uint64
_Mask = np.uint32


def _write(bits: Bits, units: Bits) -> None:
    mask_units = _MASK_BYTES // bits.itemsize
    last = (bits.size - 1) // _MASKED * _MASKED
    at = _Place(0)
    # Each element is written where the next kept one belongs, kept or not, so that nothing branches: another mask
    # follows, so there is room for the last.
    for begin in range(0, last, _MASKED):
        place = at
        at += _Place(mask_units)
        mask = _Mask(0)
        for index in range(_MASKED):
            value = bits[_Place(begin + index)]
            units[at] = value
            kept = _Mask(value != 0)
            at += _Place(kept)
            mask |= kept << _Mask(index)
        for part in range(mask_units):
            units[place + _Place(part)] = mask >> _Mask(part * _MASKED // mask_units)
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
            units[place + _Place(part)] = mask >> _Mask(part * _MASKED // mask_units)


def _read(units: Bits, bits: Bits) -> int:
    mask_units = _MASK_BYTES // bits.itemsize
    last = (bits.size - 1) // _MASKED * _MASKED
    safe = _Place(max(units.size - mask_units - _MASKED, 0))
    size = _Place(units.size)
    at = _Place(0)
    begin = 0
    # While a whole mask and 32 values are surely there, nothing needs to be looked after.
    while begin < last and at < safe:
        mask = _Mask(0)
        for part in range(mask_units):
            mask |= _Mask(units[at + _Place(part)]) << _Mask(part * _MASKED // mask_units)
        at += _Place(mask_units)
        for index in range(_MASKED):
            given = (mask >> _Mask(index)) & _Mask(1)
            bits[_Place(begin + index)] = units[at] * given
            at += _Place(given)
        begin += _MASKED
    while begin < bits.size:
        if at + _Place(mask_units) > size:
            return begin // _MASKED
        mask = _Mask(0)
        for part in range(mask_units):
            mask |= _Mask(units[at + _Place(part)]) << _Mask(part * _MASKED // mask_units)
        at += _Place(mask_units)
        for index in range(_MASKED):
            given = (mask >> _Mask(index)) & _Mask(1)
            if given and (at >= size or begin + index >= bits.size):
                return begin // _MASKED
            if begin + index < bits.size:
                bits[begin + index] = units[at] if given else 0
            at += _Place(given)
        begin += _MASKED
    return -1 if at == size else max(last // _MASKED, 0)


#: Fills `units`, which has the right size, with the compressed elements.
write: Callable[[Bits, Bits], None] = numba.njit(_write)

#: Fills `bits` from the compressed elements; the first mask that is wrong, -1 where all agree.
read: Callable[[Bits, Bits], int] = numba.njit(_read)
