"""Blocks of the caching allocator, and the ordered sets of those that are free."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple


class AddressSpace(NamedTuple):
    """The address space of an expandable segment. segment_size: bytes that are mapped at once."""

    address: int
    size: int
    segment_size: int


class MemoryBlock:
    """A range of addresses that is allocated, free, or, in an expandable segment, not mapped.

    address, size: of the range, bytes. requested: bytes that were requested. stream: on whose behalf it was
    allocated; only this stream gets it again. pool: where it goes when it is freed. previous, next: its neighbours in
    the same segment. region: the address space of an expandable segment; None in a segment of fixed size.
    uses: other streams that use it. events: uses that had not ended when it was freed. searches: how often its pool had
    been searched when it became free.
    """

    __slots__ = (
        *("address", "allocated", "events", "mapped", "next", "pool", "previous", "region", "requested", "searches"),
        *("size", "stream", "uses"),
    )

    def __init__(
        self, address: int, size: int, stream: int, pool: BlockPool, region: AddressSpace | None = None
    ) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.region = region
        self.requested = 0
        self.allocated = False
        self.mapped = True
        self.previous: MemoryBlock | None = None
        self.next: MemoryBlock | None = None
        self.uses: set[int] | None = None
        self.events = 0
        self.searches = 0

    @property
    def split(self) -> bool:
        """Whether it is a part of its segment."""
        return self.previous is not None or self.next is not None

    @property
    def active(self) -> bool:
        """Whether it is allocated, or was freed while another stream still uses it."""
        return self.allocated or self.events > 0 or bool(self.uses)

    def insert_before(self, other: MemoryBlock) -> None:
        """Become the left neighbour of another block."""
        self.previous, self.next = other.previous, other
        if self.previous is not None:
            self.previous.next = self
        other.previous = self

    def insert_after(self, other: MemoryBlock) -> None:
        """Become the right neighbour of another block."""
        self.previous, self.next = other, other.next
        if self.next is not None:
            self.next.previous = self
        other.next = self


class BlockPool:
    """Free blocks, those of each stream by size, then by address.

    small: whether its requests are of at most 1 MiB. private: the number of a pool of its own, as a CUDA graph has
    one; 0 for the default pool. unmapped: ranges of expandable segments without memory, by stream and address.
    """

    __slots__ = ("_by_address", "_keys", "_unmapped_by_address", "_unmapped_keys", "private", "searches", "small")

    def __init__(self, small: bool, private: int = 0) -> None:
        self.small = small
        self.private = private
        self.searches = 0
        self._keys: list[tuple[int, int, int]] = []
        self._by_address: dict[int, MemoryBlock] = {}
        self._unmapped_keys: list[tuple[int, int]] = []
        self._unmapped_by_address: dict[int, MemoryBlock] = {}

    def insert(self, block: MemoryBlock) -> None:
        """Add a free block."""
        block.searches = self.searches
        insort(self._keys, (block.stream, block.size, block.address))
        self._by_address[block.address] = block

    def remove(self, block: MemoryBlock) -> None:
        """Remove a free block, before its size or address changes."""
        del self._keys[bisect_left(self._keys, (block.stream, block.size, block.address))]
        del self._by_address[block.address]

    def at_least(self, size: int, stream: int) -> Iterator[MemoryBlock]:
        """Free blocks of a stream that have at least this size, the smallest first, at equal sizes the lowest."""
        keys = self._keys
        for at in range(bisect_left(keys, (stream, size, 0)), len(keys)):
            if keys[at][0] != stream:
                return
            yield self._by_address[keys[at][2]]

    def best(self, size: int, stream: int) -> MemoryBlock | None:
        """The first of `at_least`."""
        keys = self._keys
        at = bisect_left(keys, (stream, size, 0))
        if at == len(keys) or keys[at][0] != stream:
            return None
        return self._by_address[keys[at][2]]

    def take(self, size: int, stream: int) -> MemoryBlock | None:
        """Remove and return the first of `at_least`; None if there is none."""
        keys = self._keys
        at = bisect_left(keys, (stream, size, 0))
        if at == len(keys) or keys[at][0] != stream:
            return None
        return self._by_address.pop(keys.pop(at)[2])

    def up_to(self, size: int, stream: int) -> list[MemoryBlock]:
        """All free blocks before those of `at_least`, the last first; also those of streams with lower numbers."""
        keys = self._keys
        return [self._by_address[keys[at][2]] for at in range(bisect_left(keys, (stream, size, 0)) - 1, -1, -1)]

    def __iter__(self) -> Iterator[MemoryBlock]:
        """All free blocks in their order."""
        return iter([self._by_address[key[2]] for key in self._keys])

    def insert_unmapped(self, block: MemoryBlock) -> None:
        """Add a range without memory."""
        insort(self._unmapped_keys, (block.stream, block.address))
        self._unmapped_by_address[block.address] = block

    def remove_unmapped(self, block: MemoryBlock) -> None:
        """Remove a range without memory, before its address changes."""
        del self._unmapped_keys[bisect_left(self._unmapped_keys, (block.stream, block.address))]
        del self._unmapped_by_address[block.address]

    def unmapped(self, stream: int) -> list[MemoryBlock]:
        """Ranges of a stream without memory, the lowest first."""
        keys = self._unmapped_keys
        first, last = bisect_left(keys, (stream, 0)), bisect_left(keys, (stream + 1, 0))
        return [self._unmapped_by_address[keys[at][1]] for at in range(first, last)]

    def keys(self) -> tuple[tuple[int, int, int], ...]:
        """Stream, size and address of all free blocks, in their order."""
        return tuple(self._keys)
