"""Run-length encoding: a control word for each run of equal values or stretch of different values.

cDMA (section V-A) compresses runs of zeros, with overhead for the values between them; CSWAP (section IV-E) stores a
run of any value as value and count, and other values unchanged. Neither defines a decodable format, so we chose one
that covers both: a window is a sequence of tokens, each a control word of 16 bits (little-endian) followed by elements.

* highest bit 1: a run, followed by the one element to repeat;
* highest bit 0: a stretch, followed by its elements.

The other 15 bits are the length minus one. Equal elements become a run if that takes no more bytes than as part of a
stretch, including the control word of a new stretch after the run: from 2 elements of 4 bytes, 3 of 2 bytes, 5 of 1
byte. So an isolated zero saves nothing, an incompressible window takes one control word in addition to its elements,
and 4 KiB of zeros in float32 take 6 bytes. Tokens do not cross windows (nor exceed 32768 elements, which only a window
of 64 KiB of 1-byte elements can); the number of elements is known, so windows have no stored length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.base import Codec
from simgpu.compression.codecs.elements import Bits, Bytes
from simgpu.compression.codecs.frame import corrupt

CONTROL_BYTES = 2
LONGEST = 2**15
_RUN = 2**15

#: Windows processed together, which bounds the memory of intermediate results.
_TOGETHER = 256


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Tokens of an array: the index of each token's first element, its number of elements, and whether it is a run."""

    begin: NDArray[np.int64]
    length: NDArray[np.int64]
    run: NDArray[np.bool_]

    @property
    def stored(self) -> NDArray[np.int64]:
        """Number of elements stored after each control word."""
        return np.where(self.run, 1, self.length)


class Rle(Codec):
    """Run-length encoding; see the module."""

    name: ClassVar[str] = "rle"
    number: ClassVar[int] = 2
    summary: ClassVar[str] = "runs of one value as value and length, other values as they are"
    source: ClassVar[str] = "cDMA (Rhu et al., HPCA 2018) V-A; CSWAP (Chen et al., CLUSTER 2021) IV-E"

    def _size(self, bits: Bits) -> int:
        parts = (_tokens(part, self._longest(bits)) for part in self._parts(bits))
        return sum(CONTROL_BYTES * tokens.run.size + bits.itemsize * int(tokens.stored.sum()) for tokens in parts)

    def _stream(self, bits: Bits, reserved: int) -> Bytes:
        written = (_written(part, _tokens(part, self._longest(bits))) for part in self._parts(bits))
        return np.concatenate([np.zeros(reserved, np.uint8), *written])

    def _read(self, payload: Bytes, bits: Bits) -> None:
        places, controls = _controls(payload.tobytes(), bits.itemsize)
        run = controls >= _RUN
        length = (controls & (_RUN - 1)) + 1
        ends = length.cumsum()
        stored = np.where(run, 1, length)
        if CONTROL_BYTES * run.size + bits.itemsize * int(stored.sum()) != payload.size:
            raise corrupt(self.name, "", "ends within a token")
        if (ends[-1] if ends.size else 0) != bits.size:
            raise corrupt(self.name, "", "its lengths do not add up to the number of elements")
        longest = self._longest(bits)
        crossing = np.flatnonzero((ends - length) // longest != (ends - 1) // longest)
        if crossing.size:
            raise corrupt(self.name, f"token {crossing[0]}", "crosses the end of its window")
        value = np.ones(payload.size, np.bool_)
        value[places[:, None] + np.arange(CONTROL_BYTES)] = False
        times = np.ones(int(stored.sum()), np.int64)
        times[(stored.cumsum() - stored)[run]] = length[run]
        bits[:] = payload[value].view(bits.dtype).repeat(times)

    def _longest(self, bits: Bits) -> int:
        """Largest number of elements of a token."""
        return min(self._elements(bits.itemsize), LONGEST)

    def _parts(self, bits: Bits) -> Iterator[Bits]:
        step = self._elements(bits.itemsize) * _TOGETHER
        return (bits[begin : begin + step] for begin in range(0, bits.size, step))


def _tokens(bits: Bits, longest: int) -> _Tokens:
    """Splits elements into tokens; the first element begins a window."""
    differs = np.ones(bits.size, np.bool_)
    np.not_equal(bits[1:], bits[:-1], out=differs[1:])
    differs[::longest] = True
    begin = np.flatnonzero(differs)
    shortest = 1 + -(-2 * CONTROL_BYTES // bits.itemsize)  # its own control word, and that of the next stretch
    run = np.diff(begin, append=bits.size) >= shortest
    begins = run | (begin % longest == 0)
    begins[1:] |= run[:-1]
    begin = begin[begins]
    return _Tokens(begin, np.diff(begin, append=bits.size), run[begins])


def _written(bits: Bits, tokens: _Tokens) -> Bytes:
    size = CONTROL_BYTES + bits.itemsize * tokens.stored
    places = size.cumsum() - size
    controls = (tokens.length - 1 + _RUN * tokens.run).astype("<u2").view(np.uint8).reshape(-1, CONTROL_BYTES)
    repeated = np.zeros(bits.size, np.bool_)
    repeated[1:] = (tokens.run.repeat(tokens.length))[1:]
    repeated[tokens.begin] = False
    stream = np.empty(int(size.sum()), np.uint8)
    value = np.ones(stream.size, np.bool_)
    control = places[:, None] + np.arange(CONTROL_BYTES)
    value[control] = False
    stream[control] = controls
    stream[value] = bits[~repeated].view(np.uint8)
    return stream


def _controls(stream: bytes, itemsize: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The position of each control word, and the words; one token's length gives the next one's position."""
    places, controls, at = [], [], 0
    while at + CONTROL_BYTES <= len(stream):
        control = stream[at] | stream[at + 1] << 8
        places.append(at)
        controls.append(control)
        at += CONTROL_BYTES + itemsize * (1 if control & _RUN else control + 1)
    return np.array(places, np.int64), np.array(controls, np.int64)
