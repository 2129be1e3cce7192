"""Memory with addresses, by moDNN's allocation rule (section 3.3): exact fit first, then first fit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from simgpu.errors import ProgramError
from simgpu.memory.pool import UNLIMITED, Piece, Request, aligned


class AddressRange(NamedTuple):
    """A range of the address space, allocated to `block`, or free if that is None."""

    start: int
    size: int
    block: int | None


class AddressedPool:
    """Memory with addresses.

    A block is placed in the lowest hole of exactly its size, else in the lowest hole that is large enough, or at a
    given offset. Blocks of a request are placed in listed order; if one does not fit, none is placed. Empty blocks have
    no address. addresses: by block. holes: what is free.

    >>> pool = AddressedPool(100)
    >>> a, b, c = (pool.prepare([n], [size]) for n, size in enumerate((40, 30, 30)))
    >>> pool.acquire(a), pool.acquire(b), pool.acquire(c)
    (True, True, True)
    >>> pool.release(b)
    >>> pool.largest_hole, list(pool.segments())[1]
    (30, AddressRange(start=40, size=30, block=None))
    """

    __slots__ = ("addresses", "alignment", "capacity", "holes", "limit", "live", "used")

    def __init__(self, capacity: int | None, alignment: int = 1) -> None:
        self.capacity = capacity
        self.alignment = alignment
        self.live = 0
        self.used = 0
        self.addresses: dict[int, int] = {}
        self.limit = UNLIMITED if capacity is None else capacity
        self.holes = Holes(self.limit)

    def prepare(self, blocks: Sequence[int], sizes: Sequence[int], offsets: Sequence[int] | None = None) -> Request:
        """A request for these blocks, at these offsets if given."""
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
        """Acquire the memory of all blocks, or of none and return False."""
        live, used, pieces, offsets = request
        if offsets is None:
            placed = self.holes.take_all(pieces, self.addresses)
        else:
            placed = self.holes.take_all_at(pieces, offsets, self.addresses)
        if placed < len(pieces):
            self.holes.free_all(pieces[:placed], self.addresses)
            return False
        self.live += live
        self.used += used
        return True

    def release(self, request: Request) -> None:
        """Release the memory of all blocks. Raises `ProgramError` for a block without memory."""
        live, used, pieces, _ = request
        try:
            self.holes.free_all(pieces, self.addresses)
        except KeyError as error:
            raise ProgramError(f"block {error} is released but holds no memory") from None
        self.live -= live
        self.used -= used

    def address(self, block: int) -> int | None:
        """The address of a block, None if it has no memory."""
        return self.addresses.get(block)

    def segments(self) -> Iterator[AddressRange]:
        """The allocated and free ranges from the lowest address up, as in moDNN's linked list."""
        free = dict(self.holes)
        blocks = {start: block for block, start in self.addresses.items()}
        bounds = sorted([*free, *blocks])
        end = UNLIMITED if self.capacity is None else self.capacity
        for start, stop in zip(bounds, [*bounds[1:], end][: len(bounds)], strict=True):
            yield AddressRange(start, stop - start, blocks.get(start))

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest hole, -1 in unlimited memory."""
        return -1 if self.capacity is None else self.holes.largest()

    @property
    def high_water(self) -> int:
        """The end of the highest range ever allocated, bytes."""
        return self.holes.high_water

    def state(self) -> Hashable:
        """The addresses of all blocks."""
        return tuple(sorted(self.addresses.items()))


#: A run of holes is split when it grows past this.
_RUN = 96


class Holes:
    """Free ranges of an address space, ordered by address.

    Holes are stored in runs of at most 96, each a list of addresses and a list of sizes. With one run, as in ordinary
    traces, a search scans one short list. With more runs, first fit skips runs by their largest hole, and exact fit
    uses a heap of addresses per size, whose outdated entries are dropped when they surface. So no search is linear in
    the number of holes. high_water: the end of the highest range ever allocated by a successful request.

    >>> holes = Holes(100)
    >>> holes.take(40), holes.take(30), holes.take(31)
    (0, 40, None)
    >>> holes.free(0, 40)
    >>> list(holes), holes.take(30), holes.largest()
    ([(0, 40), (70, 30)], 70, 40)
    """

    __slots__ = ("_by_size", "_firsts", "_largest", "_sizes", "_starts", "high_water")

    def __init__(self, size: int) -> None:
        self.high_water = 0
        self._starts: list[list[int]] = [[0] if size else []]
        self._sizes: list[list[int]] = [[size] if size else []]
        # Maintained only with several runs.
        self._firsts: list[int] = [0]
        self._largest: list[int] = [size]
        self._by_size: dict[int, list[int]] | None = None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Holes as (address, size), ascending."""
        for starts, sizes in zip(self._starts, self._sizes, strict=True):
            yield from zip(starts, sizes, strict=True)

    def largest(self) -> int:
        """Size of the largest hole, 0 if there is none."""
        if self._by_size is not None:
            return max(self._largest)
        return max((max(sizes, default=0) for sizes in self._sizes), default=0)

    def copy(self) -> Holes:
        """The same holes, independent of these."""
        copied = Holes(0)
        copied.high_water = self.high_water
        copied._starts, copied._sizes = [[*each] for each in self._starts], [[*each] for each in self._sizes]
        copied._firsts, copied._largest = [*self._firsts], [*self._largest]
        copied._by_size = None if self._by_size is None else {size: [*heap] for size, heap in self._by_size.items()}
        return copied

    # --- taking ---------------------------------------------------------------------------------------------

    def take(self, size: int) -> int | None:
        """Allocate `size` bytes: the lowest hole of exactly that size, else from the lowest larger hole."""
        addresses: dict[int, int] = {}
        self.take_all(((0, size),), addresses)
        return addresses.get(0)

    def take_all(self, pieces: Sequence[Piece], addresses: dict[int, int]) -> int:
        """Allocate pieces in order and record their addresses; returns the number of allocated ones.

        It ends at the first piece that does not fit. With `free_all` this is the pool's inner loop.
        """
        if self._by_size is not None:
            return self._take_all_from_runs(pieces, addresses)
        starts, sizes = self._starts[0], self._sizes[0]
        high = self.high_water
        for block, size in pieces:
            if size in sizes:
                index = sizes.index(size)
                del sizes[index]
                start = starts.pop(index)
            else:
                index = 0
                for hole in sizes:
                    if hole > size:
                        break
                    index += 1
                else:
                    return pieces.index((block, size))
                start = starts[index]
                starts[index] = start + size
                sizes[index] = hole - size
            addresses[block] = start
            if start + size > high:
                high = start + size
        self.high_water = high
        return len(pieces)

    def _take_all_from_runs(self, pieces: Sequence[Piece], addresses: dict[int, int]) -> int:
        high = self.high_water
        for done, (block, size) in enumerate(pieces):
            start = self._take_from_runs(size)
            if start is None:
                return done
            addresses[block] = start
            high = max(high, start + size)
        self.high_water = high
        return len(pieces)

    def take_all_at(self, pieces: Sequence[Piece], offsets: Sequence[int], addresses: dict[int, int]) -> int:
        """Allocate each piece at its offset; otherwise like `take_all`."""
        high = self.high_water
        for done, ((block, size), offset) in enumerate(zip(pieces, offsets, strict=True)):
            if not self._take_at(offset, size):
                return done
            addresses[block] = offset
            high = max(high, offset + size)
        self.high_water = high
        return len(pieces)

    def _take_from_runs(self, size: int) -> int | None:
        start = self._exact(size)
        if start is not None:
            run = self._run_of(start)
            self._remove(run, bisect_right(self._starts[run], start) - 1)
            return start
        for run, largest in enumerate(self._largest):
            if largest > size:
                for index, hole in enumerate(self._sizes[run]):
                    if hole > size:
                        start = self._starts[run][index]
                        self._change(run, index, start + size, hole - size)
                        return start
        return None

    def _exact(self, size: int) -> int | None:
        by_size = self._by_size or {}
        heap = by_size.get(size)
        while heap:
            start = heap[0]
            run = self._run_of(start)
            index = bisect_right(self._starts[run], start) - 1
            if index >= 0 and self._starts[run][index] == start and self._sizes[run][index] == size:
                return start
            heappop(heap)
        if heap is not None:
            del by_size[size]
        return None

    def _take_at(self, offset: int, size: int) -> bool:
        """Allocate `size` bytes at an address, if they are all free."""
        run = self._run_of(offset)
        index = bisect_right(self._starts[run], offset) - 1
        if index < 0:
            return False
        start, hole = self._starts[run][index], self._sizes[run][index]
        if start + hole < offset + size:
            return False
        self._remove(run, index)
        if offset > start:
            self.free(start, offset - start)
        if offset + size < start + hole:
            self.free(offset + size, start + hole - offset - size)
        return True

    # --- giving back ----------------------------------------------------------------------------------------

    def free(self, start: int, size: int) -> None:
        """Free these bytes; joins them with neighbouring holes."""
        self.free_all(((0, size),), {0: start})

    def free_all(self, pieces: Sequence[Piece], addresses: dict[int, int]) -> None:
        """Free the memory of pieces and delete their addresses. Raises `KeyError` for a piece without an address."""
        if self._by_size is not None:
            for block, size in pieces:
                self._free_in_runs(addresses.pop(block), size)
            return
        starts, sizes = self._starts[0], self._sizes[0]
        for block, size in pieces:
            start = addresses.pop(block)
            index = bisect_right(starts, start)
            previous = index - 1
            joins_right = index < len(starts) and starts[index] == start + size
            if previous >= 0 and starts[previous] + sizes[previous] == start:
                if joins_right:
                    size += sizes.pop(index)
                    del starts[index]
                sizes[previous] += size
            elif joins_right:
                starts[index] = start
                sizes[index] += size
            else:
                starts.insert(index, start)
                sizes.insert(index, size)
        if len(starts) > _RUN:
            self._split(0)

    def _free_in_runs(self, start: int, size: int) -> None:
        run = self._run_of(start)
        starts, sizes = self._starts[run], self._sizes[run]
        index = bisect_right(starts, start)
        joins_right = index < len(starts) and starts[index] == start + size
        if index and starts[index - 1] + sizes[index - 1] == start:
            if joins_right:
                size += sizes[index]
                self._remove(run, index)
            self._change(run, index - 1, starts[index - 1], sizes[index - 1] + size)
        elif joins_right:
            self._change(run, index, start, sizes[index] + size)
        else:
            starts.insert(index, start)
            sizes.insert(index, size)
            self._added(run, start, size)
            if len(starts) > _RUN:
                self._split(run)
        self._join_runs(run)

    def _join_runs(self, run: int) -> None:
        """Join holes that touch across the borders of a run, or of the two that it was just split into."""
        for previous in (run + 1, run, run - 1):
            if 0 <= previous < len(self._starts) - 1 and self._starts[previous] and self._starts[previous + 1]:
                start, size = self._starts[previous][-1], self._sizes[previous][-1]
                if start + size == self._starts[previous + 1][0]:
                    size += self._sizes[previous + 1][0]
                    self._change(previous, len(self._starts[previous]) - 1, start, size)
                    self._remove(previous + 1, 0)

    # --- runs -----------------------------------------------------------------------------------------------

    def _run_of(self, start: int) -> int:
        return max(bisect_right(self._firsts, start) - 1, 0)

    def _change(self, run: int, index: int, start: int, size: int) -> None:
        """With several runs: change address and size of a hole, at the same position in the order."""
        old = self._sizes[run][index]
        self._starts[run][index] = start
        self._sizes[run][index] = size
        if size < old == self._largest[run]:
            self._largest[run] = max(self._sizes[run])
        self._added(run, start, size)

    def _added(self, run: int, start: int, size: int) -> None:
        assert self._by_size is not None
        heappush(self._by_size.setdefault(size, []), start)
        self._largest[run] = max(self._largest[run], size)
        self._firsts[run] = self._starts[run][0]

    def _remove(self, run: int, index: int) -> None:
        size = self._sizes[run].pop(index)
        del self._starts[run][index]
        if self._by_size is None:
            return
        if self._starts[run]:
            self._firsts[run] = self._starts[run][0]
        elif len(self._starts) > 1:
            del self._starts[run], self._sizes[run], self._firsts[run], self._largest[run]
            return
        if size == self._largest[run]:
            self._largest[run] = max(self._sizes[run], default=0)

    def _split(self, run: int) -> None:
        for column in (self._starts, self._sizes):
            full = column[run]
            half = len(full) // 2
            column[run : run + 1] = [full[:half], full[half:]]
        if self._by_size is None:
            self._by_size = {}
            for start, size in self:
                self._by_size.setdefault(size, []).append(start)
            for heap in self._by_size.values():
                heapify(heap)
            self._firsts, self._largest = [0], [0]
        halves = range(run, run + 2)
        self._firsts[run : run + 1] = [self._starts[half][0] for half in halves]
        self._largest[run : run + 1] = [max(self._sizes[half]) for half in halves]
