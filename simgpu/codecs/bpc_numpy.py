"""Bit-plane compression with NumPy: what works everywhere, and what the compiled form is proved against.

Does not live here: the format (`simgpu.codecs.bpc`), or what is counted (`simgpu.codecs.bpc_sizes`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PLANES = np.uint64(2**33 - 1)
_ONE = np.uint64(1)
_RAW_BITS = 1024

#: Entries worked on at once, so that what is in between stays in the processor's cache.
_PIECE = 4096


def count_bits(words: NDArray[np.int32], found: NDArray[np.uint16]) -> None:
    """Fills `found` with the bits of each entry, at most 1024.

    words: a row of 32 for each entry.
    """
    for begin in range(0, len(words), _PIECE):
        columns = words[begin : begin + _PIECE].T.astype(np.int64, order="C")
        bits = _first_word_bits(columns[0]) + _planes_bits(columns)
        np.minimum(bits, _RAW_BITS, out=found[begin : begin + _PIECE])


def _first_word_bits(first: NDArray[np.int64]) -> NDArray[np.uint16]:
    folded = first ^ (first >> 63)  # a negative one has as many bits as the number before its opposite
    fits = [first == 0, folded < 1 << 3, folded < 1 << 7, folded < 1 << 15]
    return np.select(fits, [3, 7, 11, 19], 33).astype(np.uint16)


def _planes_bits(columns: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Bits of the 33 planes together; bit k of a number here is about plane k of an entry."""
    deltas = (columns[1:] - columns[:-1]).view(np.uint64)
    deltas &= _PLANES
    changes = deltas >> _ONE
    changes ^= deltas
    once, twice, thrice = _at_least(changes)
    all_ones = np.bitwise_and.reduce(changes)
    before_zero = ~np.bitwise_or.reduce(deltas)
    neighbours = np.bitwise_or.reduce(changes[1:] & changes[:-1])
    five = once & (all_ones | before_zero)
    ten = (once & ~twice | neighbours & twice & ~thrice) & ~five
    zero = ~once & _PLANES
    runs = zero & ~(zero << _ONE)
    of_one = runs & ~(zero >> _ONE)
    return 7 * _ones(runs) - 4 * _ones(of_one) + 32 * _ones(once) - 27 * _ones(five) - 22 * _ones(ten)


def _at_least(changes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Planes with at least one, two, and three ones."""
    once, twice, thrice, both = np.zeros((4, changes.shape[1]), np.uint64)
    for change in changes:
        thrice |= np.bitwise_and(twice, change, out=both)
        twice |= np.bitwise_and(once, change, out=both)
        once |= change
    return once, twice, thrice


def _ones(planes: NDArray[np.uint64]) -> NDArray[np.uint16]:
    return np.bitwise_count(planes).astype(np.uint16)
