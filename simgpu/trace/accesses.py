"""What kernels read and write, as arrays, so that long traces are looked at in bulk."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.trace.model import Block, Kernel, Trace

Ints = NDArray[np.int64]

#: Of longer traces, the arrays take too much memory to be kept.
_LONGEST = 100_000
#: Of traces that cannot change, by identity, as long as they live.
_KEPT: dict[int, AccessColumns] = {}


class AccessColumns(NamedTuple):
    """reads, writes: numbers of blocks, kernel by kernel, each in the order of the kernel's own list. read_counts[k],
    write_counts[k]: how many of them are kernel k's. A block's number is its position in the trace."""

    reads: Ints
    read_counts: Ints
    writes: Ints
    write_counts: Ints

    @classmethod
    def of(cls, kernels: Sequence[Kernel], blocks: Sequence[Block]) -> AccessColumns:
        """Raises `KeyError` for a name of no block, and `ValueError` for two blocks with one id.

        >>> from simgpu.trace.chain import chain
        >>> trace = chain([5, 7], [10, 14], [100, 200])
        >>> accesses = AccessColumns.of(trace.kernels, trace.blocks)
        >>> [trace.blocks[b].id for b in accesses.writes], accesses.write_counts.tolist()
        (['x2', 'x3', 'g2', 'g1'], [1, 1, 1, 1])
        """
        number = dict(zip(map(attrgetter("id"), blocks), range(len(blocks)), strict=True))
        if len(number) < len(blocks):
            raise ValueError("two blocks have one id")
        arrays: list[Ints] = []
        for name in ("reads", "writes"):
            lists = list(map(attrgetter(name), kernels))
            counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
            numbers = map(number.__getitem__, chain.from_iterable(lists))
            arrays += (np.fromiter(numbers, dtype=np.int64, count=int(counts.sum())), counts)
        return cls(*arrays)

    @property
    def readers(self) -> Ints:
        """The kernel of each of `reads`."""
        return np.repeat(np.arange(len(self.read_counts)), self.read_counts)

    @property
    def writers(self) -> Ints:
        """The kernel of each of `writes`."""
        return np.repeat(np.arange(len(self.write_counts)), self.write_counts)


def keep(trace: Trace, accesses: AccessColumns) -> None:
    """Keep the accesses of a trace that cannot change."""
    if id(trace) not in _KEPT and len(trace.kernels) <= _LONGEST:
        _KEPT[id(trace)] = accesses
        weakref.finalize(trace, _KEPT.pop, id(trace))


def accesses_of(trace: Trace) -> AccessColumns:
    """The accesses of a trace that was checked."""
    known = _KEPT.get(id(trace))
    return AccessColumns.of(trace.kernels, trace.blocks) if known is None else known


def first_of(blocks: Ints, kernels: Ints, count: int, none: int) -> Ints:
    """For each of `count` blocks the first of the kernels that access it. blocks, kernels: accesses, by kernel."""
    first = np.full(count, none, dtype=np.int64)
    first[blocks[::-1]] = kernels[::-1]
    return first


def distinct(numbers: Ints) -> Ints:
    """Sort the numbers in place; each of them once, ascending.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    numbers.sort()
    first: NDArray[np.bool_] = np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]
    return np.asarray(numbers[first])
