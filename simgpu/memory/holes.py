"""The free holes of an addressed memory, found fast: by exact size, or the first that is large enough.

Lives here: `HoleIndex`, an index over (address, size) pairs. Does not live here: who asks, coalescing, alignment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

#: A run of holes is split when it grows past this; short runs keep insertion and search in a run cheap.
_RUN = 64


class HoleIndex:
    """Holes ordered by address, in runs that know their largest hole.

    A search by first fit looks at one number per run, then at the holes of one run; runs of at most 64 holes keep
    both short. The search by exact size keeps a heap of addresses per size, from which stale entries are dropped
    when they surface.

    >>> holes = HoleIndex()
    >>> for start, size in ((0, 10), (100, 30), (200, 20)):
    ...     holes.add(start, size)
    >>> holes.exact(20), holes.first(11), holes.first(31), holes.largest()
    (200, 100, None, 30)
    """

    __slots__ = ("_by_size", "_firsts", "_largest", "_runs", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._by_size: dict[int, list[int]] = {}
        self._runs: list[list[int]] = [[]]
        self._firsts: list[int] = [0]
        self._largest: list[int] = [0]

    def __len__(self) -> int:
        return len(self.sizes)

    def _run_of(self, start: int) -> int:
        index = bisect_left(self._firsts, start + 1) - 1
        return max(index, 0)

    def add(self, start: int, size: int) -> None:
        """A hole of `size` bytes now begins at `start`."""
        self.sizes[start] = size
        heappush(self._by_size.setdefault(size, []), start)
        index = self._run_of(start)
        run = self._runs[index]
        insort(run, start)
        self._firsts[index] = run[0]
        self._largest[index] = max(self._largest[index], size)
        if len(run) > _RUN:
            half = len(run) // 2
            self._runs[index : index + 1] = [run[:half], run[half:]]
            self._firsts[index : index + 1] = [run[0], run[half]]
            self._largest[index : index + 1] = [self._max_of(run[:half]), self._max_of(run[half:])]

    def remove(self, start: int) -> int:
        """The hole at `start` is gone; returns its size."""
        size = self.sizes.pop(start)
        index = self._run_of(start)
        run = self._runs[index]
        del run[bisect_left(run, start)]
        if not run and len(self._runs) > 1:
            del self._runs[index], self._firsts[index], self._largest[index]
        elif size == self._largest[index]:
            self._largest[index] = self._max_of(run)
        return size

    def grow(self, start: int, size: int) -> None:
        """The hole at `start` now has `size` bytes, more than before."""
        self.sizes[start] = size
        heappush(self._by_size.setdefault(size, []), start)
        index = self._run_of(start)
        if size > self._largest[index]:
            self._largest[index] = size

    def move(self, start: int, to: int, size: int) -> None:
        """The hole at `start` now begins at `to` and has `size` bytes; no hole lies between the two addresses."""
        old = self.sizes.pop(start)
        self.sizes[to] = size
        heappush(self._by_size.setdefault(size, []), to)
        index = self._run_of(start)
        run = self._runs[index]
        run[bisect_left(run, start)] = to
        self._firsts[index] = run[0]
        if size >= self._largest[index]:
            self._largest[index] = size
        elif old == self._largest[index]:
            self._largest[index] = self._max_of(run)

    def shrink(self, start: int, by: int) -> int:
        """The first `by` bytes of the hole at `start` are taken; returns the size it had."""
        old = self.sizes[start]
        self.move(start, start + by, old - by)
        return old

    def _max_of(self, run: list[int]) -> int:
        return max(map(self.sizes.__getitem__, run), default=0)

    def exact(self, size: int) -> int | None:
        """Lowest address of a hole of exactly this size, or None."""
        heap = self._by_size.get(size)
        while heap:
            if self.sizes.get(heap[0]) == size:
                return heap[0]
            heappop(heap)
        if heap is not None:
            del self._by_size[size]
        return None

    def first(self, size: int) -> int | None:
        """Lowest address of a hole of at least this size, or None."""
        for index, largest in enumerate(self._largest):
            if largest >= size:
                for start in self._runs[index]:
                    if self.sizes[start] >= size:
                        return start
        return None

    def before(self, address: int) -> int | None:
        """Start of the last hole that begins at or below the address, or None."""
        run = self._runs[self._run_of(address)]
        index = bisect_left(run, address + 1) - 1
        return run[index] if index >= 0 else None

    def largest(self) -> int:
        """Size of the largest hole, 0 if there is none."""
        return max(self._largest)
