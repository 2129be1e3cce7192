"""Bit-plane compression: codes the changes between bit planes of the differences of neighbouring words.

Kim, Sullivan, Choukse and Erez, "Bit-Plane Compression", ISCA 2016; Buddy Compression (Choukse et al., ISCA 2020) uses
it for memory. Each memory-entry of 128 bytes, 32 words of 32 bits, is coded independently, whatever its elements are:

* the 31 differences of neighbouring words, 33 bits each;
* a *plane* is the same bit of all differences, 31 bits; there are 33 planes;
* each plane's *change* is its exclusive-or with the plane of the next higher bit; the highest plane is its own change.

The code of an entry is that of its first word, and those of the changes from the highest plane down:

=============================== ================================== ====
first word                      code                               bits
=============================== ================================== ====
zero                            000                                   3
of 4 bits, the first its sign   001, 4 bits                           7
of 8 bits                       010, 8 bits                          11
of 16 bits                      011, 16 bits                         19
any other                       1, 32 bits                           33
=============================== ================================== ====

=============================== ================================== ====
change                          code                               bits
=============================== ================================== ====
2 to 33 that are zero           01, their number less 2 in 5 bits     7
one that is zero                001                                   3
all ones                        00000                                 5
of a plane that is zero         00001                                 5
two neighbouring ones           00010, place of the lower, 5 bits    10
a single one                    00011, its place, 5 bits             10
any other                       1, 31 bits                           32
=============================== ================================== ====

If several rows apply, the first in the table is used. Public implementations agree in the lengths of all codes; they
differ in the points below, which change the size of an entry little or not at all. Words are signed here, as in the
simulator that two of the authors published; another implementation treats them as unsigned, which changes the two
highest planes. The code of a plane that is zero precedes those of single and neighbouring ones, as in that simulator,
which is shorter; another implementation has it after them. The four prefixes of five bits are assigned as in "EBPC"
(Cavigelli et al., 2019) and in an implementation with a decoder; the authors' simulator, which only counts bits, lists
another order. The bits of a code fill bytes from the highest bit down, positions count from the first difference, and
numbers are written highest bit first.

The payload is what memory would contain, not only the codes: first 4 bits of metadata for each entry, the index of its
size among the eight of `simgpu.compression.codecs.entries` (the first entry in the low half of a byte; eight of sixteen
values are used), then the entries, each padded with zeros to that size. An entry of size 0 is all zeros; one whose code
exceeds 96 bytes is stored uncompressed in 128. So the compression ratio is that of Buddy Compression's figure 3,
reduced by the metadata: 256 for zeros, while noise takes 0.4% more than uncompressed. (A trace's rows of entries do not
include metadata.) The last entry is padded with zeros. No entry crosses the border of a compression window, so the
window has no effect.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simgpu.compression.codecs.base import Codec
from simgpu.compression.codecs.elements import Bits, Bytes, read_only
from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES, WORDS, bytes_of, size_classes, words_of
from simgpu.compression.codecs.frame import corrupt

_SIZES = np.array(ENTRY_SIZES, np.uint8)


class Bpc(Codec):
    """Bit-plane compression of memory-entries; see the module."""

    name: ClassVar[str] = "bpc"
    number: ClassVar[int] = 6
    summary: ClassVar[str] = "bit planes of neighbours' differences, in entries of 128 B of eight sizes, 4 bits each"
    source: ClassVar[str] = "Bit-Plane Compression (Kim et al., ISCA 2016)"

    def _size(self, bits: Bits) -> int:
        sizes = _SIZES[size_classes(bits)]
        return _metadata_bytes(sizes.size) + int(sizes.sum(dtype=np.int64))

    def _stream(self, bits: Bits, reserved: int) -> Bytes:
        from simgpu.compression.codecs import bpc_code

        classes = size_classes(bits)
        sizes = _SIZES[classes]
        begin = reserved + _metadata_bytes(sizes.size)
        stream = np.zeros(begin + int(sizes.sum(dtype=np.int64)), np.uint8)
        metadata = stream[reserved:begin]
        metadata |= classes[0::2]
        metadata[: sizes.size // 2] |= classes[1::2] << 4
        bpc_code.write(words_of(bytes_of(bits)), sizes, stream[begin:])
        return stream

    def _read(self, payload: Bytes, bits: Bits) -> None:
        entries = -(-bits.nbytes // ENTRY_BYTES)
        from simgpu.compression.codecs import bpc_code

        sizes, codes = self._sizes(payload, entries), payload[_metadata_bytes(entries) :]
        if codes.size != sizes.sum(dtype=np.int64):
            what = f"{codes.size} bytes are there for entries of {sizes.sum(dtype=np.int64)}"
            raise corrupt(self.name, "metadata", what)
        words = np.empty((entries, WORDS), "<i4")
        fault = bpc_code.read(read_only(codes), sizes, words)
        if fault >= 0:
            what = f"its {sizes[fault]} bytes do not begin with a code of 33 planes and end with zeros"
            raise corrupt(self.name, f"entry {fault}", what)
        raw = words.view(np.uint8).reshape(-1)
        if raw[bits.nbytes :].any():
            raise corrupt(self.name, f"entry {entries - 1}", "it continues after the last element")
        bits.view(np.uint8)[:] = raw[: bits.nbytes]

    def _sizes(self, payload: Bytes, entries: int) -> Bytes:
        """Size of each entry in bytes, from the metadata."""
        metadata = payload[: _metadata_bytes(entries)]
        classes = np.column_stack((metadata & 0xF, metadata >> 4)).reshape(-1)
        if classes.size < entries or (classes >= len(_SIZES)).any() or classes[entries:].any():
            what = f"they are not the sizes, 0 to {len(_SIZES) - 1}, of {entries} entries"
            raise corrupt(self.name, "metadata", what)
        return _SIZES[classes[:entries]]


def _metadata_bytes(entries: int) -> int:
    return -(-entries // 2)
