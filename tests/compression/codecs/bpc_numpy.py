"""Bit-plane compression with NumPy: the oracle of the compiled functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.elements import Bytes

_PLANES = np.uint64(2**33 - 1)
_ONE = np.uint64(1)
_RAW_BITS = 1024
_RAW_BYTES = 128

#: A plane of which all 31 bits are set.
_ALL_ONES = 2**31 - 1

#: Entries worked on at once, so that what is in between stays in the processor's cache.
_PIECE = 1024


def count_bits(words: NDArray[np.int32], result: NDArray[np.uint16]) -> None:
    """Fills `found` with the bits of each entry, at most 1024.

    words: a row of 32 for each entry.
    """
    for begin in range(0, len(words), _PIECE):
        columns = words[begin : begin + _PIECE].T.astype(np.int64, order="C")
        bits = _first_word_bits(columns[0]) + _planes_bits(columns)
        np.minimum(bits, _RAW_BITS, out=result[begin : begin + _PIECE])


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


def write(words: NDArray[np.int32], sizes: Bytes, out: Bytes) -> None:
    """Fills bytes with the entries, each in as many as it has there: none is zeros, 128 the words themselves."""
    at = 0
    for begin in range(0, len(words), _PIECE):
        rows, taken = words[begin : begin + _PIECE], sizes[begin : begin + _PIECE]
        raw, coded = taken == _RAW_BYTES, (taken > 0) & (taken < _RAW_BYTES)
        of_raw = raw.repeat(taken)
        part = out[at : at + of_raw.size]
        part[of_raw] = rows[raw].view(np.uint8).reshape(-1)
        part[~of_raw] = _codes(rows[coded], taken[coded])
        at += of_raw.size


def _codes(words: NDArray[np.int32], sizes: Bytes) -> Bytes:
    """The codes of entries, each filled with zeros to its size."""
    changes, planes = _planes(words)
    values, lengths = _plane_codes(changes, planes)
    first, first_lengths = _first_codes(words[:, 0].astype(np.int64))
    fill = 8 * sizes.astype(np.int64) - lengths.sum(axis=1) - first_lengths
    values = np.column_stack((first, values, np.zeros(len(words), np.uint64))).reshape(-1)
    lengths = np.column_stack((first_lengths, lengths, fill)).reshape(-1)
    bits_after = np.repeat(np.cumsum(lengths), lengths) - 1 - np.arange(lengths.sum())
    bits = np.repeat(values, lengths) >> bits_after.astype(np.uint64) & _ONE
    return np.packbits(bits.astype(np.bool_))


def _planes(words: NDArray[np.int32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Of each entry what changes in each plane, and the plane itself, the 33rd bit of the differences first."""
    deltas = np.diff(words.astype("<i8"), axis=1).view(np.uint8).reshape(-1, 31, 8)
    bits = np.unpackbits(deltas, axis=2, bitorder="little")[:, :, 32::-1]
    full = np.zeros((len(words), 33, 32), np.uint8)
    full[:, :, :31] = bits.transpose(0, 2, 1)
    planes = np.packbits(full, axis=2, bitorder="little").view("<u4")[:, :, 0]
    changes = planes.copy()
    changes[:, 1:] ^= planes[:, :-1]
    return changes, planes


