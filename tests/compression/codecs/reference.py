"""ZVC, RLE and CSR in plain Python, element by element: slow and obvious.

Elements come as whole numbers with their width in bytes; each function gives the payload as bytes.
"""

from __future__ import annotations

from itertools import groupby


def zvc(elements: list[int], width: int) -> bytes:
    out = b""
    for begin in range(0, len(elements), 32):
        window = elements[begin : begin + 32]
        mask = 0
        for place, element in enumerate(window):
            if element != 0:
                mask += 2**place
        out += mask.to_bytes(4, "little")
        for element in window:
            if element != 0:
                out += element.to_bytes(width, "little")
    return out


def rle(elements: list[int], width: int, window: int) -> bytes:
    longest = min(window // width, 32768)
    worth = {4: 2, 2: 3, 1: 5}[width]
    out = b""
    for begin in range(0, len(elements), longest):
        waiting: list[int] = []
        for element, same in groupby(elements[begin : begin + longest]):
            count = len(list(same))
            if count < worth:
                waiting += [element] * count
                continue
            out += _stretch(waiting, width)
            waiting = []
            out += (32768 + count - 1).to_bytes(2, "little") + element.to_bytes(width, "little")
        out += _stretch(waiting, width)
    return out


def _stretch(elements: list[int], width: int) -> bytes:
    if not elements:
        return b""
    return (len(elements) - 1).to_bytes(2, "little") + b"".join(e.to_bytes(width, "little") for e in elements)


def csr(elements: list[int], width: int, window: int) -> bytes:
    row = min(window // width, 256**width)
    counts, columns, values = b"", b"", b""
    for begin in range(0, len(elements), row):
        result = [(column, element) for column, element in enumerate(elements[begin : begin + row]) if element != 0]
        counts += len(result).to_bytes(4, "little")
        columns += b"".join(column.to_bytes(width, "little") for column, _ in result)
        values += b"".join(element.to_bytes(width, "little") for _, element in result)
    return counts + columns + values
