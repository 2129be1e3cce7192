"""The header of a codec's output: it has a fixed length, and describes and protects the payload.

Hardware formats have no such header; simgpu adds it so that a damaged stream raises an error instead of giving wrong
data. The CRC-32 covers header and payload: it detects every change within 32 adjacent bits, and all but one in 2^32 of
other changes. Numbers are little-endian:

====== ===== =============================================================
offset bytes contents
====== ===== =============================================================
0      4     ``SGC1``
4      1     number of the codec
5      1     number of the element format
6      2     zero
8      4     compression window, bytes
12     4     CRC-32 of the header, with zero in this place, and the payload
16     8     elements
24     8     payload, bytes
====== ===== =============================================================
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from simgpu.compression.codecs.elements import Bytes
from simgpu.errors import InputError, Problem

#: Size of the header in bytes.
HEADER_BYTES = 32

_MAGIC = b"SGC1"
_HEADER = struct.Struct("<4sBBHIIQQ")
_CRC_AT = 12
_FORMAT_NUMBERS = MappingProxyType({"float32": 1, "float16": 2, "bfloat16": 3, "int8": 4, "uint8": 5})
_REMEDY = "it is damaged, or no codec wrote it; encode the array again"


class CorruptStreamError(InputError):
    """Raised for a compressed stream that is damaged or that another codec wrote."""


def corrupt(codec: str, place: str, what: str) -> CorruptStreamError:
    """The error for a stream of this codec."""
    return CorruptStreamError([Problem(f"{codec} stream", place, what, _REMEDY)])


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a stream: number of the codec, format and number of the elements, window in bytes."""

    codec: int
    format: str
    elements: int
    window: int


def seal(stream: Bytes, header: Header) -> None:
    """Writes the header into the first `HEADER_BYTES` of a stream that already contains its payload."""
    numbers = header.codec, _FORMAT_NUMBERS[header.format], 0, header.window
    sizes = header.elements, stream.size - HEADER_BYTES
    stream[:HEADER_BYTES] = np.frombuffer(_HEADER.pack(_MAGIC, *numbers, 0, *sizes), np.uint8)
    stream[_CRC_AT : _CRC_AT + 4] = np.frombuffer(_crc(stream).to_bytes(4, "little"), np.uint8)


def unseal(stream: Bytes, codec: str) -> Header:
    """The header of a stream. Raises `CorruptStreamError` if the header or the checksum does not match the stream.

    codec: the name of the codec that reads it, for messages.
    """
    if stream.size < HEADER_BYTES:
        what = f"the stream has {stream.size} bytes, fewer than the {HEADER_BYTES} of a header"
        raise corrupt(codec, "header", what)
    magic, number, format_number, reserved, window, crc, elements, payload = _HEADER.unpack(
        stream[:HEADER_BYTES].tobytes()
    )
    if magic != _MAGIC:
        raise corrupt(codec, "header", f"begins with {magic!r}, not with {_MAGIC!r}")
    if payload != stream.size - HEADER_BYTES:
        what = f"the payload has {stream.size - HEADER_BYTES} bytes, but the header states {payload}"
        raise corrupt(codec, "header", what)
    if crc != _crc(stream):
        raise corrupt(codec, "", "the checksum does not match the contents")
    formats = {value: key for key, value in _FORMAT_NUMBERS.items()}
    if reserved or format_number not in formats:
        raise corrupt(codec, "header", f"element format {format_number} (reserved {reserved}) is not known")
    return Header(number, formats[format_number], elements, window)


def _crc(stream: Bytes) -> int:
    """CRC-32 of the stream, with zeros in place of the checksum."""
    head = zlib.crc32(bytes(4), zlib.crc32(stream[:_CRC_AT].data))
    return zlib.crc32(stream[_CRC_AT + 4 :].data, head)
