"""Where in memory entries are small: the rows of the spatial heat map (Buddy Compression, figure 6).

Addresses are not known of arrays in files, so allocations follow each other in their order: each from a page's start,
those smaller than a page together in one, aligned to 512 bytes, as allocators place them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.buddy.snapshots import Classes, Snapshots
from simgpu.compression.codecs.entries import ENTRY_SIZES

if TYPE_CHECKING:
    import pandas as pd

#: Entries of a page of 8 KB, which lie side by side.
PAGE_ENTRIES = 64
_ALIGNMENT = 4
#: Maximum number of rows: pages are averaged to fit.
_ROWS = 400


@dataclass(frozen=True, slots=True)
class Band:
    """The rows of an allocation: its first row and its number of rows, both fractional."""

    allocation: str
    first: float
    rows: float


@dataclass(frozen=True, eq=False, slots=True)
class HeatMap:
    """Mean compressed bytes of entries, over the snapshots and over the pages of a row.

    rows: a row of 64 entries for every `pages_per_row` pages, NaN where there is no entry. bands: the allocations from
    the top down.
    """

    rows: NDArray[np.float64]
    bands: tuple[Band, ...]
    pages_per_row: int

    def frame(self) -> pd.DataFrame:
        """One row a row of the map: the allocation that begins it or the first in it, and the 64 entries of a page."""
        import pandas as pd

        starts = np.array([band.first for band in self.bands])
        rows = np.arange(len(self.rows))
        holders = np.searchsorted(starts, rows, side="right") - 1
        names = [self.bands[holder].allocation for holder in holders]
        columns = {f"entry_{number}": self.rows[:, number] for number in range(PAGE_ENTRIES)}
        pages = rows * self.pages_per_row
        return pd.DataFrame({"page": pages, "allocation": names, **columns}).set_index("page")


def heat_map(snapshots: Snapshots) -> HeatMap | None:
    """The heat map of all allocations with known positions of entries; None if there is no such allocation.

    >>> from simgpu.compression.buddy.snapshots import take_snapshots
    >>> heat = heat_map(take_snapshots({"a": np.zeros(10 * 1024), "b": np.zeros(512), "c": np.zeros(512)}))
    >>> heat.rows.shape, heat.bands[1:]
    ((11, 64), (Band(allocation='b', first=10.0, rows=0.5), Band(allocation='c', first=10.5, rows=0.5)))
    """
    known = [(each.allocation.name, each.classes) for each in snapshots.observed if each.classes is not None]
    if not known:
        return None
    places = list(_places([classes[0].size for _, classes in known]))
    pages = -(-(places[-1] + known[-1][1][0].size) // PAGE_ENTRIES)
    per_row = -(-pages // _ROWS)
    row_entries = per_row * PAGE_ENTRIES
    sums_by_row = np.zeros((-(-pages // per_row), PAGE_ENTRIES))
    there = np.zeros(sums_by_row.shape)
    bands = []
    for (name, classes), place in zip(known, places, strict=True):
        first, before = divmod(place, row_entries)
        around = (before, -(before + classes[0].size) % row_entries)
        sums = _by_row(np.pad(_summed_sizes(classes), around), per_row)
        sums_by_row[first : first + len(sums)] += sums / len(classes)
        there[first : first + len(sums)] += _by_row(np.pad(np.ones(classes[0].size, np.uint32), around), per_row)
        bands.append(Band(name, place / row_entries, classes[0].size / row_entries))
    rows = np.full(sums_by_row.shape, np.nan)
    np.divide(sums_by_row, there, out=rows, where=there > 0)
    return HeatMap(rows, tuple(bands), per_row)


def _places(sizes: Sequence[int]) -> Iterator[int]:
    """The first entry of each allocation, given their numbers of entries."""
    free = 0
    for size in sizes:
        at = -(-free // _ALIGNMENT) * _ALIGNMENT
        if at % PAGE_ENTRIES + size > PAGE_ENTRIES:
            at = -(-at // PAGE_ENTRIES) * PAGE_ENTRIES
        yield at
        free = at + size


def _summed_sizes(classes: tuple[Classes, ...]) -> NDArray[np.uint32]:
    """Compressed bytes of each entry, summed over its snapshots."""
    sizes = np.array(ENTRY_SIZES, np.uint32)
    total = np.zeros(classes[0].size, np.uint32)
    for each in classes:
        total += sizes[each]
    return total


def _by_row(entries: NDArray[np.uint32], pages: int) -> NDArray[np.uint64]:
    """Sums over the pages of each row, per entry of a page: integers, so that the order of addition does not matter."""
    return np.asarray(entries.reshape(-1, pages, PAGE_ENTRIES).sum(axis=1, dtype=np.uint64))
