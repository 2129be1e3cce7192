"""The allocators of `simgpu.memory` over arrays, compiled. Imports numba.

`simgpu.machine.tables` describes the arrays.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simgpu.compiling import compiled
from simgpu.machine import tables
from simgpu.machine.tables import (
    ADDRESSED,
    BUDDY_PEAK,
    CARVED,
    END_OF_PIECES,
    FIRST_PIECE,
    HIGH,
    HOLES,
    LIMIT,
    LIVE,
    REQUESTED_CARVED,
    REQUESTED_LIVE,
    REQUESTED_USED,
    USED,
)

_memory = partial(compiled, depends_on=(tables,), _nrt=False)


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
def acquire(memory: Any, m: Any, requests: Any, r: Any, pieces: Any, addresses: Any, holes: Any) -> Any:
    """Acquire request r, all or nothing; whether it fitted."""
    live, used = requests[r, REQUESTED_LIVE], requests[r, REQUESTED_USED]
    first, end = requests[r, FIRST_PIECE], requests[r, END_OF_PIECES]
    if not memory[m, ADDRESSED]:
        if memory[m, USED] + used > memory[m, LIMIT]:
            return False
        memory[m, HIGH] = max(memory[m, HIGH], memory[m, USED] + used)
    else:
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
    memory[m, CARVED] += requests[r, REQUESTED_CARVED]
    memory[m, BUDDY_PEAK] = max(memory[m, BUDDY_PEAK], memory[m, CARVED])
    return True


@_memory
def release(memory: Any, m: Any, requests: Any, r: Any, pieces: Any, addresses: Any, holes: Any) -> Any:
    """Release request r; whether all of its blocks had memory."""
    if memory[m, ADDRESSED]:
        for p in range(requests[r, FIRST_PIECE], requests[r, END_OF_PIECES]):
            start = addresses[m, pieces[p, 0]]
            if start < 0:
                return False
            _vacate(memory, m, start, pieces[p, 1], holes)
            addresses[m, pieces[p, 0]] = -1
    memory[m, LIVE] -= requests[r, REQUESTED_LIVE]
    memory[m, USED] -= requests[r, REQUESTED_USED]
    memory[m, CARVED] -= requests[r, REQUESTED_CARVED]
    return True
