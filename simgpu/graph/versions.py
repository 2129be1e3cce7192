"""Versions and uses of blocks from what kernels read and write, for a whole trace at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Groups = tuple[tuple[int, ...], ...]


class Versions(NamedTuple):
    """read[k], written[k]: the versions of the blocks that kernel k reads and writes, in their order. uses[b]: the
    kernels that touch block b, ascending. last[b]: its version after all kernels."""

    read: Groups
    written: Groups
    uses: Groups
    last: tuple[int, ...]

    @classmethod
    def of(
        cls,
        reads: Sequence[Sequence[int]],
        writes: Sequence[Sequence[int]],
        blocks: int,
        numbers: Sequence[int] | None = None,
    ) -> Versions:
        """A block begins at version 0, and each write makes the next one; a kernel reads before it writes.

        reads[k], writes[k]: different blocks each, numbers from 0 to `blocks`. numbers: 0, 1 and so on, as the objects
        to use.

        >>> Versions.of([(0,), (1, 0), (0,)], [(1,), (0,), (1,)], 2)
        Versions(read=((0,), (1, 0), (1,)), written=((1,), (1,), (2,)), uses=((0, 1, 2), (0, 1, 2)), last=(1, 2))
        """
        kernels = max(len(reads), 1)
        read_blocks, readers = _flat(reads)
        written_blocks, writers = _flat(writes)
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
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        users = map((numbers or range(kernels)).__getitem__, (touched % kernels).tolist())
        return cls(
            shared(_grouped(earlier.tolist(), [*map(len, reads)]), known),
            shared(_grouped(written.tolist(), [*map(len, writes)]), known),
            tuple(_grouped(users, counts.tolist())),
            tuple(last.tolist()),
        )


def _flat(lists: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """The numbers of all lists, and for each the list that it is in."""
    counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    numbers = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(counts.sum()))
    return numbers, np.repeat(np.arange(len(lists)), counts)


def _grouped(numbers: Iterable[int], counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    flat = tuple(numbers)
    return (flat[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True))


def shared(groups: Iterable[tuple[int, ...]], known: dict[tuple[int, ...], tuple[int, ...]]) -> Groups:
    """The groups with one object for all that are equal. known: objects for groups, to which new ones are added."""
    return tuple([known.setdefault(group, group) for group in groups])
