"""Zero-value compression with NumPy: the oracle of the compiled functions.

Streams are taken in *units* of an element's width, of which a mask has one, two or four.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.elements import Bits

_MASKED = 32
_MASK_BYTES = 4

#: Masks worked on at once, so that what is in between stays in the processor's cache.
_PIECE = 2048


def write(bits: Bits, units: Bits) -> None:
    """Fills `units`, which has the right size, with the compressed elements."""
    mask_units = _MASK_BYTES // bits.itemsize
    lines = np.zeros((_PIECE, mask_units + _MASKED), bits.dtype)
    retained = np.ones(lines.shape, np.bool_)
    at = 0
    for begin in range(0, bits.size, _PIECE * _MASKED):
        part = bits[begin : begin + _PIECE * _MASKED]
        used = -(-part.size // _MASKED)
        if part.size < lines[:used, mask_units:].size:  # what is left at the end
            part = np.concatenate((part, np.zeros(used * _MASKED - part.size, part.dtype)))
        values = part.reshape(used, _MASKED)
        lines[:used, mask_units:] = values
        np.not_equal(values, 0, out=retained[:used, mask_units:])
        masks = np.packbits(retained[:used, mask_units:], axis=1, bitorder="little")
        lines[:used, :mask_units] = masks.view(bits.dtype)
        places = np.flatnonzero(retained[:used])
        lines.take(places, out=units[at : at + places.size], mode="clip")  # without a mode it would go by a copy
        at += places.size


def read(units: Bits, bits: Bits) -> int:
    """Fills `bits` from the compressed elements; the first mask that is wrong, -1 where all agree."""
    mask_units = _MASK_BYTES // bits.itemsize
    begins, fault = _mask_places(units, -(-bits.size // _MASKED), mask_units)
    if fault >= 0:
        return fault
    spread = np.arange(mask_units)
    for first in range(0, begins.size - 1, _PIECE):
        places = begins[first : first + _PIECE + 1]
        masks = units[places[:-1, None] + spread].view(np.uint8)
        given = np.unpackbits(masks, axis=1, bitorder="little")
        part = bits[first * _MASKED : (first + _PIECE) * _MASKED]
        if given.size > part.size and given.reshape(-1)[part.size :].any():
            return int(begins.size) - 2
        retained = np.ones((places.size - 1, mask_units + _MASKED), np.bool_)
        retained[:, mask_units:] = given
        lines = np.zeros(retained.shape, bits.dtype)
        lines.reshape(-1)[np.flatnonzero(retained)] = units[places[0] : places[-1]]
        part[:] = lines[:, mask_units:].reshape(-1)[: part.size]
    return -1


def _mask_places(units: Bits, masks: int, mask_units: int) -> tuple[NDArray[np.int64], int]:
    """Where each mask begins and, last, where the stream ends; and the first mask that is wrong, or -1.

    A mask begins where the values of the one before it end, so this is a walk, not a vector operation.
    """
    ones = np.bitwise_count(units)
    beginnings = max(units.size - mask_units + 1, 0)
    length = np.full(beginnings, mask_units, np.uint8)
    for shift in range(mask_units):
        length += ones[shift : shift + beginnings]
    lengths, at = length.tobytes(), 0
    places = np.zeros(masks + 1, np.int64)
    for mask in range(masks):
        if at + mask_units > units.size:
            return places, mask
        at += lengths[at]
        if at > units.size:
            return places, mask
        places[mask + 1] = at
    return places, -1 if at == units.size else max(masks - 1, 0)
