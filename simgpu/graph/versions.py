"""Versions and uses of blocks from what kernels read and write, for a whole trace at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.trace.accesses import AccessColumns, Ints, distinct

Numbers = NDArray[np.int32]
Groups = tuple[tuple[int, ...], ...]
_MANY = 20_000


class Versions(NamedTuple):
    """read[k], written[k]: the versions of the blocks that kernel k reads and writes, in their order. uses[b]: the
    kernels that touch block b, ascending. last[b]: its version after all kernels."""

    read: Groups
    written: Groups
    uses: Groups
    last: tuple[int, ...]

    @classmethod
    def of(cls, accesses: AccessColumns, blocks: int, numbers: Sequence[int] | None = None) -> Versions:
        """A block begins at version 0, and each write makes the next one; a kernel reads before it writes.

        accesses: different blocks in each kernel's reads and in its writes, numbers from 0 to `blocks`. numbers: 0, 1
        and so on, as the objects to use.

        >>> reads, writes = np.array([0, 1, 0, 0]), np.array([1, 0, 1])
        >>> Versions.of(AccessColumns(reads, np.array([1, 2, 1]), writes, np.array([1, 1, 1])), 2)
        Versions(read=((0,), (1, 0), (1,)), written=((1,), (1,), (2,)), uses=((0, 1, 2), (0, 1, 2)), last=(1, 2))
        """
        earlier, written, users, counts, last = _counted(accesses, blocks)
        known = known_groups(len(accesses.read_counts))
        return cls(
            shared(grouped(earlier.tolist(), accesses.read_counts), known),
            shared(grouped(written.tolist(), accesses.write_counts), known),
            tuple(grouped(map((numbers or range(len(accesses.read_counts))).__getitem__, users.tolist()), counts)),
            tuple(last.tolist()),
        )


def _counted(accesses: AccessColumns, blocks: int) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
    """One after the other: the versions that all kernels read, those that they write, the users of all blocks; for each
    block its number of users, and of writes."""
    kernels = max(len(accesses.read_counts), 1)
    # An access as one number, which sorts by block, then by kernel.
    reading = accesses.reads * kernels + accesses.readers
    writing = accesses.writes * kernels + accesses.writers
    by_block = np.argsort(writing)
    keys = writing[by_block]
    last = np.bincount(keys // kernels, minlength=blocks)
    begins = np.cumsum(last) - last
    written = np.empty(len(keys), dtype=np.int32)
    written[by_block] = np.arange(1, len(keys) + 1) - begins[keys // kernels]
    earlier = np.searchsorted(keys, reading) - begins[reading // kernels]
    touched = distinct(np.concatenate([keys, reading]))
    counts = np.bincount(touched // kernels, minlength=blocks)
    users = touched % kernels
    return earlier.astype(np.int32), written, users.astype(np.int32), counts.astype(np.int32), last.astype(np.int32)


def grouped(numbers: Iterable[int], counts: Ints | Numbers) -> Iterator[tuple[int, ...]]:
    """Numbers as tuples of so many each.

    >>> list(grouped([5, 6, 7], np.array([2, 0, 1])))
    [(5, 6), (), (7,)]
    """
    flat = tuple(numbers)
    sizes = counts.tolist()
    return (flat[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True))


def shared(groups: Iterable[tuple[int, ...]], known: dict[tuple[int, ...], tuple[int, ...]] | None) -> Groups:
    """The groups with one object for all that are equal. known: objects for groups, to which new ones are added; None
    for groups as they are."""
    return tuple(groups) if known is None else tuple([known.setdefault(group, group) for group in groups])


def known_groups(kernels: int) -> dict[tuple[int, ...], tuple[int, ...]] | None:
    """The argument for `shared`: with few kernels, finding equal groups takes more time than it is worth."""
    return {} if kernels >= _MANY else None
