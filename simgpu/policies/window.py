"""Equation 8 of moDNN (Chen et al., TPDS 2019): the memory of any alpha |T| consecutive tasks.

Readings of what the published text leaves open:

* Tasks are those of layers (`Tdfg.layer_tasks`), as in the published graph: of kernels there may be several for each,
  of different number in forward and in backward. Updates of weights (BP3) are not among them. The window is alpha |T|
  tasks, rounded up.
* On top of a window's data comes the largest workspace that the fastest algorithms of its tasks need.
* The equation as printed adds up all data that the window's tasks touch, each once: `touched`. But the tasks are to run
  without running out of memory, and memory of data that no later task uses is free for those to come: `live`, the
  default, counts what the window has at its fullest moment. What comes from before the window is there from its
  begin, what it makes from then on, and what is used later stays. Of the two this one agrees with section 7.4, where
  ResNet-34 at batch 256 is not partitioned in 5 GB and is below.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import Literal

from simgpu.graph.tdfg import Tdfg

#: The share of tasks that the paper uses.
ALPHA = 0.15

#: Which data of a window count: see the readings above.
Counted = Literal["live", "touched"]


def fastest_workspaces(tdfg: Tdfg) -> list[int]:
    """Of each task's fastest way, bytes."""
    return [tdfg.fastest(k).workspace for k in range(len(tdfg.kinds))]


def window_bytes(tdfg: Tdfg, alpha: float = ALPHA, counted: Counted = "live") -> int:
    """The left side of equation 8 at the graph's own batch, bytes. alpha: over 0 and up to 1.

    >>> from simgpu.graph.taskgraph import TaskGraph
    >>> from simgpu.trace.chain import chain
    >>> tdfg = Tdfg.of(TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 400])))
    >>> window_bytes(tdfg), window_bytes(tdfg, 0.4), window_bytes(tdfg, 0.5, "touched")
    (600, 700, 700)
    """
    return Windows.of(tdfg, alpha, counted).largest(tdfg.sizes, fastest_workspaces(tdfg))


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a graph. tasks: kernels of each layer's task; data: blocks of each; width: tasks in a window.

    resident: blocks that always reside. first, last: by block, the first and last task that touches it.
    """

    tasks: tuple[tuple[int, ...], ...]
    data: tuple[tuple[int, ...], ...]
    resident: frozenset[int]
    first: dict[int, int]
    last: dict[int, int]
    width: int
    counted: Counted

    @classmethod
    def of(cls, tdfg: Tdfg, alpha: float, counted: Counted) -> Windows:
        """Of a graph and a share of its tasks. Raises `ValueError` for a share not over 0 and up to 1."""
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha is {alpha}: give a share of the tasks over 0 and up to 1")
        tasks = tdfg.layer_tasks
        data = tuple(tuple(dict.fromkeys(b for k in task for b in tdfg.data(k))) for task in tasks)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for place, blocks in enumerate(data):
            for b in blocks:
                first.setdefault(b, place)
                last[b] = place
        width = ceil(Fraction(str(alpha)) * len(tasks))
        return cls(tasks, data, tdfg.resident, first, last, width, counted)

    def largest(self, sizes: Sequence[int], workspaces: Sequence[int]) -> int:
        """Bytes of the largest window and what resides, for sizes by block and workspaces by kernel."""
        resident = sum(sizes[b] for b in self.resident)
        if not self.tasks:
            return resident
        needs = self._touched(sizes) if self.counted == "touched" else self._live(sizes)
        scratch = _largest_in_window([max(workspaces[k] for k in task) for task in self.tasks], self.width)
        return resident + max(map(sum, zip(needs, scratch, strict=True)))

    def _touched(self, sizes: Sequence[int]) -> list[int]:
        """Of each window, the bytes of all data that its tasks touch."""
        uses: Counter[int] = Counter()
        total, found = 0, []
        for end, blocks in enumerate(self.data):
            for b in blocks:
                total += 0 if uses[b] else sizes[b]
                uses[b] += 1
            if end >= self.width:
                for b in self.data[end - self.width]:
                    uses[b] -= 1
                    total -= 0 if uses[b] else sizes[b]
            if end >= self.width - 1:
                found.append(total)
        return found

    def _live(self, sizes: Sequence[int]) -> list[int]:
        """Of each window, the most bytes of its data that live at once.

        At a task these are all that it touches but what died since the window began and what is born before it ends.
        """
        count, width = len(self.tasks), self.width
        born, dead = [0] * count, [0] * count
        for b, place in self.first.items():
            born[place] += sizes[b]
            dead[self.last[b]] += sizes[b]
        born_before, dead_before = list(accumulate(born, initial=0)), list(accumulate(dead, initial=0))
        fullest = _largest_in_window([born_before[place + 1] - dead_before[place] for place in range(count)], width)
        return [
            touched + dead_before[begin] - born_before[begin + width] + fullest[begin]
            for begin, touched in enumerate(self._touched(sizes))
        ]


def _largest_in_window(values: Sequence[int], width: int) -> list[int]:
    """The largest of each `width` neighbours.

    >>> _largest_in_window([3, 1, 2, 5, 4], 2)
    [3, 2, 5, 5]
    """
    candidates: deque[int] = deque()  # places whose value no later one in the window reaches
    found = []
    for end, value in enumerate(values):
        while candidates and values[candidates[-1]] <= value:
            candidates.pop()
        candidates.append(end)
        if candidates[0] == end - width:
            candidates.popleft()
        if end >= width - 1:
            found.append(values[candidates[0]])
    return found
