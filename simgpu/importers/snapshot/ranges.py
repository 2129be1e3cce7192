"""Ranges of addresses that are mapped, to follow a recording backwards."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator


class Ranges:
    """Disjoint ranges of addresses. Those that touch stay apart until a range that spans both is removed.

    >>> ranges = Ranges()
    >>> ranges.add(0, 30), ranges.remove(10, 5)
    (None, True)
    >>> list(ranges), ranges.remove(12, 20)
    ([(0, 10), (15, 15)], False)
    """

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges as (address, size), joined where they touch."""
        joined: list[tuple[int, int]] = []
        for address, size in self._ranges:
            if joined and sum(joined[-1]) == address:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((address, size))
        return iter(joined)

    def add(self, address: int, size: int) -> None:
        """Add a range."""
        insort(self._ranges, (address, size))

    def remove(self, address: int, size: int) -> bool:
        """Remove a range; False if not all of it is there."""
        end = address + size
        first = at = max(bisect_right(self._ranges, (address, 2**64)) - 1, 0)
        covered = address
        while at < len(self._ranges) and covered < end:
            start, length = self._ranges[at]
            if start > covered or start + length <= covered:
                return False
            covered = start + length
            at += 1
        if covered < end:
            return False
        rest = [(self._ranges[first][0], address - self._ranges[first][0]), (end, covered - end)]
        self._ranges[first:at] = [part for part in rest if part[1]]
        return True
