"""The pool that gives addresses, by the rule of moDNN (section 3.3): exact fit first, then first fit.

Lives here: `AddressedPool` and its view as a list of segments. Does not live here: the search structure
(`simgpu.memory.holes`), waiting or time (that is the machine's).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from simgpu.errors import ProgramError
from simgpu.memory.holes import HoleIndex
from simgpu.memory.pool import UNLIMITED, Piece, Request, aligned


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
        pieces = tuple(
            Piece(block, size, aligned(size, self.alignment), place)
            for block, size, place in zip(blocks, sizes, places, strict=True)
            if size
        )
        return Request(sum(sizes), sum(piece.padded for piece in pieces), pieces)

    def acquire(self, request: Request) -> bool:
        pieces = request[2]
        for done, (block, _, padded, offset) in enumerate(pieces):
            start = self._place(padded) if offset is None else self._take_at(offset, padded)
            if start is None:
                for placed in pieces[:done]:
                    self._free(placed.block, placed.padded)
                return False
            self._addresses[block] = start
        self.live += request[0]
        self.used += request[1]
        return True

    def _place(self, size: int) -> int | None:
        """Take `size` bytes by the rule; returns their address, None if no hole is large enough."""
        holes = self._holes
        start = holes.exact(size)
        if start is not None:
            holes.remove(start)
            del self._ends[start + size]
            end = start + size
        else:
            start = holes.first(size)
            if start is None:
                return None
            # The rest of the hole keeps its end and its place in the order of holes.
            end = start + size
            self._ends[start + holes.shrink(start, size)] = end
        if end > self._high_water:
            self._high_water = end
        return start

    def _take_at(self, offset: int, size: int) -> int | None:
        """Take `size` bytes at an offset; returns the offset, None if they are not all free."""
        hole = self._holes.before(offset)
        if hole is None or hole + self._holes.sizes[hole] < offset + size:
            return None
        end = hole + self._holes.remove(hole)
        del self._ends[end]
        if offset > hole:
            self._add_hole(hole, offset - hole)
        if offset + size < end:
            self._add_hole(offset + size, end - offset - size)
        self._high_water = max(self._high_water, offset + size)
        return offset

    def _add_hole(self, start: int, size: int) -> None:
        self._holes.add(start, size)
        self._ends[start + size] = start

    def release(self, request: Request) -> None:
        for block, _, padded, _ in request[2]:
            self._free(block, padded)
        self.live -= request[0]
        self.used -= request[1]

    def _free(self, block: int, size: int) -> None:
        start = self._addresses.pop(block, None)
        if start is None:
            raise ProgramError(f"block {block} is released but holds no memory")
        holes, ends = self._holes, self._ends
        end = start + size
        right = holes.sizes.get(end)
        left = ends.pop(start, None)
        if left is not None:
            # Growing the hole on the left keeps its address, and with it its place in the order of holes.
            if right is not None:
                holes.remove(end)
                end += right
            holes.grow(left, end - left)
            ends[end] = left
        elif right is not None:
            holes.move(end, start, right + size)
            ends[end + right] = start
        else:
            holes.add(start, size)
            ends[end] = start

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
