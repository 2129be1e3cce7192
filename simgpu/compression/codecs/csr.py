"""Compressed sparse rows: the nonzero elements and the column of each.

In CSWAP (section IV-E) each nonzero element has an index as wide as the element; at 50% sparsity the indices take 50%
of the uncompressed size (ZVC's masks take 1/32). CSWAP does not define the rows. Here a row is a window, or as many
elements of it as an index can distinguish (256 for one byte), so that each row can be decoded independently:

* for each row, the number of its nonzero elements: 4 bytes (little-endian), 0.1% of a window of 4 KiB in addition;
* for each nonzero element, its column in the row: an unsigned integer as wide as an element;
* the nonzero elements.

All counts precede all columns, and these precede all elements. An array without zeros takes twice its size: CSR has no
form for a window that does not shrink.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simgpu.compression.codecs.base import Codec
from simgpu.compression.codecs.elements import Bits, Bytes
from simgpu.compression.codecs.frame import corrupt

COUNT_BYTES = 4


def row_elements(window: int, itemsize: int) -> int:
    """Number of elements per row. window: bytes; itemsize: bytes of an element.

    >>> row_elements(4096, 4), row_elements(65536, 2), row_elements(4096, 1)
    (1024, 32768, 256)
    """
    return int(min(window // itemsize, 2 ** (8 * itemsize)))


def csr_bytes(elements: int, nonzeros: int, itemsize: int, window: int) -> int:
    """Compressed size in bytes of an array with `elements` elements of `itemsize` bytes, `nonzeros` of them nonzero.

    >>> csr_bytes(1024, 512, 4, window=4096)
    4100
    """
    return -(-elements // row_elements(window, itemsize)) * COUNT_BYTES + nonzeros * 2 * itemsize


class Csr(Codec):
    """Compressed sparse rows; see the module."""

    name: ClassVar[str] = "csr"
    number: ClassVar[int] = 3
    summary: ClassVar[str] = "values that are not zero, each with its column in the window"
    source: ClassVar[str] = "CSWAP (Chen et al., CLUSTER 2021) section IV-E"

    def _size(self, bits: Bits) -> int:
        return csr_bytes(bits.size, int(np.count_nonzero(bits)), bits.itemsize, self.window)

    def _stream(self, bits: Bits, reserved: int) -> Bytes:
        row = row_elements(self.window, bits.itemsize)
        places = np.flatnonzero(bits)
        counts = np.bincount(places // row, minlength=-(-bits.size // row))
        parts = counts.astype("<u4"), (places % row).astype(bits.dtype), bits[places]
        return np.concatenate([np.zeros(reserved, np.uint8), *(part.view(np.uint8) for part in parts)])

    def _read(self, payload: Bytes, bits: Bits) -> None:
        row = row_elements(self.window, bits.itemsize)
        rows = -(-bits.size // row)
        if payload.size < rows * COUNT_BYTES:
            raise corrupt(self.name, "", f"{payload.size} bytes are too few for the counts of {rows} rows")
        counts = payload[: rows * COUNT_BYTES].view("<u4").astype(np.int64)
        total = int(counts.sum())
        if csr_bytes(bits.size, total, bits.itemsize, self.window) != payload.size:
            what = f"its rows have {total} values, which do not fit its {payload.size} bytes"
            raise corrupt(self.name, "", what)
        columns, values = payload[rows * COUNT_BYTES :].view(bits.dtype).reshape(2, total)
        of_row = np.arange(rows).repeat(counts)
        places = of_row * row + columns
        # Positions must ascend and stay within each value's row: so none repeats, and no count is too large.
        wrong = (columns >= row) | (places >= bits.size) | (values == 0)
        wrong[1:] |= places[1:] <= places[:-1]
        if wrong.any():
            at = int(of_row[wrong.argmax()])
            raise corrupt(self.name, f"row {at}", "its columns are not in ascending order, or a value is zero")
        bits[:] = 0
        bits[places] = values
