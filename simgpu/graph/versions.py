"""Versions and uses of blocks from what kernels read and write, for a whole trace at once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from simgpu.trace.accesses import AccessColumns, Ints

Groups = tuple[tuple[int, ...], ...]


class Versions(NamedTuple):
    """read[k], written[k]: the versions of the blocks that kernel k reads and writes, in their order. uses[b]: the
    kernels that touch block b, ascending. last[b]: its version after all kernels."""

    read: Groups
    written: Groups
    uses: Groups
    last: tuple[int, ...]

    @classmethod
    def of(cls, accesses: AccessColumns, blocks: int) -> Versions:
        """A block begins at version 0, and each write makes the next one; a kernel reads before it writes.

        accesses: different blocks in each kernel's reads and in its writes, numbers from 0 to `blocks`.

        >>> reads, writes = np.array([0, 1, 0, 0]), np.array([1, 0, 1])
        >>> Versions.of(AccessColumns(reads, np.array([1, 2, 1]), writes, np.array([1, 1, 1])), 2)
        Versions(read=((0,), (1, 0), (1,)), written=((1,), (1,), (2,)), uses=((0, 1, 2), (0, 1, 2)), last=(1, 2))
        """
        kernels = max(len(accesses.read_counts), 1)
        read_blocks, readers = accesses.reads, accesses.readers
        written_blocks, writers = accesses.writes, accesses.writers
        # Writes by block, each block's in the order of kernels.
        by_block = np.argsort(written_blocks, kind="stable")
        last = np.bincount(written_blocks, minlength=blocks)
        begins = np.cumsum(last) - last
        keys = (written_blocks * kernels + writers)[by_block]
        written = np.empty(len(by_block), dtype=np.int64)
        written[by_block] = np.arange(1, len(by_block) + 1) - begins[written_blocks[by_block]]
        earlier = np.searchsorted(keys, read_blocks * kernels + readers) - begins[read_blocks]
        touched = np.sort(np.concatenate([keys, read_blocks * kernels + readers]))
        touched = touched[np.append(True, touched[1:] != touched[:-1])[: len(touched)]]
        counts = np.bincount(touched // kernels, minlength=blocks)
        # All uses by a kernel share one number object.
        numbers = list(range(kernels))
        users = map(numbers.__getitem__, (touched % kernels).tolist())
        return cls(
            grouped(earlier.tolist(), accesses.read_counts),
            grouped(written.tolist(), accesses.write_counts),
            grouped(users, counts),
            tuple(last.tolist()),
        )


def grouped(numbers: Iterable[int], counts: Ints) -> Groups:
    """Numbers in groups of so many each.

    >>> grouped([5, 6, 7], np.array([2, 0, 1]))
    ((5, 6), (), (7,))
    """
    flat = tuple(numbers)
    sizes = counts.tolist()
    return tuple([flat[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)])
