"""`Codec`, the interface of lossless codecs. The compressed size can be computed without encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from simgpu.compression.codecs.elements import Bits, Bytes, bits_of, format_of
from simgpu.compression.codecs.frame import HEADER_BYTES, Header, corrupt, seal, unseal
from simgpu.errors import InputError
from simgpu.units import format_bytes

#: Smallest and largest compression window in bytes; cDMA (section VII-A) uses 4 KB and evaluated up to 64 KB.
SMALLEST_WINDOW = 4096
LARGEST_WINDOW = 65536


@dataclass(frozen=True)
class Codec(ABC):
    """A lossless compressor.

    window: bytes that are compressed independently, a power of two from 4 KiB to 64 KiB; the last window of an array
    may be shorter. Supported element formats are those of `simgpu.compression.codecs.elements`; others raise
    `InputError`.
    """

    #: Name in the registry. `number` identifies the codec in streams; `summary` and `source` are shown in listings.
    name: ClassVar[str]
    number: ClassVar[int]
    summary: ClassVar[str]
    source: ClassVar[str]

    window: int = SMALLEST_WINDOW

    def __post_init__(self) -> None:
        fits = type(self.window) is int and SMALLEST_WINDOW <= self.window <= LARGEST_WINDOW
        if not fits or self.window & (self.window - 1):
            bounds = f"{format_bytes(SMALLEST_WINDOW)} to {format_bytes(LARGEST_WINDOW)}"
            what = f"{self.window!r} bytes are not a compression window"
            raise InputError.single("", "window", what, f"give a power of two from {bounds}")

    def encode(self, array: NDArray[Any]) -> Bytes:
        """The compressed array as a stream of `HEADER_BYTES` + `compressed_size(array)` bytes.

        >>> from simgpu.compression.codecs.registry import make_codec
        >>> make_codec("zvc").encode(np.zeros((2, 32), np.float32)).size
        40
        """
        bits = bits_of(array)
        stream = self._stream(bits, HEADER_BYTES)
        seal(stream, Header(self.number, format_of(array.dtype), bits.size, self.window))
        return stream

    def decode(self, stream: bytes | Bytes, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """The array that was encoded, with the same bits. Uses the window that the stream was encoded with.

        Raises `CorruptStreamError` for a stream that another codec wrote or that is damaged, and `InputError` for a
        dtype or shape other than the encoded one.

        >>> from simgpu.compression.codecs.registry import make_codec
        >>> stream = make_codec("zvc").encode(np.array([0, 3, -1], np.int8))
        >>> make_codec("zvc").decode(stream, np.int8, (3,))
        array([ 0,  3, -1], dtype=int8)
        """
        raw = np.frombuffer(stream, np.uint8)
        header = unseal(raw, self.name)
        if header.codec != self.number:
            raise corrupt(self.name, "header", f"written by codec {header.codec}, not {self.name} ({self.number})")
        array = np.empty(shape, dtype)
        self._check_request(header, array)
        try:
            codec = replace(self, window=header.window)
        except InputError as error:
            raise corrupt(self.name, "header", error.problems[0].what) from None
        codec._read(raw[HEADER_BYTES:], array.reshape(-1).view(f"u{array.itemsize}"))
        return array

    def _check_request(self, header: Header, array: NDArray[Any]) -> None:
        if format_of(array.dtype) != header.format:
            what = f"the stream contains {header.format}, not {array.dtype}"
            raise InputError.single(f"{self.name} stream", "dtype", what, "request the dtype that was encoded")
        if prod(array.shape) != header.elements:
            what = f"the stream contains {header.elements} elements, but shape {array.shape} has {array.size}"
            raise InputError.single(f"{self.name} stream", "shape", what, "request the shape that was encoded")

    def compressed_size(self, array: NDArray[Any]) -> int:
        """Compressed size in bytes: the payload without simgpu's header. Computed without producing the output.

        >>> from simgpu.compression.codecs.registry import make_codec
        >>> make_codec("zvc").compressed_size(np.zeros((2, 32), np.float32))
        8
        """
        return self._size(bits_of(array))

    @abstractmethod
    def _size(self, bits: Bits) -> int:
        """Size of the payload in bytes."""

    @abstractmethod
    def _stream(self, bits: Bits, reserved: int) -> Bytes:
        """The payload, after `reserved` bytes that are filled later."""

    @abstractmethod
    def _read(self, payload: Bytes, bits: Bits) -> None:
        """Fills `bits` from the payload; raises `CorruptStreamError` if the two do not match."""

    def _elements(self, itemsize: int) -> int:
        """Elements in a window."""
        return self.window // itemsize
