"""PyTorch's caching allocator as the memory of a simulated GPU."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from simgpu.errors import ProgramError
from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.device import ExclusiveDevice
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.memory.pool import UNLIMITED, Request, aligned


class CachingPool:
    """Memory that PyTorch's caching allocator manages.

    All blocks belong to one stream: in a simulated program, an event makes each stream wait until a block may be used
    again, as `record_stream` would. A request that fails has freed all unused segments, as in PyTorch before it gives
    up. `used` counts blocks as the allocator sizes them (allocated memory), `high_water` segments (reserved memory).
    capacity: bytes that the allocator can have. context: bytes of the device that the CUDA context takes besides.
    held: by number, the blocks that are allocated.

    >>> pool = CachingPool(64 * 2**20)
    >>> request = pool.prepare([0], [3 * 2**20])
    >>> pool.acquire(request), pool.used, pool.high_water
    (True, 3145728, 20971520)
    """

    __slots__ = ("alignment", "allocator", "capacity", "device", "held", "limit", "live", "used")

    def __init__(
        self,
        capacity: int | None,
        alignment: int = 1,
        settings: AllocatorSettings | None = None,
        context: int = 0,
    ) -> None:
        self.capacity = capacity
        self.alignment = alignment
        self.limit = UNLIMITED if capacity is None else capacity
        self.live = 0
        self.used = 0
        self.device = ExclusiveDevice(None if capacity is None else capacity + context, context)
        self.allocator = CachingAllocator(self.device, settings)
        self.held: dict[int, MemoryBlock] = {}

    def prepare(self, blocks: Sequence[int], sizes: Sequence[int], offsets: Sequence[int] | None = None) -> Request:
        """A request for these blocks, in this order. Raises `ProgramError` for offsets: the allocator chooses them."""
        if offsets is not None:
            raise ProgramError("a program that gives offsets needs the addressed pool, not the caching one")
        pieces = tuple(
            [(block, aligned(size, self.alignment)) for block, size in zip(blocks, sizes, strict=True) if size]
        )
        rounded = self.allocator.rounded
        return sum(sizes), sum([rounded(size) for _, size in pieces]), pieces, None

    def acquire(self, request: Request) -> bool:
        """Allocate all blocks, or none and return False."""
        blocks, allocate = self.held, self.allocator.allocate
        for piece, size in request[2]:
            block = allocate(size)
            if block is None:
                self._free(request[2][: request[2].index((piece, size))])
                return False
            blocks[piece] = block
        self.live += request[0]
        self.used = self.allocator.statistics.allocated
        return True

    def release(self, request: Request) -> None:
        """Free all blocks. Raises `ProgramError` for a block without memory."""
        try:
            self._free(request[2])
        except KeyError as error:
            raise ProgramError(f"block {error} is released but holds no memory") from None
        self.live -= request[0]

    def _free(self, pieces: Sequence[tuple[int, int]]) -> None:
        for piece, _ in pieces:
            self.allocator.free(self.held.pop(piece))
        self.used = self.allocator.statistics.allocated

    def address(self, block: int) -> int | None:
        """The address of a block, None if it has no memory."""
        held = self.held.get(block)
        return None if held is None else held.address

    @property
    def addresses(self) -> dict[int, int]:
        """The addresses of all blocks that are allocated."""
        return {number: block.address for number, block in self.held.items()}

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest free block, or that the device has left; -1 in unlimited memory."""
        if self.capacity is None:
            return -1
        free = max((block.size for pool in self.allocator.pools.values() for block in pool), default=0)
        return max(free, self.capacity - self.allocator.statistics.reserved)

    @property
    def high_water(self) -> int:
        """The peak of reserved memory, bytes."""
        return self.allocator.statistics.reserved_peak

    @property
    def reserved(self) -> int:
        """Bytes of all segments: what the allocator has from the device."""
        return self.allocator.statistics.reserved

    def state(self) -> Hashable:
        """The addresses of all blocks, and the free ones in their order."""
        held = tuple(sorted((number, block.address, block.size) for number, block in self.held.items()))
        return held, tuple((*key, pool.keys()) for key, pool in sorted(self.allocator.pools.items()))
