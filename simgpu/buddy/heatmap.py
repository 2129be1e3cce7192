"""Where in memory entries are small: the rows of the spatial heat map (Buddy Compression, figure 6).

Lives here: pages of entries, averaged down to what a picture can show. Does not live here: drawing
(`simgpu.analysis.compressibility`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgpu.buddy.snapshots import Classes, Snapshots
from simgpu.codecs.entries import ENTRY_SIZES

#: Entries of a page of 8 KB, which lie side by side.
PAGE_ENTRIES = 64
#: Pages are averaged until there are about so many rows.
_ROWS = 400


@dataclass(frozen=True, slots=True)
class Band:
    """The rows of an allocation: the first of them, how many, and of how many pages in all."""

    allocation: str
    first: int
    rows: int
    pages: int


@dataclass(frozen=True, eq=False, slots=True)
class HeatMap:
    """Mean compressed bytes of entries, over the snapshots and over the pages of a row.

    rows: a row of 64 entries for every `pages_per_row` pages, NaN beyond the end of an allocation. bands: the
    allocations from the top down, each beginning a row.
    """

    rows: NDArray[np.float64]
    bands: tuple[Band, ...]
    pages_per_row: int


def heat_map(snapshots: Snapshots) -> HeatMap | None:
    """The heat map of all allocations of which it is known where their entries lie; None where it is of none.

    >>> from simgpu.buddy.snapshots import take_snapshots
    >>> found = heat_map(take_snapshots({"a": np.zeros(10 * 1024)}))
    >>> found.rows.shape, found.bands
    ((10, 64), (Band(allocation='a', first=0, rows=10, pages=10),))
    """
    known = [(each.allocation, each.classes) for each in snapshots.observed if each.classes is not None]
    if not known:
        return None
    pages = [-(-allocation.entries // PAGE_ENTRIES) for allocation, _ in known]
    per_row = max(-(-sum(pages) // _ROWS), 1)
    rows, bands, first = [], [], 0
    for (allocation, classes), count in zip(known, pages, strict=True):
        rows.append(_rows(classes, per_row))
        bands.append(Band(allocation.name, first, len(rows[-1]), count))
        first += len(rows[-1])
    return HeatMap(np.concatenate(rows), tuple(bands), per_row)


def _rows(classes: tuple[Classes, ...], pages: int) -> NDArray[np.float64]:
    """Means over the snapshots and, entry by entry of a page, over so many pages."""
    sizes = np.array(ENTRY_SIZES, np.uint32)
    taken = np.zeros(classes[0].size, np.uint32)
    for each in classes:
        taken += sizes[each]
    lack = -taken.size % (pages * PAGE_ENTRIES)
    padded = np.pad(taken, (0, lack)).reshape(-1, pages, PAGE_ENTRIES)
    there = np.pad(np.ones(taken.size, np.uint32), (0, lack)).reshape(padded.shape).sum(axis=1)
    sums = padded.sum(axis=1, dtype=np.float64) / len(classes)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, there, out=means, where=there > 0)
    return means
