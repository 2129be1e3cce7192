"""Codecs of general libraries, LZ4 and zlib: each compression window is compressed by itself.

The payload has for each window in order 2 bytes (little-endian) with the number of bytes that follow, less one, and
then these bytes. A window that does not shrink is stored unchanged, as hardware would do; its number of bytes is that
of the window, so an incompressible window costs 2 bytes more. The size needs each window to be compressed, too, but
stores none of them.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import lz4.block
import numpy as np

from simgpu.compression.codecs.base import Codec
from simgpu.compression.codecs.elements import Bits, Bytes
from simgpu.compression.codecs.frame import corrupt

LENGTH_BYTES = 2


class ByWindow(Codec):
    """A codec that compresses windows of bytes with a library."""

    @abstractmethod
    def _shrink(self, window: Bytes) -> bytes:
        """The window, compressed."""

    @abstractmethod
    def _grow(self, data: bytes, size: int) -> bytes:
        """The window of `size` bytes that was compressed; `ValueError` describes damaged data."""

    def _size(self, bits: Bits) -> int:
        return sum(LENGTH_BYTES + len(data) for data in self._stored(bits))

    def _stream(self, bits: Bits, reserved: int) -> Bytes:
        stream = bytearray(reserved)
        for data in self._stored(bits):
            stream += (len(data) - 1).to_bytes(LENGTH_BYTES, "little")
            stream += data
        return np.frombuffer(stream, np.uint8)

    def _stored(self, bits: Bits) -> Iterator[bytes]:
        raw = bits.view(np.uint8)
        for begin in range(0, raw.size, self.window):
            window = raw[begin : begin + self.window]
            data = self._shrink(window)
            yield data if len(data) < window.size else window.tobytes()

    def _read(self, payload: Bytes, bits: Bits) -> None:
        raw, stream, at = bits.view(np.uint8), payload.tobytes(), 0
        for number, begin in enumerate(range(0, raw.size, self.window)):
            window = raw[begin : begin + self.window]
            length = int.from_bytes(stream[at : at + LENGTH_BYTES], "little") + 1
            at += LENGTH_BYTES
            data = stream[at : at + length]
            at += length
            if at > len(stream) or length > window.size:
                raise corrupt(self.name, f"window {number}", f"{length} bytes are not there, or more than a window has")
            try:
                grown = data if length == window.size else self._grow(data, window.size)
            except ValueError as error:
                raise corrupt(self.name, f"window {number}", str(error)) from None
            if len(grown) != window.size:
                what = f"{len(grown)} bytes come out where {window.size} went in"
                raise corrupt(self.name, f"window {number}", what)
            window[:] = np.frombuffer(grown, np.uint8)
        if at != len(stream):
            raise corrupt(self.name, "", f"{len(stream) - at} bytes follow the last window")


class Lz4(ByWindow):
    """LZ4 by the lz4 library, in its block format.

    CSWAP (section IV-E) names it as its dictionary coder. A block has neither its length nor a checksum. LZ4 finds
    repeated bytes and codes nothing else, so non-zero floating-point values, which hardly repeat, stay as they are.
    """

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


class Zlib(ByWindow):
    """DEFLATE by the zlib of the standard library.

    cDMA (section V-A) uses it as an upper bound of expensive compressors. Each window is a zlib stream at
    zlib's default level, its header and Adler-32 (6 bytes) included. Sizes are those of the zlib that Python was built
    with; another version or implementation may find other matches.
    """

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
            raise ValueError("it is not one complete zlib stream of a window")
        return grown
