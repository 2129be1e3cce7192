"""PyTorch's caching allocator for GPU memory, by its source `c10/cuda/CUDACachingAllocator.cpp`.

Memory comes from the device in segments, which are split into blocks. A freed block joins its free neighbours and
waits for the next request of its stream; segments go back only when the device has no more memory. What is not
modelled: callbacks that free memory, and pools with an allocator of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from simgpu.memory.caching import expandable
from simgpu.memory.caching.blocks import BlockPool, MemoryBlock
from simgpu.memory.caching.device import SegmentSource
from simgpu.memory.caching.segments import Observer, Segments
from simgpu.memory.caching.settings import MIN_BLOCK, SMALL_REQUEST, AllocatorSettings


class CachingAllocator(Segments):
    """PyTorch's caching allocator on one device.

    device: where segments come from. settings: see `AllocatorSettings`. observe: called when segments change.

    >>> from simgpu.memory.caching.device import ExclusiveDevice
    >>> allocator = CachingAllocator(ExclusiveDevice(64 * 2**20))
    >>> first = allocator.allocate(3 * 2**20)
    >>> allocator.statistics.allocated, allocator.statistics.reserved
    (3145728, 20971520)
    >>> allocator.free(first)
    >>> allocator.statistics.allocated, allocator.statistics.reserved
    (0, 20971520)
    >>> allocator.allocate(60 * 2**20).size, allocator.statistics.reserved
    (62914560, 62914560)
    """

    def __init__(
        self, device: SegmentSource, settings: AllocatorSettings | None = None, observe: Observer | None = None
    ) -> None:
        super().__init__(device, settings or AllocatorSettings(), observe)
        self.pools: dict[tuple[int, bool], BlockPool] = {}
        self._outstanding: dict[int, deque[MemoryBlock]] = {}
        self._split_limit = self.settings.split_limit
        self._rounded: dict[int, int] = {}
        fraction = self.settings.memory_fraction
        self._allowed = None if fraction is None or device.total is None else int(fraction * device.total)
        self._collects = self._allowed is not None and self.settings.garbage_collection_threshold > 0
        #: Whether the best free block of a pool is always the one to take, which is faster.
        self.takes_best = (
            self.settings.max_split_size is None and not self.settings.expandable_segments and not self._collects
        )
        self._small, self._large = self.pool_of(SMALL_REQUEST), self.pool_of(SMALL_REQUEST + 1)

    # --- what a program calls -------------------------------------------------------------------------------

    def allocate(self, size: int, stream: int = 0, private: int = 0) -> MemoryBlock | None:
        """A block of at least `size` bytes, more than 0; None if there is no memory for it.

        stream: whose work uses it. private: the number of a private pool, 0 for the default one.
        """
        rounded = self._rounded.get(size) or self.rounded(size)
        pool = self._small if rounded <= SMALL_REQUEST else self._large
        if private:
            pool = self.pool_of(rounded, private)
        block = pool.take(rounded, stream) if self.takes_best else self._free_block(pool, rounded, stream)
        block = block or self._new_block(pool, rounded, stream)
        if block is None:
            self.statistics.ooms += 1
            return None
        return self._hand_out(block, size, rounded)

    def free(self, block: MemoryBlock) -> None:
        """Free a block; if other streams use it, it becomes free when `finish` says that they have ended."""
        uses, block.uses = block.uses, None
        block.allocated = False
        self.statistics.allocated -= block.size
        if not uses:
            self._to_pool(block)
            return
        block.events = len(uses)
        for stream in sorted(uses):
            self._outstanding.setdefault(stream, deque()).append(block)

    def record_stream(self, block: MemoryBlock, stream: int) -> None:
        """Note that work of another stream uses an allocated block (`Tensor.record_stream`)."""
        if stream != block.stream:
            block.uses = (block.uses or set()) | {stream}

    def finish(self, stream: int) -> None:
        """The work of a stream has ended: blocks that were freed before and wait for nothing else become free."""
        for block in self._outstanding.pop(stream, ()):
            block.events -= 1
            if not block.events:
                self._to_pool(block)

    def empty_cache(self) -> None:
        """Free all segments without active blocks (`torch.cuda.empty_cache`). Waits for all streams."""
        for stream in list(self._outstanding):
            self.finish(stream)
        for pool in (self._large, self._small):
            self._release_all(pool)

    # --- to follow a recording -------------------------------------------------------------------------------

    def request_free(self, block: MemoryBlock) -> None:
        """Free a block that becomes free when `complete_free` says so."""
        block.allocated, block.events = False, 1
        self.statistics.allocated -= block.size

    def complete_free(self, block: MemoryBlock) -> None:
        """Nothing uses a block any more that `request_free` has freed."""
        block.events = 0
        self._to_pool(block)

    def has_cached(self, size: int, stream: int = 0, private: int = 0) -> bool:
        """Whether a free block would serve this request."""
        rounded = self.settings.rounded(size)
        return self._suitable(self.pool_of(rounded, private), rounded, stream) is not None

    def add_segment(self, block: MemoryBlock) -> None:
        """Add a segment that is one free block."""
        self.segments[block.address] = block
        self.statistics.segments += 1
        block.pool.insert(block)
        self.changed("segment_alloc", block.address, block.size, block.stream)

    def allocate_at(self, address: int, size: int) -> MemoryBlock | None:
        """Allocate a block at an address; None if it is not free there."""
        rounded = self.settings.rounded(size)
        for pool in self.pools.values():
            for block in pool:
                if not block.address <= address or address + rounded > block.address + block.size:
                    continue
                pool.remove(block)
                if address > block.address:
                    before = MemoryBlock(block.address, address - block.address, block.stream, pool, block.region)
                    before.insert_before(block)
                    if before.previous is None:
                        self.segments[before.address] = before
                    block.address, block.size = address, block.size - before.size
                    pool.insert(before)
                return self._hand_out(block, size, rounded)
        return None

    def rounded(self, size: int) -> int:
        """The size of the block for a request."""
        if size not in self._rounded:
            self._rounded[size] = self.settings.rounded(size)
        return self._rounded[size]

    # --- what is there ---------------------------------------------------------------------------------------

    def blocks(self) -> Iterator[MemoryBlock]:
        """All blocks, segment by segment in the order of their addresses; without ranges that are not mapped."""
        for _, first in sorted(self.segments.items()):
            block: MemoryBlock | None = first
            while block is not None:
                if block.mapped:
                    yield block
                block = block.next

    def pool_of(self, rounded: int, private: int = 0) -> BlockPool:
        """The pool for blocks of this size."""
        key = (private, rounded <= SMALL_REQUEST)
        if key not in self.pools:
            self.pools[key] = BlockPool(key[1], private)
        return self.pools[key]

    # --- free blocks ---------------------------------------------------------------------------------------

    def _free_block(self, pool: BlockPool, size: int, stream: int) -> MemoryBlock | None:
        """Take the best free block from its pool."""
        if self._collects:
            pool.searches += 1
        block = self._suitable(pool, size, stream)
        if block is not None:
            pool.remove(block)
        return block

    def _suitable(self, pool: BlockPool, size: int, stream: int) -> MemoryBlock | None:
        """The best free block: the smallest that is large enough, at equal sizes the lowest."""
        block = pool.best(size, stream)
        if block is None:
            return None
        if block.region is not None:
            block = expandable.best(pool, size, stream, self.settings.expandable_segments)
            if block is None:
                return None
        limit = self._split_limit
        if size < limit <= block.size or (size >= limit and block.size >= size + self.settings.max_non_split_rounding):
            return None
        return block

    def _hand_out(self, block: MemoryBlock, requested: int, size: int) -> MemoryBlock:
        """Split a block that was taken from its pool, if it is much larger than needed, and allocate it."""
        remaining = block.size - size
        if self._splits(block, size, remaining):
            rest, block = block, MemoryBlock(block.address, size, block.stream, block.pool, block.region)
            block.insert_before(rest)
            if block.previous is None:
                self.segments[block.address] = block
            rest.address += size
            rest.size = remaining
            rest.pool.insert(rest)
        block.allocated = True
        block.requested = requested
        taken = self.statistics
        taken.allocated += block.size
        taken.active += block.size
        taken.requested += requested
        if taken.allocated > taken.allocated_peak:
            taken.allocated_peak = taken.allocated
        if taken.active > taken.active_peak:
            taken.active_peak = taken.active
        if taken.requested > taken.requested_peak:
            taken.requested_peak = taken.requested
        return block

    def _splits(self, block: MemoryBlock, size: int, remaining: int) -> bool:
        if block.pool.small or self.settings.expandable_segments:
            return remaining >= MIN_BLOCK
        return size < self._split_limit and remaining > SMALL_REQUEST

    def _to_pool(self, block: MemoryBlock) -> None:
        """Join a freed block with its free neighbours and add it to its pool."""
        self.statistics.active -= block.size
        self.statistics.requested -= block.requested
        self.join(block, block.previous)
        self.join(block, block.next)
        block.pool.insert(block)

    # --- memory of the device --------------------------------------------------------------------------------

    def _new_block(self, pool: BlockPool, size: int, stream: int) -> MemoryBlock | None:
        """A block in new memory; if there is too little, unused segments are freed first."""
        if self._collects:
            self._collect_garbage()
        block = self._new_segment(pool, size, stream)
        if block is None and self._release_oversized(pool, size, stream):
            block = self._new_segment(pool, size, stream)
        if block is None:
            self.empty_cache()
            self.statistics.retries += 1
            block = self._new_segment(pool, size, stream)
        return block

    def _new_segment(self, pool: BlockPool, size: int, stream: int) -> MemoryBlock | None:
        bytes = self.settings.segment_size(size)
        if self._allowed is not None and self.statistics.reserved + bytes > self._allowed:
            return None
        if self.settings.expandable_segments:
            return expandable.allocate(self, pool, size, stream)
        address = self.device.allocate(bytes)
        if address is None:
            return None
        block = MemoryBlock(address, bytes, stream, pool)
        self.segments[address] = block
        self.statistics.segments += 1
        self.changed("segment_alloc", address, bytes, stream)
        return block

    def _release(self, block: MemoryBlock) -> None:
        """Free a segment that is one free block."""
        block.pool.remove(block)
        del self.segments[block.address]
        self.statistics.segments -= 1
        self.device.free(block.address, block.size)
        self.changed("segment_free", block.address, block.size, block.stream)

    def _release_all(self, pool: BlockPool) -> None:
        """Free all segments of a pool that are one free block; in expandable ones, whole steps that are free."""
        growing = []
        for block in pool:
            if block.region is not None:
                growing.append(block)
            elif not block.split:
                self._release(block)
        for block in growing:
            expandable.release(self, block)

    def _release_oversized(self, pool: BlockPool, size: int, stream: int) -> bool:
        """Free blocks that are too large to be split, just enough for a request; whether that succeeded."""
        limit = self._split_limit
        if self.settings.max_split_size is None:
            return False
        wanted = max(size, limit)
        found = pool.best(wanted, stream)
        if found is not None and found.region is None:
            self._release(found)
            return True
        released = 0
        for block in pool.up_to(wanted, stream):
            if released >= wanted or block.size < limit or block.stream != stream:
                break
            if block.region is None:
                released += block.size
                self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Free unused segments, the longest unused ones first, down to a fraction of the allowed memory."""
        assert self._allowed is not None
        wanted = self.statistics.reserved - int(self.settings.garbage_collection_threshold * self._allowed)
        pool = self._large
        free = [block for block in pool if not block.split]
        reclaimed, released = 0, True
        while reclaimed < wanted and released and free:
            ages = [pool.searches - block.searches for block in free]
            threshold = sum(ages) / len(ages)
            released = False
            for block, age in zip(list(free), ages, strict=True):
                if age >= threshold and block.region is None:
                    released = True
                    reclaimed += block.size
                    free.remove(block)
                    self._release(block)
