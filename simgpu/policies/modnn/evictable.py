"""The segments of the device memory that may be evicted, as arrays, and the best window of neighbours among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: The block of a hole.
HOLE = -2

#: Sums of two numbers below it fit into 64 bits.
SAFE = 2**61
_NEVER = -(2**62)

#: The delay (ns) of offloads that end at these times.
Delay = Callable[[Ints], Ints]


class Scheme(NamedTuple):
    """Contiguous blocks to offload or free, in address order, and the resulting delay (ns)."""

    delay: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Evictable:
    """All segments in address order, and running sums over them, which have one entry more.

    starts, blocks: address and block of each segment, `HOLE` for a hole. ends: one past the last neighbour up to which
    all may be evicted; a segment that stays has its own position. begin: when the data stream is free. written: when
    the last write of a block that must be copied has ended, less the copies before it; long before for other segments.
    total: bytes; copied: time of the copies to the host; moved: bytes to copy out and back; late: copies that have to
    wait for the end of a write.
    """

    starts: Ints
    blocks: Ints
    ends: Ints
    begin: int
    written: Ints
    total: Ints
    copied: Ints
    moved: Ints
    late: Ints

    @classmethod
    def of(
        cls,
        starts: Ints,
        stop: int,
        blocks: Ints,
        stays: NDArray[np.bool_],
        lacking: NDArray[np.bool_],
        begin: int,
        written: list[int],
        copies: Ints,
    ) -> Evictable:
        """The table of a memory that ends at `stop`.

        stays, lacking: by segment, whether it must stay, and whether the host lacks its value. written: the end of the
        last write by segment, 0 where the host has its value. copies: time to copy it out, and bytes of a copy.
        """
        last = max(begin, stop, *written)
        out_ns, copy_sizes = copies if last < SAFE else copies.astype(object)
        writes = np.array(written, dtype=out_ns.dtype)
        numbers = np.arange(len(starts))
        barriers = np.append(numbers[stays], len(starts))
        copied = _running(np.where(lacking, out_ns, 0))
        return cls(
            starts,
            blocks,
            barriers[np.searchsorted(barriers, numbers)],
            begin,
            np.where(lacking, writes - copied[:-1], _NEVER),
            _running(np.diff(starts, append=stop)),
            copied,
            _running(copy_sizes * (1 + lacking)),
            _running(lacking & (writes > begin)),
        )

    def scheme(self, size: int, delay: Delay) -> Scheme | None:
        """The scheme that frees `size` contiguous bytes with the lowest delay; None where there is none.

        From each segment upwards, neighbours are added until they are large enough (figure 6). Of schemes with equal
        delay the one that copies the fewest bytes is chosen, then the one at the lowest address.
        """
        stops = np.searchsorted(self.total, self.total[:-1] + size)
        firsts = np.flatnonzero(stops <= self.ends)
        if not firsts.size:
            return None
        stops = stops[firsts]
        delays = delay(self._offloaded(firsts, stops))
        least = np.flatnonzero(delays == delays.min())
        moved = self.moved[stops[least]] - self.moved[firsts[least]]
        chosen = least[moved.argmin()]
        window = self.blocks[firsts[chosen] : stops[chosen]]
        return Scheme(int(delays[chosen]), tuple(window[window != HOLE].tolist()))

    def _offloaded(self, firsts: Ints, stops: Ints) -> Ints:
        """When the data stream has offloaded each of these windows, 0 where the host has all of it.

        Each block is copied as soon as its last write has ended (figure 3), one after the other: the last copies begin
        at `begin` or at the end of a write, and those after it follow without a break.
        """
        copying = self.copied[stops] - self.copied[firsts]
        offloaded = np.where(copying > 0, self.begin + copying, 0)
        waits = np.flatnonzero(self.late[stops] > self.late[firsts])
        if waits.size:
            a, b = firsts[waits], stops[waits]
            # `reduceat` reduces from each position to the next: the second of each pair belongs to no window.
            latest = np.maximum.reduceat(np.append(self.written, _NEVER), np.stack([a, b], axis=1).ravel())[::2]
            offloaded[waits] = self.copied[b] + np.maximum(self.begin - self.copied[a], latest)
        return offloaded


def _running(values: Ints | NDArray[np.bool_]) -> Ints:
    """Running sums, from 0."""
    sums: Ints = np.concatenate([[0], np.cumsum(values)])
    return sums
