"""Compiled functions that encode and decode bit-plane compression, entry by entry. Imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.compiling import compiled
from simgpu.compression.codecs.elements import Bytes

# An operation on a signed and an unsigned number would give a float, so all operations on planes and codes are
# unsigned.
_U = np.uint64
_0, _1, _2, _3, _5, _7, _31, _32, _63 = map(_U, (0, 1, 2, 3, 5, 7, 31, 32, 63))
_WORD = _U(2**32 - 1)
_PLANES = _U(2**33 - 1)
_ALL_ONES = _U(2**31 - 1)
_RAW_BITS = 1024
_RAW_BYTES = 128

#: For `_ones`: every second bit, two of four, four of eight, one of eight.
_ODD, _PAIRS, _NIBBLES, _BYTES = (
    _U(number) for number in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F, 0x0101010101010101)
)


@compiled
def _ones(planes: Any) -> Any:
    """Number of set bits."""
    planes -= planes >> _1 & _ODD
    planes = (planes & _PAIRS) + (planes >> _2 & _PAIRS)
    planes = planes + (planes >> _U(4)) & _NIBBLES
    return np.int64(planes * _BYTES >> _U(56))


@compiled
def count_bits(words: NDArray[np.int32], entry_bits: NDArray[np.uint16]) -> None:
    """Fills `entry_bits` with the size of each entry's code in bits, at most 1024. words: shape (entries, 32)."""
    for entry in range(words.shape[0]):
        before = np.int64(words[entry, 0])
        folded = before ^ (before >> 63)
        bits = 3 if before == 0 else 7 if folded < 8 else 11 if folded < 128 else 19 if folded < 32768 else 33
        # Bit k of each of these refers to plane k: at least one, two or three ones; two neighbouring ones; all ones;
        # any one in the plane before the exclusive-or.
        once = twice = thrice = neighbours = any_before = last = _0
        all_ones = _PLANES
        for index in range(1, 32):
            word = np.int64(words[entry, index])
            delta = _U(word - before) & _PLANES
            before = word
            change = delta ^ (delta >> _1)
            any_before |= delta
            all_ones &= change
            neighbours |= change & last
            last = change
            thrice |= twice & change
            twice |= once & change
            once |= change
        five = once & (all_ones | ~any_before)
        ten = (once & ~twice | neighbours & twice & ~thrice) & ~five
        zero = ~once & _PLANES
        runs = zero & ~(zero << _1)
        of_one = runs & ~(zero >> _1)
        bits += 7 * _ones(runs) - 4 * _ones(of_one) + 32 * _ones(once) - 27 * _ones(five) - 22 * _ones(ten)
        entry_bits[entry] = min(bits, _RAW_BITS)


@compiled
def _transpose(rows: Any) -> None:
    """Exchanges bit i of row j with bit j of row i, 32 rows of 32 bits: halves, then quarters, and so on."""
    width, mask = 16, _U(0x0000FFFF)
    while width:
        shift = _U(width)
        for row in range(32):
            if not row & width:
                crossed = ((rows[row] >> shift) ^ rows[row | width]) & mask
                rows[row | width] ^= crossed
                rows[row] ^= crossed << shift
        width >>= 1
        mask ^= mask << _U(width)


@compiled
def _put(out: Any, at: Any, value: Any, bits: Any) -> None:
    """Writes the lowest `bits` bits of a value at bit position `at`; the output must be zero from there on."""
    free = _U(64) - (at & _7) - bits
    value <<= free
    byte = at >> _3
    shift = _U(64)
    while value:
        shift -= _U(8)
        out[byte] |= np.uint8(value >> shift)
        value &= (_1 << shift) - _1
        byte += _1


@compiled
def _put_first(out: Any, word: Any) -> Any:
    """Writes the code of the first word; returns its number of bits."""
    folded = word ^ (word >> 63)
    bits = _U(word) & _WORD
    if word == 0:
        return _3
    if folded < 1 << 3:
        _put(out, _0, _1 << _U(4) | bits & _U(0xF), _7)
        return _7
    if folded < 1 << 7:
        _put(out, _0, _2 << _U(8) | bits & _U(0xFF), _U(11))
        return _U(11)
    if folded < 1 << 15:
        _put(out, _0, _3 << _U(16) | bits & _U(0xFFFF), _U(19))
        return _U(19)
    _put(out, _0, _1 << _32 | bits, _U(33))
    return _U(33)


@compiled
def _put_plane(out: Any, at: Any, plane: Any, change: Any) -> Any:
    """Writes the code of a nonzero change; returns the bit position after it."""
    others = change & (change - _1)
    lowest = change ^ others
    if change == _ALL_ONES or plane == _0:
        _put(out, at, _U(plane == _0 and change != _ALL_ONES), _5)
        return at + _5
    if others == _0 or others == lowest << _1:
        _put(out, at, _U(3 if others == _0 else 2) << _5 | _U(_ones(lowest - _1)), _U(10))
        return at + _U(10)
    _put(out, at, _1 << _31 | change, _32)
    return at + _32


