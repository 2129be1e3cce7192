"""The `Pool` interface, and the pool that only counts bytes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from simgpu.errors import ProgramError

#: The size of unlimited memory.
UNLIMITED = 2**62


def aligned(size: int, alignment: int) -> int:
    """Size rounded up to a multiple of the alignment.

    >>> aligned(1000, 512), aligned(1024, 512), aligned(0, 512)
    (1024, 1024, 0)
    """
    return -(-size // alignment) * alignment


#: One block of a request: its number and its bytes with padding.
Piece = tuple[int, int]

#: Memory for some blocks, all or nothing: total bytes without and with padding; for a pool with addresses, also the
#: blocks of more than zero bytes, and the requested offsets, None for any.
Request = tuple[int, int, tuple[Piece, ...], tuple[int, ...] | None]


class Pool(Protocol):
    """A device memory. A request is prepared once from its blocks and may then be acquired and released many times.

    limit: the capacity, or `UNLIMITED`. alignment: bytes every block is rounded up to. live: bytes of blocks; used: the
    same with the padding of every block.
    """

    capacity: int | None
    limit: int
    alignment: int
    live: int
    used: int

    def prepare(self, blocks: Sequence[int], sizes: Sequence[int], offsets: Sequence[int] | None = None) -> Request:
        """A request for these blocks, in this order, at these offsets if given."""
        ...

    def acquire(self, request: Request) -> bool:
        """Acquire all of a request's memory, or nothing and return False."""
        ...

    def release(self, request: Request) -> None:
        """Release all of a request's memory."""
        ...

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest range that could be allocated now; -1 in unlimited memory."""
        ...

    @property
    def high_water(self) -> int:
        """Bytes of the smallest memory that would have sufficed so far; with addresses, the end of the top range."""
        ...

    def state(self) -> Hashable:
        """The state of the pool: pools with equal states behave identically from then on."""
        ...


class CountingPool:
    """Memory as a number of bytes: whatever fits in total, fits.

    capacity: bytes, None for unlimited. alignment: bytes every block is rounded up to.

    >>> pool = CountingPool(1000)
    >>> request = pool.prepare([0, 1], [600, 300])
    >>> pool.acquire(request), pool.acquire(request), pool.live
    (True, False, 900)
    """

    __slots__ = ("_high_water", "alignment", "capacity", "limit", "live", "used")

    def __init__(self, capacity: int | None, alignment: int = 1) -> None:
        self.capacity = capacity
        self.alignment = alignment
        self.limit = UNLIMITED if capacity is None else capacity
        self.live = 0
        self.used = 0
        self._high_water = 0

    def prepare(self, blocks: Sequence[int], sizes: Sequence[int], offsets: Sequence[int] | None = None) -> Request:
        """A request for these blocks. Raises `ProgramError` for offsets: there are no addresses here."""
        if offsets is not None:
            raise ProgramError("a program that gives offsets needs the addressed pool, not the counting one")
        live = sum(sizes)
        if self.alignment == 1:
            return live, live, (), None
        return live, sum(aligned(size, self.alignment) for size in sizes), (), None

    def acquire(self, request: Request) -> bool:
        """Acquire the memory of all blocks, or of none and return False."""
        total = self.used + request[1]
        if total > self.limit:
            return False
        self.used = total
        self.live += request[0]
        if total > self._high_water:
            self._high_water = total
        return True

    def release(self, request: Request) -> None:
        """Release the memory of all blocks."""
        self.live -= request[0]
        self.used -= request[1]

    @property
    def largest_hole(self) -> int:
        """Bytes that are free, -1 in unlimited memory."""
        return -1 if self.capacity is None else self.capacity - self.used

    @property
    def high_water(self) -> int:
        """The peak use in bytes."""
        return self._high_water

    def state(self) -> Hashable:
        """Bytes in use, without and with padding."""
        return (self.live, self.used)
