"""Rows of the links in the linear program, added where a solution violates them.

* Offloads. Those that end before a kernel starts, and cannot begin before some earlier instant, run one after another
  in between. A fetch waits until its block is offloaded.
* Fetches. Blocks that are on the host while a kernel runs are copied in one after another, after it and before their
  own next use. A fetched block is copied in between its trigger and the kernel that first needs it.

Such copies of lengths d and parts x, between two instants with kernels of time W in between, give two sorts of rows.
The time t between the instants is at least sum d x. If the copies of a set C take D > W together, then
t >= W + e - sum min(d, e) (1 - x) with e = D - W: all of them exceed the kernels by e, and each omitted one reduces
that by at most its length (the cover inequality of a knapsack with a continuous variable). x may be a sum of variables
if at most one of them is 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simgpu.planning.bound_program import Floats, Solved, total
from simgpu.planning.bound_rows import Rows

#: A copy: its feature map, the instants after which it begins and before which it ends, its time, its variable.
Job = tuple[int, int, int, int, int]

#: Sets C are searched up to this many items above the smallest.
_LARGER = 25


class Links:
    """The copies of both links, and their rows."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        gaps, trigger = rows.facts.gaps, rows.facts.trigger
        self.links: list[list[Job]] = []
        outs: defaultdict[int, list[Job]] = defaultdict(list)
        ins: defaultdict[int, list[Job]] = defaultdict(list)
        for (f, w, k), u in rows.out.items():
            way = gaps[f].ways[w]
            outs[k].append((f, way.begins, 2 * k + 1, way.out_ns, u))
            ins[k].append((f, 2 * k + 2, 2 * gaps[f].before + 1, way.in_ns, u))
        offloads: list[Job] = []
        for (f, w), x in rows.swapped.items():
            way = gaps[f].ways[w]
            offloads.append((f, way.begins, 2 * trigger(f, gaps[f].before, way.aheads[0]) + 1, way.out_ns, x))
        self.fetches: list[Job] = []
        for (f, w), first in rows.first.items():
            for h, n in first.items() if w >= 0 else ():
                way = gaps[f].ways[w]
                start, end = (h, h) if h >= 0 else (rows.facts.needs[f], gaps[f].before)
                release = 2 * trigger(f, start, way.aheads[1])
                self.fetches.append((f, release, 2 * end + 1, way.in_ns, n))
        self.links = [*outs.values(), *ins.values(), offloads, self.fetches]

    def begin(self) -> None:
        """Add rows of single fetches that take longer than the kernels in between."""
        for _, release, deadline, ns, n in self.fetches:
            work = self.rows.facts.work(release, deadline)
            if ns > work:
                self._row(release, deadline, [(ns, [n])], work)

    def cut(self, solved: Solved, slack: float) -> int:
        """Add rows that a solution violates by more than `slack`; returns their number."""
        return sum(self._cut(jobs, solved, slack) for jobs in self.links if jobs)

    def _cut(self, jobs: Sequence[Job], solved: Solved, slack: float) -> int:
        """For each instant before which copies end, add the row with the largest violation, if any."""
        maps, releases, deadlines, ns, columns = (np.array(each) for each in zip(*jobs, strict=True))
        parts = np.clip(solved.values[columns], 0.0, 1.0)
        added = 0
        for deadline in np.unique(deadlines).tolist():
            inside = (deadlines <= deadline) & (ns > 0)
            worst, broken = slack, None
            for release in np.unique(releases[inside & (parts > 0.001)]).tolist():
                if release >= deadline:
                    continue
                among = np.flatnonzero(inside & (releases >= release))
                work = self.rows.facts.work(release, deadline)
                spare = float(solved.values[self.rows.times[deadline]] - solved.values[self.rows.times[release]]) - work
                if (short := float((ns[among] * parts[among]).sum()) - work - spare) > worst:
                    worst, broken = short, (release, [(int(ns[j]), [int(columns[j])]) for j in among], 0)
                if int(ns[among].sum()) > work + spare:
                    items = together(maps[among], ns[among], columns[among], parts[among])
                    short, count = cover(items, work, spare)
                    if count and short > worst:
                        worst, broken = short, (release, [(each, own) for each, own, _ in items[:count]], work)
            if broken is not None:
                self._row(broken[0], deadline, broken[1], broken[2])
                added += 1
        return added

    def _row(self, release: int, deadline: int, items: list[tuple[int, list[int]]], work: int) -> None:
        """Add a row. work: 0 for a row of the first sort."""
        minimum, most = 0, max(ns for ns, _ in items)
        if work:
            most = sum(ns for ns, _ in items) - work
            minimum = work + most - sum(min(ns, most) for ns, _ in items)
        spent = ((u, -min(ns, most)) for ns, columns in items for u in columns)
        times = self.rows.times
        self.rows.program.row(total([(times[deadline], 1), (times[release], -1), *spent]), minimum)


Item = tuple[int, list[int], float]


def together(maps: NDArray[np.int64], ns: NDArray[np.int64], columns: NDArray[np.int64], parts: Floats) -> list[Item]:
    """One item for all copies of a feature map with equal times: time, variables, part; largest parts first."""
    merged: dict[tuple[int, int], tuple[list[int], float]] = {}
    for f, each, column, part in zip(maps.tolist(), ns.tolist(), columns.tolist(), parts.tolist(), strict=True):
        own, so_far = merged.get((f, each), ([], 0.0))
        merged[f, each] = ([*own, column], so_far + part)
    items = [(each, own, min(part, 1.0)) for (_, each), (own, part) in merged.items()]
    return sorted(items, key=lambda item: -item[2])


def cover(items: Sequence[Item], work: int, spare: float) -> tuple[float, int]:
    """The largest violation of a row of the second sort by the first items, and the number of these items."""
    ns = np.array([item[0] for item in items])
    omitted = 1.0 - np.array([item[2] for item in items])
    sums = np.cumsum(ns)
    first = int(np.searchsorted(sums, work, side="right"))
    best, count = 0.0, 0
    for last in range(first, min(len(items), first + _LARGER)):
        excess = sums[last] - work
        short = float(excess - (np.minimum(ns[: last + 1], excess) * omitted[: last + 1]).sum()) - spare
        if short > best:
            best, count = short, last + 1
    return best, count
