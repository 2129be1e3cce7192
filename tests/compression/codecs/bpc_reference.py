"""Bit-plane compression in plain Python, one plane after the other, bits as text: slow and obvious.

An entry comes as its 128 bytes; its code is text of zeros and ones, in the order in which they are written.
"""

from __future__ import annotations

import struct
from itertools import pairwise


def planes(entry: bytes) -> list[tuple[str, str]]:
    """From the 33rd bit of the differences down: the plane, and what it changes in the one above; first bit last."""
    words = struct.unpack("<32i", entry)
    deltas = [after - before for before, after in pairwise(words)]
    result, above = [], "0" * 31
    for bit in range(32, -1, -1):
        plane = "".join(str(delta >> bit & 1) for delta in reversed(deltas))
        change = "".join("1" if one != other else "0" for one, other in zip(plane, above, strict=True))
        result.append((plane, change))
        above = plane
    return result


def first_word(word: int) -> str:
    if word == 0:
        return "000"
    for prefix, width in (("001", 4), ("010", 8), ("011", 16)):
        if -(2 ** (width - 1)) <= word < 2 ** (width - 1):
            return prefix + binary(word % 2**width, width)
    return "1" + binary(word % 2**32, 32)


def code(entry: bytes) -> str:
    """All of it, also where it is longer than the entry."""
    out, zeros = first_word(struct.unpack_from("<i", entry)[0]), 0
    for plane, change in planes(entry):
        if "1" not in change:
            zeros += 1
            continue
        out += run(zeros) + one_plane(plane, change)
        zeros = 0
    return out + run(zeros)


def run(zeros: int) -> str:
    if zeros == 0:
        return ""
    return "001" if zeros == 1 else "01" + binary(zeros - 2, 5)


def one_plane(plane: str, change: str) -> str:
    if "0" not in change:
        return "00000"
    if "1" not in plane:
        return "00001"
    lowest = change[::-1].index("1")
    if change.count("1") == 1:
        return "00011" + binary(lowest, 5)
    if change.count("1") == 2 and "11" in change:
        return "00010" + binary(lowest, 5)
    return "1" + change


def binary(number: int, width: int) -> str:
    return format(number, f"0{width}b")


def entry(code: str) -> bytes:
    """The entry that has this code; anything after it is passed over."""
    at = 0

    def take(width: int) -> str:
        nonlocal at
        at += width
        assert at <= len(code)
        return code[at - width : at]

    def signed(width: int) -> int:
        number = int(take(width), 2)
        return number - 2**width if number >= 2 ** (width - 1) else number

    if take(1) == "1":
        word = signed(32)
    else:
        width = (0, 4, 8, 16)[int(take(2), 2)]
        word = signed(width) if width else 0
    above = 0
    result: list[int] = []
    while len(result) < 33:
        if take(1) == "1":
            above ^= int(take(31), 2)
        elif take(1) == "1":
            result += [above] * (int(take(5), 2) + 1)
        elif take(1) == "0":
            kind = take(2)
            if kind == "00":
                above ^= 2**31 - 1
            elif kind == "01":
                above = 0
            else:
                above ^= (3 if kind == "10" else 1) << int(take(5), 2)
        result.append(above)
    words = [word]
    for place in range(31):
        delta = sum((plane >> place & 1) << bit for plane, bit in zip(result, range(32, -1, -1), strict=True))
        words.append(words[-1] + (delta - 2**33 if delta >= 2**32 else delta))
    return struct.pack("<32i", *words)


def payload(raw: bytes) -> bytes:
    """What the codec makes of these bytes: four bits for each entry, low ones first, then the entries."""
    sizes = (0, 8, 16, 32, 64, 80, 96, 128)
    classes, entries = [], b""
    for begin in range(0, len(raw), 128):
        entry = raw[begin : begin + 128].ljust(128, b"\0")
        bits = code(entry)
        size = 0 if entry == bytes(128) else next((size for size in sizes if 8 * size >= len(bits)), 128)
        classes.append(sizes.index(size))
        entries += (
            entry
            if size == 128
            else bytes(int(bits.ljust(8 * size, "0")[at : at + 8], 2) for at in range(0, 8 * size, 8))
        )
    nibbles = [*classes, 0]
    return bytes(nibbles[at] + 16 * nibbles[at + 1] for at in range(0, len(classes), 2)) + entries
