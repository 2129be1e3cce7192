"""Which pages NVIDIA's driver fetches when pages of a chunk fault: `nvidia-uvm/uvm_perf_prefetch.c`.

A chunk is what the driver calls a VA block of 2 MiB. It first extends each fault to the 64 KiB around it (a group).
Then it looks at the ranges around each fault that are twice, four times, ... as large, up to the whole chunk, and
fetches the largest one of which more than a threshold, by default 51%, is resident or about to be. So a kernel that
walks through an absent chunk fetches 64 KiB, the next 64 KiB, then 128 and 256 and 512 KiB and 1 MiB: its faults are
served six times.

Sets of pages are bit masks, the first page lowest, as in `simgpu.memory.chunks`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from simgpu.memory.chunks import Batch, lowest_pages


class Prefetcher(NamedTuple):
    """group: pages to which a fault extends. threshold: more than this per cent of a range must be resident, or about
    to be; at 100 nothing but the faulting pages is fetched.
    """

    group: int
    threshold: int

    def fetched(self, resident: int, faulting: int, full: int) -> int:
        """Pages to fetch for faulting pages of a chunk, these included. full: all pages of the chunk.

        >>> bin(Prefetcher(2, 51).fetched(resident=0b11, faulting=0b100, full=0b1111))
        '0b1100'
        >>> bin(Prefetcher(2, 51).fetched(resident=0b0, faulting=0b100, full=0b1111))
        '0b1100'
        """
        leaves, groups = full.bit_length(), []
        there, left = resident | faulting, faulting
        while left:
            first = (left & -left).bit_length() - 1
            group = _aligned(first, self.group, leaves)
            groups.append(first)
            there |= group
            left &= ~group
        fetched = faulting
        for first in groups:
            size, dense = self.group, 0
            while True:
                around = _aligned(first, size, leaves)
                if (there & around).bit_count() * 100 > around.bit_count() * self.threshold:
                    dense = around
                if size >= leaves:
                    break
                size *= 2
            fetched |= dense
        return fetched & ~resident


def _aligned(page: int, size: int, leaves: int) -> int:
    """The pages of the aligned range of this size around a page, up to the end of the chunk."""
    start = page // size * size
    return ((1 << min(size, leaves - start)) - 1) << start


@lru_cache(maxsize=4096)
def walk(prefetcher: Prefetcher, resident: int, wanted: int, full: int, each: int) -> tuple[int, int]:
    """How often faults are served until a kernel has the absent pages that it wants, and all pages fetched.

    The lowest pages fault first, as in a walk from end to end; a pattern with another order may need more or less.

    each: the number of pages whose faults are served together.

    >>> whole = (1 << 512) - 1
    >>> walk(Prefetcher(16, 51), 0, whole, whole, 8) == (6, whole)
    True
    """
    times, fetched = 0, 0
    while left := wanted & ~fetched:
        fetched |= prefetcher.fetched(resident | fetched, lowest_pages(left, each), full)
        times += 1
    return times, fetched


def with_prefetched(prefetcher: Prefetcher, batch: Batch, each: int) -> tuple[int, Batch]:
    """How often the faults of a batch are served, and the batch with all pages that are fetched.

    each: as in `walk`. A batch in one chunk has all that a kernel wants there; one in several is served once.
    """
    if len(batch) == 1:
        ((chunk, (pages, dirty)),) = batch.items()
        times, fetched = walk(prefetcher, chunk.resident, pages, chunk.full, each)
        return times, {chunk: [fetched, dirty]}
    return 1, {
        chunk: [prefetcher.fetched(chunk.resident, pages, chunk.full), dirty] for chunk, (pages, dirty) in batch.items()
    }
