"""LZ4 by the lz4 library, in its block format, each window by itself.

CSWAP (section IV-E) names it as its dictionary coder. A block carries neither its length nor a checksum. LZ4 finds
repeated bytes and codes nothing else, so non-zero floating-point values, which hardly repeat, stay as they are.
"""

from __future__ import annotations

from typing import ClassVar

import lz4.block

from simgpu.compression.codecs.by_window import ByWindow
from simgpu.compression.codecs.elements import Bytes


class Lz4(ByWindow):
    """LZ4 blocks; see the module."""

    name: ClassVar[str] = "lz4"
    number: ClassVar[int] = 4
    summary: ClassVar[str] = "matches of repeated bytes, LZ4 block format, window by window"
    source: ClassVar[str] = "CSWAP (Chen et al., CLUSTER 2021) section IV-E"

    def _shrink(self, window: Bytes) -> bytes:
        shrunk: bytes = lz4.block.compress(window.data, store_size=False)
        return shrunk

    def _grow(self, data: bytes, size: int) -> bytes:
        try:
            grown: bytes = lz4.block.decompress(data, uncompressed_size=size)
        except lz4.block.LZ4BlockError as error:
            raise ValueError(f"LZ4 refuses it: {error}") from None
        return grown
