"""A simple, slow addressed pool for comparison: a list of held and free pieces."""

from __future__ import annotations

from collections.abc import Sequence


class NaivePool:
    """pieces: [start, size, block or None], ascending, covering the space; no two neighbours are both free."""

    def __init__(self, capacity: int, alignment: int = 1) -> None:
        self.alignment = alignment
        self.pieces: list[tuple[int, int, int | None]] = [(0, capacity, None)] if capacity else []
        self.high_water = 0

    def acquire(self, blocks: Sequence[int], sizes: Sequence[int]) -> bool:
        before = self.pieces[:]
        for block, size in zip(blocks, sizes, strict=True):
            padded = (size + self.alignment - 1) // self.alignment * self.alignment
            if padded and not self._place(block, padded):
                self.pieces = before
                return False
        self.high_water = max([self.high_water, *(s + n for s, n, held in self.pieces if held is not None)])
        return True

    def _place(self, block: int, size: int) -> bool:
        holes = [(at, start, free) for at, (start, free, held) in enumerate(self.pieces) if held is None]
        exact = [hole for hole in holes if hole[2] == size]
        larger = [hole for hole in holes if hole[2] > size]
        if not exact and not larger:
            return False
        at, start, free = (exact or larger)[0]
        rest = [(start + size, free - size, None)] if free > size else []
        self.pieces[at : at + 1] = [(start, size, block), *rest]
        return True

    def release(self, blocks: Sequence[int]) -> None:
        self.pieces = [(start, size, None if held in blocks else held) for start, size, held in self.pieces]
        joined: list[tuple[int, int, int | None]] = []
        for start, size, held in self.pieces:
            if held is None and joined and joined[-1][2] is None:
                start, size = joined[-1][0], joined.pop()[1] + size
            joined.append((start, size, held))
        self.pieces = joined

    @property
    def largest_hole(self) -> int:
        return max((size for _, size, held in self.pieces if held is None), default=0)
