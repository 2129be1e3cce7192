"""What the caching allocator gets its segments from: the memory of a device and its address space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from simgpu.memory.addressed import Holes
from simgpu.memory.pool import UNLIMITED


class SegmentSource(Protocol):
    """Memory of a device, as the functions of the CUDA driver give it.

    total: bytes of memory; None for unlimited. context: bytes of it that the CUDA context takes.
    """

    total: int | None
    context: int

    def allocate(self, size: int) -> int | None:
        """The address of a new segment; None if there is too little memory."""
        ...

    def free(self, address: int, size: int) -> None:
        """Free a segment."""
        ...

    def reserve(self, size: int) -> int:
        """The address of a new range of addresses without memory."""
        ...

    def unreserve(self, address: int, size: int) -> None:
        """Free a range of addresses without memory."""
        ...

    def map(self, address: int, size: int) -> bool:
        """Give memory to reserved addresses; False if there is too little."""
        ...

    def unmap(self, address: int, size: int) -> None:
        """Take memory from reserved addresses."""
        ...


class ExclusiveDevice:
    """Memory of a device that only this allocator uses.

    A segment fits if enough bytes are free: the driver has no fragmentation, since it maps pages of 2 MiB anywhere.
    Which address a segment gets is the driver's choice and not documented; here it is the lowest that is free. It
    matters only between free blocks of equal size, of which the allocator takes the lowest.

    total: bytes; None for unlimited. used: bytes of segments. context: bytes that the CUDA context takes of them.

    >>> device = ExclusiveDevice(50 * 2**20)
    >>> device.allocate(20 * 2**20), device.allocate(20 * 2**20), device.allocate(20 * 2**20)
    (0, 20971520, None)
    >>> ExclusiveDevice(50 * 2**20, context=40 * 2**20).allocate(20 * 2**20) is None
    True
    """

    __slots__ = ("_addresses", "_limit", "context", "total", "used")

    def __init__(self, total: int | None, context: int = 0) -> None:
        self.total = total
        self.context = context
        self.used = 0
        self._limit = UNLIMITED if total is None else total - context
        self._addresses = Holes(UNLIMITED)

    def free_addresses(self) -> Iterator[tuple[int, int]]:
        """Ranges without a segment as (address, size), ascending."""
        return iter(self._addresses)

    def allocate(self, size: int) -> int | None:
        """The address of a new segment; None if there is too little memory."""
        if self.used + size > self._limit:
            return None
        self.used += size
        return self._addresses.take(size)

    def free(self, address: int, size: int) -> None:
        """Free a segment."""
        self.used -= size
        self._addresses.free(address, size)

    def reserve(self, size: int) -> int:
        """The address of a new range of addresses without memory."""
        address = self._addresses.take(size)
        assert address is not None
        return address

    def unreserve(self, address: int, size: int) -> None:
        """Free a range of addresses without memory."""
        self._addresses.free(address, size)

    def map(self, address: int, size: int) -> bool:
        """Give memory to reserved addresses; False if there is too little."""
        if self.used + size > self._limit:
            return False
        self.used += size
        return True

    def unmap(self, address: int, size: int) -> None:
        """Take memory from reserved addresses."""
        self.used -= size
