"""The allocators of `simgpu.memory` over arrays, compiled. Imports numba.

requests[r]: bytes without and with padding, bytes of buddy memory, and the first of its pieces, which end where those
of the next request begin. holes[m, h]: address and size of the holes of memory m, by address; of the caching allocator,
between its segments. blocks, order: the caching allocator's (`compiled_caching`), None if no memory has it; numba then
leaves its code out, which would double the time of compiling.
addresses[m, b]: of block b, -1 without memory; with the caching allocator, the number of its block.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simgpu.compiling import compiled
from simgpu.machine import compiled_caching
from simgpu.machine.compiled_caching import (
    BYTES,
    LEFT,
    NOTED,
    OVERFLOW,
    RESERVED,
    START,
    cached,
    drop,
    free,
    new_segment,
    segment_size,
    split,
    unused_segment,
)

_memory = partial(compiled, depends_on=(compiled_caching,), _nrt=False)

# Columns of memories: limit, bytes in use without and with padding, the most with padding or of segments, how it places
# blocks, the number of holes, the place of the next entry in the log, bytes of buddy memory that its blocks own, the
# most. Those of the caching allocator follow.
LIMIT, LIVE, USED, HIGH, PLACING, HOLES, LOGGED, CARVED, BUDDY_PEAK = range(9)
# How a memory places blocks: it counts bytes, gives addresses, or is the caching allocator.
COUNTED, PLACED, CACHED = range(3)
_MIB = 2**20


@_memory
def _remove_hole(memory: Any, m: Any, h: Any, holes: Any) -> None:
    memory[m, HOLES] -= 1
    for k in range(h, memory[m, HOLES]):
        holes[m, k, 0], holes[m, k, 1] = holes[m, k + 1, 0], holes[m, k + 1, 1]


@_memory
def _insert_hole(memory: Any, m: Any, h: Any, start: Any, size: Any, holes: Any) -> None:
    for k in range(memory[m, HOLES], h, -1):
        holes[m, k, 0], holes[m, k, 1] = holes[m, k - 1, 0], holes[m, k - 1, 1]
    holes[m, h, 0], holes[m, h, 1] = start, size
    memory[m, HOLES] += 1


@_memory
def _place(memory: Any, m: Any, size: Any, holes: Any) -> Any:
    """Take the lowest hole of exactly this size, else the start of the lowest larger one; -1 if there is none."""
    count, larger = memory[m, HOLES], -1
    for h in range(count):
        if holes[m, h, 1] == size:
            start = holes[m, h, 0]
            _remove_hole(memory, m, h, holes)
            return start
        if larger < 0 and holes[m, h, 1] > size:
            larger = h
    if larger < 0:
        return -1
    start = holes[m, larger, 0]
    holes[m, larger, 0] += size
    holes[m, larger, 1] -= size
    return start


@_memory
def _place_at(memory: Any, m: Any, offset: Any, size: Any, holes: Any) -> Any:
    """Take bytes at an address if they are all free; the address, -1 if not."""
    count = memory[m, HOLES]
    for h in range(count):
        start, hole = holes[m, h, 0], holes[m, h, 1]
        if start > offset or start + hole < offset + size:
            continue
        before, after = offset - start, start + hole - offset - size
        if before and after:
            holes[m, h, 1] = before
            _insert_hole(memory, m, h + 1, offset + size, after, holes)
        elif before:
            holes[m, h, 1] = before
        elif after:
            holes[m, h, 0], holes[m, h, 1] = offset + size, after
        else:
            _remove_hole(memory, m, h, holes)
        return offset
    return -1


@_memory
def _vacate(memory: Any, m: Any, start: Any, size: Any, holes: Any) -> None:
    """Make a range a hole, joined with its neighbours."""
    count = memory[m, HOLES]
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holes[m, middle, 0] > start:
            high = middle
        else:
            low = middle + 1
    left = low > 0 and holes[m, low - 1, 0] + holes[m, low - 1, 1] == start
    right = low < count and holes[m, low, 0] == start + size
    if left and right:
        holes[m, low - 1, 1] += size + holes[m, low, 1]
        _remove_hole(memory, m, low, holes)
    elif left:
        holes[m, low - 1, 1] += size
    elif right:
        holes[m, low, 0] = start
        holes[m, low, 1] += size
    else:
        _insert_hole(memory, m, low, start, size, holes)


@_memory
def _segment(memory: Any, m: Any, size: Any, holes: Any, blocks: Any, order: Any) -> Any:
    """A new segment for a rounded request; where there is too little memory, unused ones are freed. -1 without any."""
    bytes = segment_size(size)
    if memory[m, RESERVED] + bytes > memory[m, LIMIT]:
        for kind in range(1, -1, -1):
            b = unused_segment(memory, m, kind, blocks, order)
            while b >= 0:
                _vacate(memory, m, blocks[m, b, START], blocks[m, b, BYTES], holes)
                drop(memory, m, b, blocks)
                b = unused_segment(memory, m, kind, blocks, order)
        if memory[m, RESERVED] + bytes > memory[m, LIMIT]:
            return -1
    b = new_segment(memory, m, _place(memory, m, bytes, holes), bytes, blocks)
    memory[m, HIGH] = max(memory[m, HIGH], memory[m, RESERVED])
    return b


@_memory
def _cache(
    memory: Any, m: Any, first: Any, end: Any, pieces: Any, addresses: Any, holes: Any, blocks: Any, order: Any
) -> Any:
    """Allocate blocks for pieces as the caching allocator does, all or nothing; their bytes, -1 without memory."""
    total = 0
    for p in range(first, end):
        size, b = pieces[p, 1], -1
        # A new block and what is split off it take two.
        if memory[m, LEFT] < 2:
            memory[m, OVERFLOW] = 1
        else:
            b = cached(memory, m, size, blocks, order)
            if b < 0:
                b = _segment(memory, m, size, holes, blocks, order)
                if b >= 0:
                    split(memory, m, b, size, blocks, order)
        if b < 0:
            _uncache(memory, m, first, p, pieces, addresses, blocks, order)
            return -1
        addresses[m, pieces[p, 0]] = b
        total += blocks[m, b, BYTES]
    return total


@_memory
def _uncache(memory: Any, m: Any, first: Any, end: Any, pieces: Any, addresses: Any, blocks: Any, order: Any) -> Any:
    """Free the blocks of pieces; their bytes, -1 if one has no memory."""
    total = 0
    for p in range(first, end):
        b = addresses[m, pieces[p, 0]]
        if b < 0:
            return -1
        total += blocks[m, b, BYTES]
        addresses[m, pieces[p, 0]] = -1
        free(memory, m, b, 0 if pieces[p, 1] <= _MIB else 1, blocks, order)
    return total


@_memory
def acquire(
    memory: Any, m: Any, requests: Any, r: Any, pieces: Any, addresses: Any, holes: Any, blocks: Any, order: Any
) -> Any:
    """Acquire request r, all or nothing; whether it fitted."""
    live, used, first, end = requests[r, 0], requests[r, 1], requests[r, 3], requests[r + 1, 3]
    placing = memory[m, PLACING]
    if blocks is not None:  # noqa: SIM102 - numba leaves out what this alone excludes
        if placing == CACHED:
            used = _cache(memory, m, first, end, pieces, addresses, holes, blocks, order)
            if used < 0:
                return False
    if placing == COUNTED:
        if memory[m, USED] + used > memory[m, LIMIT]:
            return False
        memory[m, HIGH] = max(memory[m, HIGH], memory[m, USED] + used)
    elif placing == PLACED:
        high = memory[m, HIGH]
        for p in range(first, end):
            block, size, offset = pieces[p, 0], pieces[p, 1], pieces[p, 2]
            start = _place(memory, m, size, holes) if offset < 0 else _place_at(memory, m, offset, size, holes)
            if start < 0:
                for q in range(first, p):
                    _vacate(memory, m, addresses[m, pieces[q, 0]], pieces[q, 1], holes)
                    addresses[m, pieces[q, 0]] = -1
                return False
            addresses[m, block] = start
            high = max(high, start + size)
        memory[m, HIGH] = high
    memory[m, LIVE] += live
    memory[m, USED] += used
    memory[m, CARVED] += requests[r, 2]
    memory[m, BUDDY_PEAK] = max(memory[m, BUDDY_PEAK], memory[m, CARVED])
    return True


@_memory
def release(
    memory: Any, m: Any, requests: Any, r: Any, pieces: Any, addresses: Any, holes: Any, blocks: Any, order: Any
) -> Any:
    """Release request r; whether all of its blocks had memory."""
    used, first, end = requests[r, 1], requests[r, 3], requests[r + 1, 3]
    if blocks is not None:  # noqa: SIM102 - numba leaves out what this alone excludes
        if memory[m, PLACING] == CACHED:
            used = _uncache(memory, m, first, end, pieces, addresses, blocks, order)
            if used < 0:
                return False
    if memory[m, PLACING] == PLACED:
        for p in range(first, end):
            start = addresses[m, pieces[p, 0]]
            if start < 0:
                return False
            _vacate(memory, m, start, pieces[p, 1], holes)
            addresses[m, pieces[p, 0]] = -1
    memory[m, LIVE] -= requests[r, 0]
    memory[m, USED] -= used
    memory[m, CARVED] -= requests[r, 2]
    return True


@_memory
def note_bytes(memory: Any, m: Any, now: Any, log: Any, blocks: Any) -> None:
    """Write an entry of the log: the bytes in use, and those of the caching allocator's segments."""
    at = memory[m, LOGGED]
    log[0, at], log[1, at], log[2, at] = now, memory[m, LIVE], memory[m, USED]
    memory[m, LOGGED] = at + 1
    if blocks is not None:
        log[3, at] = memory[m, NOTED] = memory[m, RESERVED]


@_memory
def note_refused(memory: Any, m: Any, now: Any, log: Any, blocks: Any) -> None:
    """Write an entry of the log if a refused request freed segments of the caching allocator."""
    if blocks is not None:  # noqa: SIM102 - numba leaves out what this alone excludes
        if memory[m, RESERVED] != memory[m, NOTED]:
            note_bytes(memory, m, now, log, blocks)
