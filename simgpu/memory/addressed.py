"""The pool that gives addresses, by the rule of moDNN (section 3.3): exact fit first, then first fit.

Lives here: `AddressedPool` and its view as a list of segments. Does not live here: the search structure
(`simgpu.memory.holes`), waiting or time (that is the machine's).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from simgpu.errors import ProgramError
from simgpu.memory.holes import HoleIndex
from simgpu.memory.pool import UNLIMITED, aligned

#: (block, bytes, bytes with padding, offset or None) of each block asked for.
Request = tuple[tuple[int, int, int, int | None], ...]


class Segment(NamedTuple):
    """A piece of the address space: held by `block`, or free where that is None."""

    start: int
    size: int
    block: int | None


class AddressedPool:
    """Memory with addresses.

    A block takes the lowest hole of exactly its size, else the lowest hole it fits into; a given offset is taken as
    it is. Blocks of a request are placed in listed order; where one does not fit, none is placed. Blocks of zero
    bytes take no address. Cost grows with the logarithm of the number of blocks in ordinary traces, never with its
    square.

    >>> pool = AddressedPool(100)
    >>> a, b, c = (pool.prepare([n], [size]) for n, size in enumerate((40, 30, 30)))
    >>> pool.acquire(a), pool.acquire(b), pool.acquire(c)
    (True, True, True)
    >>> pool.release(b)
    >>> pool.largest_hole, list(pool.segments())[1]
    (30, Segment(start=40, size=30, block=None))
    """

    __slots__ = ("_addresses", "_ends", "_high_water", "_holes", "alignment", "capacity", "live", "used")

    def __init__(self, capacity: int | None, alignment: int = 1) -> None:
        self.capacity = capacity
        self.alignment = alignment
        self.live = 0
        self.used = 0
        self._high_water = 0
        self._addresses: dict[int, int] = {}
        self._holes = HoleIndex()
        self._ends: dict[int, int] = {}
        size = UNLIMITED if capacity is None else capacity
        if size:
            self._add_hole(0, size)

    def prepare(self, blocks: Sequence[int], sizes: Sequence[int], offsets: Sequence[int] | None = None) -> Request:
        places: Sequence[int | None] = offsets if offsets is not None else [None] * len(blocks)
        return tuple(
            (block, size, aligned(size, self.alignment), place)
            for block, size, place in zip(blocks, sizes, places, strict=True)
        )

    def acquire(self, request: Request) -> bool:
        addresses = self._addresses
        for done, (block, size, padded, offset) in enumerate(request):
            if padded == 0:
                continue
            if offset is None:
                start = self._holes.exact(padded)
                if start is None:
                    start = self._holes.first(padded)
            else:
                start = self._hole_around(offset, padded)
            if start is None:
                self.release(request[:done])
                return False
            self._take(start, start if offset is None else offset, padded)
            addresses[block] = start if offset is None else offset
            self.live += size
            self.used += padded
        return True

    def _take(self, hole: int, start: int, size: int) -> None:
        """Take [start, start + size) out of the hole."""
        holes = self._holes
        length = holes.remove(hole)
        del self._ends[hole + length]
        if start > hole:
            self._add_hole(hole, start - hole)
        end = start + size
        if end < hole + length:
            self._add_hole(end, hole + length - end)
        if end > self._high_water:
            self._high_water = end

    def _add_hole(self, start: int, size: int) -> None:
        self._holes.add(start, size)
        self._ends[start + size] = start

    def _hole_around(self, offset: int, size: int) -> int | None:
        """Start of the hole that contains [offset, offset + size), or None."""
        start = self._holes.before(offset)
        if start is None or start + self._holes.sizes[start] < offset + size:
            return None
        return start

    def release(self, request: Request) -> None:
        holes = self._holes
        for block, size, padded, _ in request:
            if padded == 0:
                continue
            start = self._addresses.pop(block, None)
            if start is None:
                raise ProgramError(f"block {block} is released but holds no memory")
            self.live -= size
            self.used -= padded
            end = start + padded
            if end in holes.sizes:
                length = holes.remove(end)
                del self._ends[end + length]
                end += length
            left = self._ends.pop(start, None)
            if left is not None:
                holes.remove(left)
                start = left
            self._add_hole(start, end - start)

    def bytes_of(self, request: Request) -> int:
        return sum(padded for _, _, padded, _ in request)

    def address(self, block: int) -> int | None:
        """Where a block lies, None if it holds no memory."""
        return self._addresses.get(block)

    def segments(self) -> Iterator[Segment]:
        """The address space from the lowest address up, held and free pieces, as moDNN's linked list has it."""
        held = sorted((start, block) for block, start in self._addresses.items())
        free = sorted(self._holes.sizes.items())
        bounds = sorted([start for start, _ in held] + [start for start, _ in free])
        end = UNLIMITED if self.capacity is None else self.capacity
        owner = dict(held)
        for start, stop in zip(bounds, [*bounds[1:], end], strict=True):
            yield Segment(start, stop - start, owner.get(start))

    @property
    def largest_hole(self) -> int:
        return -1 if self.capacity is None else self._holes.largest()

    @property
    def high_water(self) -> int:
        return self._high_water

    def state(self) -> Hashable:
        return tuple(sorted(self._addresses.items()))
