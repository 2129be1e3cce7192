"""General-purpose codecs, LZ4 and zlib: each compression window is compressed independently.

The payload contains for each window, in order, the number of its compressed bytes minus one as 2 bytes (little-endian),
and these bytes. A window that does not shrink is stored uncompressed, as hardware would do; then the number is that of
the window's bytes, so an incompressible window takes 2 bytes more. Computing the size also compresses each window, but
does not store the result.
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
        """The decompressed window of `size` bytes. Raises `ValueError` for damaged data."""

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
                raise corrupt(
                    self.name, f"window {number}", f"its length of {length} bytes exceeds the stream or the window"
                )
            try:
                grown = data if length == window.size else self._grow(data, window.size)
            except ValueError as error:
                raise corrupt(self.name, f"window {number}", str(error)) from None
            if len(grown) != window.size:
                what = f"decompresses to {len(grown)} bytes instead of {window.size}"
                raise corrupt(self.name, f"window {number}", what)
            window[:] = np.frombuffer(grown, np.uint8)
        if at != len(stream):
            raise corrupt(self.name, "", f"{len(stream) - at} bytes follow the last window")


class Lz4(ByWindow):
    """LZ4 in its block format, by the lz4 library.

    CSWAP (section IV-E) names it as its dictionary coder. A block contains neither its length nor a checksum. LZ4 only
    replaces repeated sequences of bytes, so non-zero floating-point values, which rarely repeat, are not compressed.
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
            raise ValueError(f"LZ4 cannot decompress it: {error}") from None
        return grown


class Zlib(ByWindow):
    """DEFLATE by the zlib of the standard library.

    cDMA (section V-A) uses it as an upper bound on compression. Each window is a zlib stream at the default level,
    including its header and Adler-32 checksum (6 bytes). Sizes depend on the zlib that Python was built with: another
    version or implementation may find other matches.
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
            grown = grower.decompress(
                data, size + 1
            )  # one byte more than allowed, so that the end of the stream is read too
        except zlib.error as error:
            raise ValueError(f"zlib cannot decompress it: {error}") from None
        if not grower.eof or grower.unused_data:
            raise ValueError("it is not exactly one complete zlib stream of a window")
        return grown