@compiled
def _put_run(out: Any, at: Any, zeros: Any) -> Any:
    """Writes the code of `zeros` unchanged planes; returns the bit position after it."""
    if zeros == _0:
        return at
    if zeros == _1:
        _put(out, at, _1, _3)
        return at + _3
    _put(out, at, _1 << _5 | (zeros - _2), _7)
    return at + _7


@compiled
def write(words: NDArray[np.int32], sizes: Bytes, out: Bytes) -> None:
    """Writes the entries into `out`, each in its size in bytes: 0 for zeros, 128 for the uncompressed words."""
    planes = np.empty(33, np.uint64)
    begin = 0
    for entry in range(words.shape[0]):
        code = out[begin : begin + sizes[entry]]
        begin += sizes[entry]
        if sizes[entry] == _RAW_BYTES:
            for index in range(32):
                for byte in range(4):
                    code[4 * index + byte] = words[entry, index] >> 8 * byte
        elif sizes[entry]:
            code[:] = 0
            planes[31:] = 0
            for index in range(31):
                delta = _U(np.int64(words[entry, index + 1]) - np.int64(words[entry, index]))
                planes[index] = delta & _WORD
                planes[32] |= (delta >> _32 & _1) << _U(index)
            _transpose(planes)
            at, zeros, above = _put_first(code, np.int64(words[entry, 0])), _0, _0
            for index in range(32, -1, -1):
                plane = planes[index]
                if plane == above:
                    zeros += _1
                else:
                    at = _put_plane(code, _put_run(code, at, zeros), plane, plane ^ above)
                    zeros = _0
                above = plane
            _put_run(code, at, zeros)


@compiled
def _seen(code: Any, at: Any) -> Any:
    """At least 33 bits from bit `at` on, as the highest bits of 64; zeros after the end of the code."""
    seen = _0
    shift = _U(64)
    byte = at >> _3
    while shift > _U(24) and byte < _U(code.size):
        shift -= _U(8)
        seen |= _U(code[byte]) << shift
        byte += _1
    return seen << (at & _7)


@compiled
def _first(seen: Any) -> tuple[Any, Any]:
    """The first word, and the number of bits of its code."""
    if seen >> _63:
        return np.int64(np.int32(seen >> _31 & _WORD)), _U(33)
    kind = seen >> _U(61)
    if kind == _0:
        return np.int64(0), _3
    width = _2 << kind
    return np.int64(seen << _3) >> np.int64(_U(64) - width), _3 + width


@compiled
def _next(seen: Any, above: Any) -> tuple[Any, Any, Any]:
    """The next code: the change that it gives, the number of planes that it covers, and its number of bits."""
    five = seen >> _U(59)
    if five >= _U(16):
        return seen >> _32 & _ALL_ONES, _1, _32
    if five >= _U(8):
        return _0, (seen >> _U(57) & _31) + _2, _7
    if five >= _U(4):
        return _0, _1, _3
    if five < _2:
        return (_ALL_ONES if five == _0 else above), _1, _5
    return (_3 if five == _2 else _1) << (seen >> _U(54) & _31), _1, _U(10)


@compiled
def _decode(code: Any, planes: Any, words: Any) -> bool:
    """Fills the words of an entry; returns whether its code is valid."""
    word, at = _first(_seen(code, _0))
    done, above, end = _0, _0, _U(8 * code.size)
    while done < _U(33) and at <= end:
        change, run, bits = _next(_seen(code, at), above)
        if change > _ALL_ONES or done + run > _U(33):
            return False
        above ^= change
        for _ in range(run):
            planes[_32 - done] = above
            done += _1
        at += bits
    if at > end:
        return False
    while at < end:
        if _seen(code, at):
            return False
        at += _U(32)
    signs = planes[32]
    _transpose(planes)
    words[0] = word
    for index in range(31):
        # The difference has 33 bits; the last is its carry.
        after = np.int64(np.int32(_U(word) + planes[index] & _WORD))
        if _U(after < word) != signs >> _U(index) & _1:
            return False
        word = after
        words[index + 1] = word
    return True


@compiled
def read(codes: Bytes, sizes: Bytes, words: NDArray[np.int32]) -> int:
    """Fills words from consecutive entries of these sizes; returns the first invalid entry, or -1."""
    planes = np.empty(33, np.uint64)
    begin = 0
    for entry in range(words.shape[0]):
        code = codes[begin : begin + sizes[entry]]
        begin += sizes[entry]
        if sizes[entry] == 0:
            words[entry] = 0
        elif sizes[entry] == _RAW_BYTES:
            for index in range(32):
                word = _0
                for byte in range(4):
                    word |= _U(code[4 * index + byte]) << _U(8 * byte)
                words[entry, index] = np.int32(word)
        elif not _decode(code, planes, words[entry]):
            return entry
    return -1