def _plane_codes(
    changes: NDArray[np.uint32], planes: NDArray[np.uint32]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Code and length for each plane; that of a run of zeros stands at its last, the others' have no bits."""
    zero, index = changes == 0, np.arange(33)
    run = index - np.maximum.accumulate(np.where(zero, -1, index), axis=1)
    is_last = zero.copy()
    is_last[:, :-1] &= ~zero[:, 1:]
    lowest = changes & (~changes + 1)
    place = np.bitwise_count(lowest - 1).astype(np.int64)
    kinds = [zero, changes == _ALL_ONES, planes == 0, changes == lowest, changes == 3 * lowest]
    run_codes = np.where(run == 1, 0b001, (0b01 << 5) + run - 2)
    raw_codes = (1 << 31) + changes.astype(np.int64)
    values = np.select(kinds, [run_codes, 0b00000, 0b00001, (0b00011 << 5) + place, (0b00010 << 5) + place], raw_codes)
    lengths = np.select(kinds, [np.where(is_last, np.where(run == 1, 3, 7), 0), 5, 5, 10, 10], 32)
    return values.astype(np.uint64), lengths


def _first_codes(first: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    lengths = _first_word_bits(first).astype(np.int64)
    prefixes = np.select(
        [lengths == 3, lengths == 7, lengths == 11, lengths == 19], [0, 1 << 4, 2 << 8, 3 << 16], 1 << 32
    )
    widths = np.where(lengths == 33, 32, lengths - 3)
    return (prefixes + (first & (1 << widths) - 1)).astype(np.uint64), lengths


def read(codes: Bytes, sizes: Bytes, words: NDArray[np.int32]) -> int:
    """Fills words from entries that lie one behind the other in so many bytes; the first that is wrong, or -1."""
    at = 0
    for begin in range(0, len(words), _PIECE):
        rows, taken = words[begin : begin + _PIECE], sizes[begin : begin + _PIECE]
        raw, coded = taken == _RAW_BYTES, np.flatnonzero((taken > 0) & (taken < _RAW_BYTES))
        of_raw = raw.repeat(taken)
        part = codes[at : at + of_raw.size]
        rows[taken == 0] = 0
        rows[raw] = part[of_raw].view("<i4").reshape(-1, 32)
        rows[coded], is_wrong = _decoded(part[~of_raw], taken[coded])
        if is_wrong.any():
            return begin + int(coded[is_wrong.argmax()])
        at += of_raw.size
    return -1


def _decoded(codes: Bytes, sizes: Bytes) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The words of entries, and which are none."""
    lines = np.zeros((len(sizes), _RAW_BYTES), np.uint8)
    lines[np.arange(_RAW_BYTES) < sizes[:, np.newaxis]] = codes
    seen = lines.view(">u8").astype(np.uint64)
    first, at = _decoded_first(seen[:, 0])
    changes = np.zeros((len(sizes), 33), np.uint32)
    above, done, ends = np.zeros(len(sizes), np.uint64), np.zeros(len(sizes), np.int64), 8 * sizes.astype(np.int64)
    is_wrong = at > ends
    # All entries take one code each in turn, as long as they have planes to come.
    while (now := np.flatnonzero((done < 33) & ~is_wrong)).size:
        change, run, bits = _decoded_plane(_at(seen[now], at[now]), above[now])
        at[now] += bits
        is_wrong[now] = (change > _ALL_ONES) | (done[now] + run > 33) | (at[now] > ends[now])
        changes[now, done[now]] = change
        above[now] ^= change
        done[now] += run
    used = np.clip(at[:, np.newaxis] - 64 * np.arange(seen.shape[1]), 0, 64)
    is_wrong |= (seen << used.astype(np.uint64)).any(axis=1)
    words, fits = _words(first, np.bitwise_xor.accumulate(changes, axis=1))
    return words, is_wrong | ~fits


def _at(seen: NDArray[np.uint64], at: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The 64 bits from bit `at` of each line."""
    rows, column, shift = np.arange(len(seen)), at >> 6, (at & 63).astype(np.uint64)
    ahead: NDArray[np.uint64] = seen[rows, column] << shift | seen[rows, column + 1] >> (np.uint64(64) - shift)
    return ahead


def _decoded_first(seen: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first words, and the bits of their codes."""
    lengths = np.array([3, 7, 11, 19, 33, 33, 33, 33])[seen >> np.uint64(61)]
    widths = np.where(lengths == 33, 32, lengths - 3)
    prefixes = (lengths - widths).astype(np.uint64)
    # One of no bits has been shifted out altogether.
    return (seen << prefixes).view(np.int64) >> np.minimum(64 - widths, 63) & -(widths > 0).astype(np.int64), lengths


def _decoded_plane(
    seen: NDArray[np.uint64], above: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Of each code what changes in its plane, the planes it is for, and its bits."""
    kind = seen >> np.uint64(59)
    place = seen >> np.uint64(54) & np.uint64(31)
    kinds = [kind >= 16, kind >= 4, kind == 0, kind == 1, kind == 2]
    raw = seen >> np.uint64(32) & np.uint64(_ALL_ONES)
    all_ones, none = np.full_like(seen, _ALL_ONES), np.zeros_like(seen)
    change = np.select(kinds, [raw, none, all_ones, above, np.uint64(3) << place], _ONE << place)
    is_run = (kind >= 8) & (kind < 16)
    run = np.where(is_run, (seen >> np.uint64(57) & np.uint64(31)).astype(np.int64) + 2, 1)
    return change, run, np.select([kind >= 16, is_run, kind >= 4, kind < 2], [32, 7, 3, 5], 10)


def _words(first: NDArray[np.int64], planes: NDArray[np.uint32]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The words, and whether the 33rd bits of their differences agree with the carries out of the other 32."""
    bits = np.unpackbits(planes.view(np.uint8).reshape(-1, 33, 4), axis=2, bitorder="little")[:, :, :31]
    full = np.packbits(bits[:, :0:-1].transpose(0, 2, 1), axis=2, bitorder="little")
    deltas = np.ascontiguousarray(full).view("<u4")[:, :, 0]
    words = np.cumsum(np.column_stack((first.astype(np.uint32), deltas)), axis=1, dtype=np.uint32).view(np.int32)
    return words, ((words[:, 1:] < words[:, :-1]) == bits[:, 0]).all(axis=1)
