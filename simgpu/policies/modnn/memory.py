"""The planner's model of the device memory, and the choice of blocks to evict.

Addresses come from the pool that the machine uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simgpu.memory.addressed import AddressedPool
from simgpu.memory.pool import Request
from simgpu.policies.modnn.evictable import HOLE, SAFE, Delay, Evictable, Ints, Scheme
from simgpu.policies.modnn.streams import Point
from simgpu.policies.modnn.tasks import Tasks

#: The workspace's number in the pool.
WORKSPACE = -1


#: The scheme where memory is already available.
NOTHING: Scheme | None = Scheme(0, ())


class Freed(NamedTuple):
    """Addresses that the data stream released, and the point after which they are free."""

    start: int
    stop: int
    point: Point


@dataclass(slots=True)
class DeviceMemory:
    """Data blocks in and out of the device memory.

    present: blocks in device memory. unused: present blocks that were not used since they were created or fetched.
    arriving[b]: the end of a fetch that the compute stream has not waited for yet. on_host: blocks whose current value
    is on the host or being offloaded. written[b]: the end of the task that last wrote it. freed: addresses that the
    data stream released; freed_after[b]: the point of a block's release. _copy_columns: by block, the time
    to copy it out and the bytes of a copy.
    """

    tasks: Tasks
    pool: AddressedPool
    present: set[int] = field(default_factory=set)
    unused: set[int] = field(default_factory=set)
    arriving: dict[int, Point] = field(default_factory=dict)
    on_host: set[int] = field(default_factory=set)
    written: dict[int, Point] = field(default_factory=dict)
    freed: list[Freed] = field(default_factory=list)
    freed_after: dict[int, Point] = field(default_factory=dict)
    _requests: dict[int, Request] = field(default_factory=dict)
    _copy_columns: Ints = field(init=False)

    def __post_init__(self) -> None:
        out_ns, copy_sizes = self.tasks.out_ns, self.tasks.graph.copy_sizes
        blocks = range(len(self.tasks.sizes))
        # The last two columns are for the workspace and for holes.
        rows = [[*(out_ns.get(b, 0) for b in blocks), 0, 0], [*(copy_sizes[b] for b in blocks), 0, 0]]
        # Python's integers are exact where sums could exceed 64 bits.
        self._copy_columns = np.array(rows, dtype=np.int64 if 2 * sum(map(sum, rows)) < SAFE else object)

    def request(self, b: int) -> Request:
        """The pool's request for a data block."""
        request = self._requests.get(b)
        if request is None:
            request = self._requests[b] = self.pool.prepare([b], [self.tasks.graph.sizes[b]])
        return request

    def acquire(self, b: int) -> bool:
        """Acquire memory for a block by the pool's rule; False where no hole is large enough."""
        if not self.pool.acquire(self.request(b)):
            return False
        self.present.add(b)
        self.unused.add(b)
        return True

    def release(self, b: int) -> None:
        """Release a block's memory."""
        self.pool.release(self.request(b))
        self.present.discard(b)
        self.unused.discard(b)
        self.arriving.pop(b, None)

    def offset(self, b: int) -> int:
        """Address of a block, 0 for an empty one."""
        return self.pool.address(b) or 0

    def span(self, b: int) -> tuple[int, int]:
        """Addresses of a block."""
        start = self.offset(b)
        return start, start + self.tasks.sizes[b]

    def in_order(self) -> tuple[int, ...]:
        """All data blocks in device memory by their addresses."""
        return tuple(sorted(self.present, key=lambda b: (self.offset(b), b)))

    def freed_in(self, start: int, stop: int) -> list[Point]:
        """The points at which the data stream releases parts of these addresses."""
        return [freed.point for freed in self.freed if freed.start < stop and start < freed.stop]

    def free_at(self, start: int, stop: int) -> int:
        """When the data stream has released all of these addresses, nanoseconds."""
        return max((point.time for point in self.freed_in(start, stop)), default=0)

    def on_trial(self, workspace: Request, evicted: Collection[int], blocks: Iterable[int]) -> tuple[int, list[int]]:
        """Place a workspace as if some blocks were evicted: when its addresses are free, and the blocks that then fail.

        blocks: the blocks to place with it, in order. The memory does not change.
        """
        holes, sizes = self.pool.holes.copy(), self.tasks.sizes
        holes.free_all([(b, sizes[b]) for b in evicted], {b: self.offset(b) for b in evicted})
        size = workspace[1]
        start = holes.take(size) if size else 0
        if start is None:
            raise AssertionError("a workspace is only tried where it fits")
        failed = [b for b in blocks if sizes[b] and holes.take(sizes[b]) is None]
        return self.free_at(start, start + size), failed

    def offloaded_at(self, blocks: Iterable[int], begin: int) -> int:
        """When a data stream that is free at `begin` has offloaded these blocks, 0 if the host already has them.

        Each is offloaded as soon as the task that last wrote it has ended (figure 3), one after the other.
        """
        end = 0
        for b in blocks:
            if b not in self.on_host:
                end = max(end or begin, self.written[b].time) + self.tasks.out_ns[b]
        return end

    def scheme(self, size: int, needed: Collection[int], begin: int, delay: Delay) -> Scheme | None:
        """The offloading scheme with the lowest delay that frees `size` contiguous bytes; None where there is none.

        delay: the cost of offloads that end at these times; the others as in `evictable`.
        """
        return self.evictable(needed, begin).scheme(size, delay)

    def evictable(self, needed: Collection[int], begin: int) -> Evictable:
        """The table of what may be evicted now. begin: when the data stream is free.

        A block that was not used since it was created or fetched stays, and so do the needed ones.
        """
        holes, addresses = dict(self.pool.holes), self.pool.addresses
        starts = np.array([*holes, *addresses.values()], dtype=np.int64)
        blocks = np.array([*([HOLE] * len(holes)), *addresses], dtype=np.int64)
        order = np.argsort(starts)
        starts, blocks = starts[order], blocks[order]
        # By block; the last two entries are for the workspace and for holes.
        stays = np.ones(len(self.tasks.sizes) + 2, dtype=bool)
        stays[[*self.present, HOLE]] = False
        stays[[*self.unused, *needed]] = True
        lacking = ~stays
        lacking[[*self.on_host, HOLE]] = False
        lacks = lacking[blocks]
        writes = [self.written[b].time if lack else 0 for b, lack in zip(blocks.tolist(), lacks.tolist(), strict=True)]
        assert self.pool.capacity is not None, "moDNN plans for a budget"
        return Evictable.of(
            starts, self.pool.capacity, blocks, stays[blocks], lacks, begin, writes, self._copy_columns[:, blocks]
        )
