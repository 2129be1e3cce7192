"""Run-length encoding: a control word for each run of one value or stretch of differing ones.

cDMA (section V-A) keeps runs of zeros short and pays for what lies between; CSWAP (section IV-E) stores a run of any
value as value and count and leaves other values as they are. Neither gives a format that can be decoded, so this one is
chosen, with both in it: a window is a row of tokens, each a control word of 16 bits (little-endian) and elements behind
it.

* highest bit 1: a run; one element, to be repeated;
* highest bit 0: as many elements as they stand.

The other 15 bits are the length less one. A run is a token of its own where that takes no more bytes than within a
stretch, even if the stretch must be begun anew behind it: from 2 elements of 4 bytes, 3 of 2 bytes, 5 of 1 byte. So an
isolated zero saves nothing, an incompressible window costs one control word and is stored as it stands, and 4 KiB of
zeros take 6 bytes in float32. Tokens end with the window (and at 32768 elements, which only windows of 64 KiB of single
bytes exceed); since the number of elements is known, a window needs no length.
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
    """Tokens of some elements: where each begins, how many elements it represents, and whether they are a run."""

    begin: NDArray[np.int64]
    length: NDArray[np.int64]
    run: NDArray[np.bool_]

    @property
    def stored(self) -> NDArray[np.int64]:
        """Elements that follow each control word."""
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
            raise corrupt(self.name, f"token {crossing[0]}", "goes beyond its window")
        value = np.ones(payload.size, np.bool_)
        value[places[:, None] + np.arange(CONTROL_BYTES)] = False
        times = np.ones(int(stored.sum()), np.int64)
        times[(stored.cumsum() - stored)[run]] = length[run]
        bits[:] = payload[value].view(bits.dtype).repeat(times)

    def _longest(self, bits: Bits) -> int:
        """Elements that a token can stand for."""
        return min(self._elements(bits.itemsize), LONGEST)

    def _parts(self, bits: Bits) -> Iterator[Bits]:
        step = self._elements(bits.itemsize) * _TOGETHER
        return (bits[begin : begin + step] for begin in range(0, bits.size, step))


def _tokens(bits: Bits, longest: int) -> _Tokens:
    """How elements that begin a window are cut into tokens."""
    differs = np.ones(bits.size, np.bool_)
    np.not_equal(bits[1:], bits[:-1], out=differs[1:])
    differs[::longest] = True
    begin = np.flatnonzero(differs)
    shortest = 1 + -(-2 * CONTROL_BYTES // bits.itemsize)  # its own control word, and one for what follows
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
