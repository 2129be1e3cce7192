"""DEFLATE by the zlib of the standard library, each window by itself.

What cDMA (section V-A) takes as the bound of what a costly compressor could reach. Each window is a zlib stream of its
own at zlib's default level, its header and Adler-32 (6 bytes) included. Sizes are those of the zlib that Python was
built with; another version or implementation may find other matches.
"""

from __future__ import annotations

import zlib
from typing import ClassVar

from simgpu.compression.codecs.by_window import ByWindow
from simgpu.compression.codecs.elements import Bytes


class Zlib(ByWindow):
    """DEFLATE; see the module."""

    name: ClassVar[str] = "zlib"
    number: ClassVar[int] = 5
    summary: ClassVar[str] = "DEFLATE, as in gzip, window by window"
    source: ClassVar[str] = "cDMA (Rhu et al., HPCA 2018) section V-A"

    def _shrink(self, window: Bytes) -> bytes:
        return zlib.compress(window.data)

    def _grow(self, data: bytes, size: int) -> bytes:
        grower = zlib.decompressobj()
        try:
            grown = grower.decompress(data, size + 1)  # one more than there may be, so that its end is read too
        except zlib.error as error:
            raise ValueError(f"zlib refuses it: {error}") from None
        if not grower.eof or grower.unused_data:
            raise ValueError("it is not one whole zlib stream of a window")
        return grown
