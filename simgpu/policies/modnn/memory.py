"""The planner's model of the device memory, and the choice of blocks to evict.

Addresses come from the pool that the machine uses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simgpu.memory.addressed import AddressedPool, AddressRange
from simgpu.memory.pool import Request
from simgpu.policies.modnn.streams import Point
from simgpu.policies.modnn.tasks import Tasks

#: The workspace's number in the pool.
WORKSPACE = -1


class Scheme(NamedTuple):
    """Contiguous blocks to offload or free, in address order, and the resulting delay (ns)."""

    delay: int
    blocks: tuple[int, ...]


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
    data stream released; freed_after[b]: the point of a block's release.
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

    def on_trial(self, workspace: Request, evicted: Iterable[int], blocks: Iterable[int]) -> tuple[int, list[int]]:
        """Place a workspace as if some blocks were evicted: when its addresses are free, and the blocks that then fail.

        blocks: the blocks to place with it, in order. The memory is unchanged afterwards.
        """
        graph = self.tasks.graph
        evicted_requests = [self.pool.prepare([b], [graph.sizes[b]], [self.offset(b)]) for b in evicted]
        for request in evicted_requests:
            self.pool.release(request)
        if not self.pool.acquire(workspace):
            raise AssertionError("a workspace is only tried where it fits")
        start = self.pool.address(WORKSPACE) or 0
        placed, failed = [workspace], []
        for b in blocks:
            if self.pool.acquire(self.request(b)):
                placed.append(self.request(b))
            else:
                failed.append(b)
        for request in placed:
            self.pool.release(request)
        for request in evicted_requests:
            self.pool.acquire(request)
        return self.free_at(start, start + workspace[1]), failed

    def offloaded_at(self, blocks: Iterable[int], begin: int) -> int:
        """When a data stream that is free at `begin` has offloaded these blocks, 0 if the host already has them.

        Each is offloaded as soon as the task that last wrote it has ended (figure 3), one after the other.
        """
        end = 0
        for b in blocks:
            if b not in self.on_host:
                end = max(end or begin, self.written[b].time) + self.tasks.out_ns[b]
        return end

    def scheme(
        self,
        size: int,
        needed: Collection[int],
        begin: int,
        delay: Callable[[int], int],
        segments: Sequence[AddressRange] = (),
    ) -> Scheme | None:
        """The offloading scheme with the lowest delay that frees `size` contiguous bytes; None where there is none.

        From each node of the list upwards, neighbouring segments are added until they are large enough (figure 6). A
        block that was not used since it was created or fetched stays, and so do the needed ones. Of schemes with equal
        delay the one that copies the fewest bytes is chosen, then the one at the lowest address. begin: when the data
        stream is free; delay: the cost of offloads that end at a time. segments: those of the pool, if already listed.
        """
        segments = segments or list(self.pool.segments())
        staying = self.unused.union(needed)
        run: list[AddressRange] = []
        best: tuple[tuple[int, int, int], Scheme] | None = None
        for segment in (*segments, None):
            if segment and (segment.block is None or (segment.block in self.present and segment.block not in staying)):
                run.append(segment)
            elif run:
                window = self._best_window(run, size, begin, delay)
                if window is not None and (best is None or window[0] < best[0]):
                    best = window
                run = []
        return None if best is None else best[1]

    def _best_window(
        self, run: Sequence[AddressRange], size: int, begin: int, delay: Callable[[int], int]
    ) -> tuple[tuple[int, int, int], Scheme] | None:
        """The best scheme among neighbours that may all be evicted, and its sort key.

        With running sums a window's cost is a difference, except where a copy would have to wait.
        """
        copied, copy_bytes, late = [0], [0], [0]
        copy_sizes = self.tasks.graph.copy_sizes
        for _, _, b in run:
            lacking = b is not None and b not in self.on_host
            copied.append(copied[-1] + (self.tasks.out_ns[b] if b is not None and lacking else 0))
            copy_bytes.append(copy_bytes[-1] + (0 if b is None else copy_sizes[b] * (2 if lacking else 1)))
            late.append(late[-1] + (b is not None and lacking and self.written[b].time > begin))
        best: tuple[tuple[int, int, int], Scheme] | None = None
        total, stop = 0, 0
        for first, start in enumerate(run):
            while stop < len(run) and total < size:
                total += run[stop].size
                stop += 1
            if total < size:
                break
            end = begin + copied[stop] - copied[first] if copied[stop] > copied[first] else 0
            if late[stop] > late[first]:
                end = self.offloaded_at((b for _, _, b in run[first:stop] if b is not None), begin)
            key = (delay(end), copy_bytes[stop] - copy_bytes[first], start.start)
            if best is None or key < best[0]:
                blocks = tuple(b for _, _, b in run[first:stop] if b is not None)
                best = key, Scheme(key[0], blocks)
            total -= start.size
        return best
