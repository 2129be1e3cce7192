"""The metadata cache: which accesses to compressed memory hit in it, and which must read metadata from memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from simgpu.compiling import compiled
from simgpu.hardware.spec import MetadataCacheSpec

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Numbers of hits and misses. written_back: number of changed lines evicted, each a write to device memory."""

    hits: int
    misses: int
    written_back: int


class MetadataCache:
    """Set-associative, LRU, write-back, allocating on reads and writes.

    The paper gives size, ways and line (Buddy Compression, section 3.2 and table 2), but neither the replacement policy
    nor the hash; it states that metadata are distributed over the channels like addresses: see `sets_of`. A write marks
    its line as changed, because the entry's compressed size may have changed.

    >>> import numpy as np
    >>> cache = MetadataCache(MetadataCacheSpec(size=64, slices=1, ways=2, line=32, entries=64))
    >>> cache.access(np.array([0, 1, 0, 2, 1]), np.array([False, True, False, False, False]))
    CacheCounts(hits=1, misses=4, written_back=1)
    >>> cache.access_entries(np.array([64, 127, 128]), np.zeros(3, bool))
    CacheCounts(hits=3, misses=0, written_back=0)
    """

    def __init__(self, spec: MetadataCacheSpec) -> None:
        self.spec = spec
        # The lines of each set, most recently used first, -1 for an empty way; and for each line the accesses that its
        # first write represents, 0 if unchanged.
        shape = (spec.slices * spec.sets, spec.ways)
        self._lines = np.full(shape, -1, np.int64)
        self._changed = np.zeros(shape, np.int64)

    def access(self, lines: Ints, writes: Bools, stand_for: Ints | None = None) -> CacheCounts:
        """Counts over accesses to metadata lines, in order; the cache keeps its contents between calls.

        lines: line numbers from 0. writes: whether each access changes its line. stand_for: the number of accesses that
        each represents, by default 1. All of them hit or miss; the write-back of a line counts as often as the accesses
        that the first write to it represents.
        """
        many = np.ones(lines.size, np.int64) if stand_for is None else np.ascontiguousarray(stand_for, np.int64)
        lines, writes = np.ascontiguousarray(lines, np.int64), np.ascontiguousarray(writes, np.bool_)
        sets = sets_of(lines, self.spec)
        misses, written_back = _compiled()(self._lines, self._changed, sets, lines, writes, many)
        return CacheCounts(int(many.sum()) - misses, misses, written_back)

    def access_entries(self, entries: Ints, writes: Bools) -> CacheCounts:
        """Like `access`, for accesses to memory-entries, numbered from 0."""
        return self.access(entries // self.spec.entries, writes)


def sets_of(lines: Ints, spec: MetadataCacheSpec) -> Ints:
    """The set of each line; sets are numbered through all slices, those of slice 0 first.

    With 2**b slices, the slice is the XOR of the line number's groups of b bits; the bits above the lowest group,
    modulo the sets of a slice, are the set. With an odd number n times 2**b slices, the value above the lowest group is
    first divided by n: the remainder selects a group of 2**b slices, and the quotient replaces the value. So each
    aligned run of as many consecutive lines as there are slices uses every slice once, and lines whose distance is a
    power of two are spread over the slices too.

    >>> import numpy as np
    >>> spec = MetadataCacheSpec(size=256, slices=4, ways=4, line=32, entries=64)
    >>> sets_of(np.arange(12), spec).tolist()
    [0, 2, 4, 6, 3, 1, 7, 5, 4, 6, 0, 2]
    """
    bits = (spec.slices & -spec.slices).bit_length() - 1
    banks = 1 << bits
    above = lines >> bits
    bank = lines & (banks - 1)
    if bits:
        for shift in range(bits, int(lines.max(initial=0)).bit_length(), bits):
            bank ^= (lines >> shift) & (banks - 1)
    groups = spec.slices // banks
    if groups > 1:
        above, group = np.divmod(above, groups)
        bank += group * banks
    return bank * spec.sets + above % spec.sets


def _access_all(held: Ints, changed: Ints, sets: Ints, lines: Ints, writes: Bools, stand_for: Ints) -> tuple[int, int]:
    misses = written_back = 0
    last = held.shape[1] - 1
    for access in range(lines.size):
        number, line = sets[access], lines[access]
        way = 0
        while way < last and held[number, way] != line:
            way += 1
        retained = changed[number, way]
        if held[number, way] != line:
            misses += stand_for[access]
            written_back += retained
            retained = 0
        for older in range(way, 0, -1):
            held[number, older] = held[number, older - 1]
            changed[number, older] = changed[number, older - 1]
        held[number, 0] = line
        changed[number, 0] = stand_for[access] if retained == 0 and writes[access] else retained
    return misses, written_back


@cache
def _compiled() -> Callable[[Ints, Ints, Ints, Ints, Bools, Ints], tuple[int, int]]:
    return compiled(_access_all, nogil=True)
