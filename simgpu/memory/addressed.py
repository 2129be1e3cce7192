"""The pool that gives addresses, by the rule of moDNN (section 3.3): exact fit first, then first fit."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from simgpu.errors import ProgramError
from simgpu.memory.holes import Holes
from simgpu.memory.pool import UNLIMITED, Request, aligned


class Segment(NamedTuple):
    """A piece of the address space: held by `block`, or free where that is None."""

    start: int
    size: int
    block: int | None


class AddressedPool:
    """Memory with addresses.

    A block takes the lowest hole of exactly its size, else the lowest hole it fits into; a given offset is taken as
    it is. Blocks of a request are placed in listed order; where one does not fit, none is placed. Blocks of zero
    bytes take no address.

    >>> pool = AddressedPool(100)
    >>> a, b, c = (pool.prepare([n], [size]) for n, size in enumerate((40, 30, 30)))
    >>> pool.acquire(a), pool.acquire(b), pool.acquire(c)
    (True, True, True)
    >>> pool.release(b)
    >>> pool.largest_hole, list(pool.segments())[1]
    (30, Segment(start=40, size=30, block=None))
    """

    __slots__ = ("_addresses", "_holes", "alignment", "capacity", "live", "used")

    def __init__(self, capacity: int | None, alignment: int = 1) -> None:
        self.capacity = capacity
        self.alignment = alignment
        self.live = 0
        self.used = 0
        self._addresses: dict[int, int] = {}
        self._holes = Holes(UNLIMITED if capacity is None else capacity)

    def prepare(self, blocks: Sequence[int], sizes: Sequence[int], offsets: Sequence[int] | None = None) -> Request:
        """A request for these blocks; offsets name the address of each."""
        live = used = sum(sizes)
        padded = sizes
        if self.alignment > 1:
            padded = [aligned(size, self.alignment) for size in sizes]
            used = sum(padded)
        if offsets is None and len(blocks) == 1:
            return live, used, ((blocks[0], padded[0]),) if live else (), None
        if offsets is not None:
            offsets = tuple(offset for offset, size in zip(offsets, padded, strict=True) if size)
        pieces = tuple([piece for piece in zip(blocks, padded, strict=True) if piece[1]])
        return live, used, pieces, offsets

    def acquire(self, request: Request) -> bool:
        """Take the memory of all blocks, or of none and return False."""
        live, used, pieces, offsets = request
        if offsets is None:
            placed = self._holes.take_all(pieces, self._addresses)
        else:
            placed = self._holes.take_all_at(pieces, offsets, self._addresses)
        if placed < len(pieces):
            self._holes.free_all(pieces[:placed], self._addresses)
            return False
        self.live += live
        self.used += used
        return True

    def release(self, request: Request) -> None:
        """Give the memory of all blocks back. Raises `ProgramError` for a block that holds none."""
        live, used, pieces, _ = request
        try:
            self._holes.free_all(pieces, self._addresses)
        except KeyError as error:
            raise ProgramError(f"block {error} is released but holds no memory") from None
        self.live -= live
        self.used -= used

    def address(self, block: int) -> int | None:
        """Where a block lies, None if it holds no memory."""
        return self._addresses.get(block)

    def segments(self) -> Iterator[Segment]:
        """The address space from the lowest address up, held and free pieces, as moDNN's linked list has it."""
        free = dict(self._holes)
        held = {start: block for block, start in self._addresses.items()}
        bounds = sorted([*free, *held])
        end = UNLIMITED if self.capacity is None else self.capacity
        for start, stop in zip(bounds, [*bounds[1:], end][: len(bounds)], strict=True):
            yield Segment(start, stop - start, held.get(start))

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest hole, -1 in unlimited memory."""
        return -1 if self.capacity is None else self._holes.largest()

    @property
    def high_water(self) -> int:
        """The end of the highest address that was ever taken, bytes."""
        return self._holes.high_water

    def state(self) -> Hashable:
        """Which block lies where."""
        return tuple(sorted(self._addresses.items()))
