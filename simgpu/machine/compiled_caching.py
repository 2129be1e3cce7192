"""PyTorch's caching allocator with its default rules over arrays, compiled. Imports numba.

blocks[m, b]: blocks of memory m, free and allocated. order[m, kind, k]: numbers and bytes of the free ones, small and
large, by size and address. `simgpu.memory.caching` explains the rules.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from simgpu.compiling import compiled

_memory = partial(compiled, _nrt=False)

# Columns of blocks: address, size, the blocks before and behind it in its segment, -1 for none, and whether it is free.
# Of blocks that are not in use, BEHIND is the next such block.
START, BYTES, BEFORE, BEHIND, FREE = range(5)
# Columns of memories that only the caching allocator uses: bytes of segments, the first block that is not in use, the
# numbers of free small and large blocks, how many blocks are not in use, whether these were ever too few, and the bytes
# of segments in the log's last entry.
RESERVED, UNUSED, FREE_BLOCKS, LEFT, OVERFLOW, NOTED = 9, 10, 11, 13, 14, 15
COLUMNS = 16
_MIB = 2**20
#: Places of the order are unsigned in loops: numba would count negative ones from the end, which costs time.
_ONE = np.uint64(1)


@_memory
def _position(memory: Any, m: Any, kind: Any, size: Any, start: Any, blocks: Any, order: Any) -> Any:
    """The first free block that is not before this size and address."""
    low, high, line = np.uint64(0), np.uint64(memory[m, FREE_BLOCKS + kind]), order[m, kind]
    while low < high:
        middle = (low + high) >> _ONE
        bytes = line[middle, 1]
        if bytes < size or (bytes == size and blocks[m, line[middle, 0], START] < start):
            low = middle + _ONE
        else:
            high = middle
    return np.int64(low)


@_memory
def _shift(m: Any, kind: Any, source: Any, target: Any, order: Any) -> None:
    """Move the gap at one place of the order to another."""
    line = order[m, kind]
    k, end = np.uint64(source), np.uint64(target)
    while k < end:
        line[k, 0], line[k, 1] = line[k + _ONE, 0], line[k + _ONE, 1]
        k += _ONE
    while k > end:
        line[k, 0], line[k, 1] = line[k - _ONE, 0], line[k - _ONE, 1]
        k -= _ONE


@_memory
def _insert(memory: Any, m: Any, kind: Any, b: Any, blocks: Any, order: Any) -> None:
    """Add a block to the free ones."""
    at = _position(memory, m, kind, blocks[m, b, BYTES], blocks[m, b, START], blocks, order)
    _shift(m, kind, memory[m, FREE_BLOCKS + kind], at, order)
    order[m, kind, at, 0], order[m, kind, at, 1] = b, blocks[m, b, BYTES]
    memory[m, FREE_BLOCKS + kind] += 1
    blocks[m, b, FREE] = 1


@_memory
def _remove(memory: Any, m: Any, kind: Any, at: Any, blocks: Any, order: Any) -> None:
    """Remove the free block at a place of the order."""
    blocks[m, order[m, kind, at, 0], FREE] = 0
    memory[m, FREE_BLOCKS + kind] -= 1
    _shift(m, kind, at, memory[m, FREE_BLOCKS + kind], order)


@_memory
def _take_unused(memory: Any, m: Any, blocks: Any) -> Any:
    b = memory[m, UNUSED]
    memory[m, UNUSED] = blocks[m, b, BEHIND]
    memory[m, LEFT] -= 1
    return b


@_memory
def drop(memory: Any, m: Any, b: Any, blocks: Any) -> None:
    """A block is not in use any more."""
    blocks[m, b, BEHIND] = memory[m, UNUSED]
    memory[m, UNUSED] = b
    memory[m, LEFT] += 1


@_memory
def segment_size(size: Any) -> Any:
    """The size of a new segment for a rounded request."""
    if size <= _MIB:
        return 2 * _MIB
    if size < 10 * _MIB:
        return 20 * _MIB
    return -(-size // (2 * _MIB)) * 2 * _MIB


@_memory
def _splits(kind: Any, rest: Any) -> Any:
    """Whether what a block has more than its request is worth a block of its own."""
    return rest > _MIB if kind == 1 else rest >= 512


@_memory
def _rest(memory: Any, m: Any, b: Any, size: Any, blocks: Any) -> Any:
    """Split off what a block has more than its request; the new block is not among the free ones yet."""
    other, behind = _take_unused(memory, m, blocks), blocks[m, b, BEHIND]
    blocks[m, other, START], blocks[m, other, BYTES] = blocks[m, b, START] + size, blocks[m, b, BYTES] - size
    blocks[m, other, BEFORE], blocks[m, other, BEHIND] = b, behind
    if behind >= 0:
        blocks[m, behind, BEFORE] = other
    blocks[m, b, BEHIND] = other
    return other


@_memory
def cached(memory: Any, m: Any, size: Any, blocks: Any, order: Any) -> Any:
    """The best free block for a rounded request, without what is split off; -1 if there is none."""
    kind = 0 if size <= _MIB else 1
    at = _position(memory, m, kind, size, 0, blocks, order)
    if at == memory[m, FREE_BLOCKS + kind]:
        return -1
    b = order[m, kind, at, 0]
    if not _splits(kind, blocks[m, b, BYTES] - size):
        _remove(memory, m, kind, at, blocks, order)
        return b
    other = _rest(memory, m, b, size, blocks)
    # What is left is smaller, so its place is not behind that of the whole block.
    to = _position(memory, m, kind, blocks[m, other, BYTES], blocks[m, other, START], blocks, order)
    _shift(m, kind, at, to, order)
    order[m, kind, to, 0], order[m, kind, to, 1] = other, blocks[m, other, BYTES]
    blocks[m, other, FREE], blocks[m, b, FREE], blocks[m, b, BYTES] = 1, 0, size
    return b


@_memory
def unused_segment(memory: Any, m: Any, kind: Any, blocks: Any, order: Any) -> Any:
    """Take a segment that is one free block away from the free ones; -1 if there is none."""
    for at in range(memory[m, FREE_BLOCKS + kind]):
        b = order[m, kind, at, 0]
        if blocks[m, b, BEFORE] < 0 and blocks[m, b, BEHIND] < 0:
            _remove(memory, m, kind, at, blocks, order)
            memory[m, RESERVED] -= blocks[m, b, BYTES]
            return b
    return -1


@_memory
def new_segment(memory: Any, m: Any, start: Any, size: Any, blocks: Any) -> Any:
    """A segment that is one block."""
    b = _take_unused(memory, m, blocks)
    blocks[m, b, START], blocks[m, b, BYTES], blocks[m, b, FREE] = start, size, 0
    blocks[m, b, BEFORE], blocks[m, b, BEHIND] = -1, -1
    memory[m, RESERVED] += size
    return b


@_memory
def split(memory: Any, m: Any, b: Any, size: Any, blocks: Any, order: Any) -> None:
    """Split a new segment."""
    kind = 0 if size <= _MIB else 1
    if _splits(kind, blocks[m, b, BYTES] - size):
        other = _rest(memory, m, b, size, blocks)
        blocks[m, b, BYTES] = size
        _insert(memory, m, kind, other, blocks, order)


@_memory
def _grow(memory: Any, m: Any, kind: Any, b: Any, at: Any, start: Any, size: Any, blocks: Any, order: Any) -> None:
    """A free block takes a larger range, from the place in the order of the one that it takes in."""
    to = _position(memory, m, kind, size, start, blocks, order) - 1
    _shift(m, kind, at, to, order)
    order[m, kind, to, 0], order[m, kind, to, 1] = b, size
    blocks[m, b, START], blocks[m, b, BYTES], blocks[m, b, FREE] = start, size, 1


@_memory
def _unlink(memory: Any, m: Any, b: Any, blocks: Any) -> None:
    """The block before a block takes its place among the neighbours."""
    before, behind = blocks[m, b, BEFORE], blocks[m, b, BEHIND]
    blocks[m, before, BEHIND] = behind
    if behind >= 0:
        blocks[m, behind, BEFORE] = before
    drop(memory, m, b, blocks)


@_memory
def free(memory: Any, m: Any, b: Any, kind: Any, blocks: Any, order: Any) -> None:
    """Join a block with its free neighbours and add it to the free ones."""
    before, behind = blocks[m, b, BEFORE], blocks[m, b, BEHIND]
    left = before >= 0 and blocks[m, before, FREE]
    right = behind >= 0 and blocks[m, behind, FREE]
    start, size = blocks[m, b, START], blocks[m, b, BYTES]
    at = 0
    if right:
        at = _position(memory, m, kind, blocks[m, behind, BYTES], blocks[m, behind, START], blocks, order)
        size += blocks[m, behind, BYTES]
        if left:
            _remove(memory, m, kind, at, blocks, order)
    if left:
        at = _position(memory, m, kind, blocks[m, before, BYTES], blocks[m, before, START], blocks, order)
        start, size = blocks[m, before, START], size + blocks[m, before, BYTES]
    if left or right:
        _grow(memory, m, kind, before if left else b, at, start, size, blocks, order)
    else:
        _insert(memory, m, kind, b, blocks, order)
    if right:
        blocks[m, behind, FREE] = 0
        _unlink(memory, m, behind, blocks)
    if left:
        _unlink(memory, m, b, blocks)


@_memory
def write_layout(memory: Any, m: Any, addresses: Any, blocks: Any, order: Any, layout: Any) -> None:
    """The addresses of all blocks that are allocated, then address and size of the free ones, and where they end."""
    count = addresses.shape[1]
    for block in range(count):
        b = addresses[m, block]
        layout[block] = -1 if b < 0 else blocks[m, b, START]
    at = count
    for kind in range(2):
        for k in range(memory[m, FREE_BLOCKS + kind]):
            b = order[m, kind, k, 0]
            layout[at], layout[at + 1] = blocks[m, b, START], blocks[m, b, BYTES]
            at += 2
    layout[at] = -1
