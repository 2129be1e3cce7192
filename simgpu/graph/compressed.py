"""Compressed device memory: what kernels demand of it, and which parts of blocks lie in buddy memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class Demand(NamedTuple):
    """A kernel's demand on memory.

    memory_ns: time of its traffic in device memory without compression, compressed_ns: with it, both without other
    work. read, written: bytes over the link from and to buddy memory; link_ns: their time there without other traffic.
    """

    memory_ns: int
    compressed_ns: int
    read: int
    written: int
    link_ns: int

    def device_ns(self, duration: int) -> int:
        """Time on the device of a kernel that takes `duration` without compression, both in nanoseconds.

        The part of it that its traffic accounts for changes as the traffic does; the rest is computation and stays.
        Where more traffic is recorded than this memory can move in that time, all of it changes.

        >>> Demand(memory_ns=40, compressed_ns=30, read=0, written=0, link_ns=0).device_ns(100)
        90
        >>> Demand(memory_ns=40, compressed_ns=30, read=0, written=0, link_ns=0).device_ns(20)
        15
        """
        share = min(duration, self.memory_ns)
        if share == 0:
            return duration
        return duration - share - (-self.compressed_ns * share // self.memory_ns)


#: The unit of `CompressedMemory.hidden`.
MILLION = 10**6

#: The demand of a kernel that touches no compressed block.
NO_DEMAND = Demand(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class CompressedMemory:
    """The compression behind a graph's `durations` and `sizes`, for kernels that have the link to themselves.

    demands: of each kernel; device_ns: its time on the device, without the link. targets: bytes of each block's
    memory-entries on the device; carved: bytes of buddy memory reserved for each block; overflow: bytes of its value
    that lie there; overflowing: how many of its entries exceed their target. Blocks and kernels that later transforms
    have appended are not compressed and have no row. hidden: the part of a kernel's time on the device, in millionths
    at its end, that link traffic can overlap. accesses, misses: of the metadata cache, in an iteration.
    """

    demands: tuple[Demand, ...]
    device_ns: tuple[int, ...]
    targets: tuple[int, ...]
    carved: tuple[int, ...]
    overflow: tuple[int, ...]
    overflowing: tuple[int, ...]
    hidden: int
    accesses: int = 0
    misses: int = 0

    def head_ns(self, k: int) -> int:
        """Time from kernel k's start until its bytes begin to pass the link."""
        return self.device_ns[k] - self.device_ns[k] * self.hidden // MILLION

    def alone_ns(self, k: int) -> int:
        """Duration of kernel k with the link to itself: the longer of its work on the device and its transfer."""
        link = self.demands[k].link_ns
        return max(self.device_ns[k], self.head_ns(k) + link) if link else self.device_ns[k]

    def with_duration(self, k: int, duration: int) -> tuple[CompressedMemory, int]:
        """With another duration of kernel k without compression; and its duration with it, alone on the link."""
        device = self.demands[k].device_ns(duration)
        changed = replace(self, device_ns=(*self.device_ns[:k], device, *self.device_ns[k + 1 :]))
        return changed, changed.alone_ns(k)

    def without(self, b: int) -> CompressedMemory:
        """With block b stored uncompressed."""
        blocks = range(len(self.targets))
        kernels = range(len(self.demands))
        return self.renumbered(kernels, [len(self.targets) if other == b else other for other in blocks])

    def renumbered(self, kernels: Sequence[int | None], blocks: Sequence[int]) -> CompressedMemory:
        """The same for other kernels and blocks, given by their numbers here; None for a new kernel."""
        count = len(self.targets)
        known = [b if b < count else None for b in blocks]
        return replace(
            self,
            demands=tuple(NO_DEMAND if k is None else self.demands[k] for k in kernels),
            device_ns=tuple(0 if k is None else self.device_ns[k] for k in kernels),
            targets=tuple(128 if b is None else self.targets[b] for b in known),
            carved=tuple(0 if b is None else self.carved[b] for b in known),
            overflow=tuple(0 if b is None else self.overflow[b] for b in known),
            overflowing=tuple(0 if b is None else self.overflowing[b] for b in known),
        )

    @property
    def uses_link(self) -> bool:
        """Whether any kernel reads or writes buddy memory."""
        return any(demand.read or demand.written for demand in self.demands)

    def carved_by(self, blocks: Iterable[int]) -> int:
        """Bytes of buddy memory reserved for these blocks."""
        return sum(self.carved[b] for b in blocks if b < len(self.carved))
