"""Histograms of memory-entries, as rows of a trace's compressibility.

A block's memory is a sequence of entries of 128 bytes, of which bit-plane compression makes one of eight sizes each
(Buddy Compression, Choukse et al., section 3.1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from simgpu.trace.model import Block, CompressedSize

#: Bytes of a memory-entry.
ENTRY_BYTES = 128
#: Codec and layout of its rows.
CODEC, LAYOUT = "bpc", "plain"

#: How many entries have which size, in bytes.
Histogram = Mapping[int, int]


def is_of_entries(row: CompressedSize) -> bool:
    """Whether a row is part of a histogram of memory-entries."""
    return (row.codec, row.layout, row.entry_bytes) == (CODEC, LAYOUT, ENTRY_BYTES)


def histograms(rows: Iterable[CompressedSize]) -> dict[tuple[str, int], dict[int, int]]:
    """The histogram of each block and epoch, in the rows' order; rows of anything else are passed over.

    >>> histograms([CompressedSize("w", 0, *row) for row in (("bpc", "plain", 128, 64, 4), ("zvc", "plain", 9, 5, 1))])
    {('w', 0): {64: 4}}
    """
    result: defaultdict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for row in rows:
        if is_of_entries(row):
            result[row.block, row.epoch][row.bytes] = row.entries
    return dict(result)


def rows_of(block: str, epoch: int, histogram: Histogram) -> Iterator[CompressedSize]:
    """A histogram as rows, the smallest size first; no row for a size that no entry has."""
    for size in sorted(histogram):
        if histogram[size]:
            yield CompressedSize(block, epoch, CODEC, LAYOUT, ENTRY_BYTES, size, histogram[size])


def entries_of(block: Block) -> int:
    """How many entries a block has; the last may be filled in part."""
    return -(-block.bytes // ENTRY_BYTES)


def mean_ratio(rows: Iterable[CompressedSize]) -> float:
    """Mean compression ratio: bytes of all memory-entries over the sum of their compressed sizes, without padding.

    Rows of several epochs count alike, so it is the mean over epochs by bytes; 1 without histograms, infinite where all
    is zeros. Source: Buddy Compression, figure 3.

    >>> mean_ratio(rows_of("y", 0, {0: 1, 64: 1, 128: 1}))
    2.0
    """
    before = after = 0
    for row in rows:
        if is_of_entries(row):
            before += ENTRY_BYTES * row.entries
            after += row.bytes * row.entries
    return before / after if after else float("inf") if before else 1.0


def apportioned(weights: Sequence[int | float], total: int) -> list[int]:
    """`total` in integer parts in proportion to the weights, by largest remainder; of equal ones the first gets more.

    Weights are at least 0, and one is more. Exact whatever their size: shares are taken as fractions.

    >>> apportioned([0.5, 0.25, 0.25], 10), apportioned([3, 0, 1], 8)
    ([5, 3, 2], [6, 0, 2])
    """
    if sum(weights) == total and all(type(weight) is int for weight in weights):
        return [int(weight) for weight in weights]
    exact = [Fraction(weight) for weight in weights]
    total_weight = sum(exact)
    parts = [total * weight / total_weight for weight in exact]
    result = [int(part) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda place: result[place] - parts[place])
    for place in by_remainder[: total - sum(result)]:
        result[place] += 1
    return result
