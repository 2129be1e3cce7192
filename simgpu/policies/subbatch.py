"""How many samples to run at a time within a budget of memory (moDNN, Chen et al., TPDS 2019, section 5.1.2).

Lives here: equation 8, the search for the sub-batch that it allows, and rounding. Does not live here: what a
sub-batch makes of an iteration (`simgpu.graph.split`), the least memory it needs (`simgpu.graph.bounds`), or
scheduling within it (the policies).

Readings of what the published text leaves open:

* The window is alpha |T| consecutive tasks, rounded up, without BP3, which the published graph leaves out.
* Live data of a window are all blocks that its tasks touch, each once; the workspace on top is the largest that the
  fastest algorithms of these tasks need.
* The workspaces are those profiled at one batch, while data grow with the sub-batch that is tried. The sub-batch found
  is rounded down, profiled in turn, and so on until it stays. Where the profiles go round in a circle, the largest
  rounded sub-batch between the circle's ends is taken that equation 8 allows by its own profile.
* The whole batch is never rounded: nothing is partitioned then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg, padded
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.rescale.kernels import scaled
from simgpu.trace.rescale.samples import sample_sides


@dataclass(frozen=True, slots=True)
class SubBatch:
    """A sub-batch and how it was found.

    size: samples at a time; whole: the batch. fits: whether equation 8 holds at `size`; if not, one sample is too much
    already, or the batch cannot be partitioned. steps: (batch that was profiled, sub-batch that its profile led to),
    in order. why_whole: why a batch that does not fit is not partitioned, empty where that is not so.
    """

    size: int
    whole: int
    fits: bool
    steps: tuple[tuple[int, int], ...]
    why_whole: str = ""


def rounded_down(batch: int) -> int:
    """The largest regular sub-batch up to `batch`: above 64 a multiple of 64, else a power of two (section 5.1.2).

    >>> [rounded_down(batch) for batch in (255, 130, 64, 63, 31, 5, 1)]
    [192, 128, 64, 32, 16, 4, 1]
    """
    return batch // 64 * 64 if batch >= 64 else 1 << (batch.bit_length() - 1)


def select_sub_batch(graph: TaskGraph, gpu: GpuSpec, budget: int, *, alpha: float = 0.15) -> SubBatch:
    """The sub-batch of which any alpha |T| consecutive tasks fit into `budget` bytes by equation 8; 1 if none does.

    graph: the whole iteration. gpu: whose alignment blocks have. alpha: share of the tasks, over 0 and up to 1.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> whole = chain([5, 7], [10, 14], [6400, 12800])
    >>> graph = TaskGraph.of(replace(whole, info=replace(whole.info, batch=64)))
    >>> [select_sub_batch(graph, GpuSpec("small", 10**9), budget).size for budget in (19200, 19199, 4800, 299)]
    [64, 32, 16, 1]
    """
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is {alpha}: give a share of the tasks over 0 and up to 1")
    return _Selection(graph, gpu.alignment, budget, alpha).run()


def window_bytes(tdfg: Tdfg, alpha: float = 0.15) -> int:
    """The left side of equation 8 at the graph's own batch, bytes.

    >>> from simgpu.trace.chain import chain
    >>> tdfg = Tdfg.of(TaskGraph.of(chain([5, 7], [10, 14], [100, 200])))
    >>> window_bytes(tdfg), window_bytes(tdfg, 1.0)
    (300, 300)
    """
    return _largest_window(tdfg, tdfg.sizes, _workspaces(tdfg), alpha)


def _workspaces(tdfg: Tdfg) -> list[int]:
    """Of each task's fastest way, bytes."""
    return [tdfg.fastest(k).workspace for k in range(len(tdfg.kinds))]


def _largest_window(tdfg: Tdfg, sizes: Sequence[int], workspaces: Sequence[int], alpha: float) -> int:
    """What resides and the largest window, with these sizes of blocks and workspaces of tasks."""
    tasks = tdfg.tasks
    width = ceil(Fraction(str(alpha)) * len(tasks))
    uses: Counter[int] = Counter()
    largest_first: deque[int] = deque()  # positions in the window whose workspace no later one reaches
    live = most = 0
    for end, k in enumerate(tasks):
        for b in tdfg.data(k):
            live += 0 if uses[b] else sizes[b]
            uses[b] += 1
        while largest_first and workspaces[tasks[largest_first[-1]]] <= workspaces[k]:
            largest_first.pop()
        largest_first.append(end)
        if end >= width:
            for b in tdfg.data(tasks[end - width]):
                uses[b] -= 1
                live -= 0 if uses[b] else sizes[b]
            if largest_first[0] == end - width:
                largest_first.popleft()
        most = max(most, live + workspaces[tasks[largest_first[0]]])
    return sum(sizes[b] for b in tdfg.resident) + most


@dataclass
class _Selection:
    """One search; `steps` notes profiles and what they led to."""

    graph: TaskGraph
    alignment: int
    budget: int
    alpha: float
    steps: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.whole = self.graph.trace.info.batch
        self.tdfg = Tdfg.of(self.graph, self.alignment)
        self.profiles: dict[int, list[int]] = {self.whole: _workspaces(self.tdfg)}
        self.growing: frozenset[int] = frozenset()

    def run(self) -> SubBatch:
        """The whole batch where that fits or nothing else can be had, else what profiles and rounding settle on."""
        if self._fits(self.whole, self.whole):
            return SubBatch(self.whole, self.whole, True, ((self.whole, self.whole),))
        why = ""
        try:
            self.growing = frozenset(map(self.graph.block, sample_sides(self.graph.trace)))
            if self.growing:
                size = self._settled()
                return SubBatch(size, self.whole, self._fits(size, size), tuple(self.steps))
            why = "no block of the iteration grows with the batch"
        except InputError as error:
            why = "; ".join(problem.what for problem in error.problems)
        return SubBatch(self.whole, self.whole, False, ((self.whole, self.whole),), why)

    def _settled(self) -> int:
        """Profile and select in turn until the sub-batch stays."""
        seen = [self.whole]
        while (found := self._selected(seen[-1])) not in seen:
            seen.append(found)
        circle = seen[seen.index(found) :]
        return self._between(min(circle), max(circle))

    def _selected(self, profiled: int) -> int:
        """By the workspaces profiled at one batch: the largest sub-batch that fits, rounded; 1 if none does."""
        size = bisect_right(range(2, self.whole + 1), 0, key=lambda batch: not self._fits(batch, profiled)) + 1
        found = size if size == self.whole else rounded_down(size)
        self.steps.append((profiled, found))
        return found

    def _between(self, low: int, high: int) -> int:
        """The largest regular sub-batch that its own profile allows, of one that is allowed and one that is not."""
        regular = sorted({rounded_down(batch) for batch in range(low, max(high, low + 1))})
        return regular[bisect_right(regular[1:], 0, key=lambda batch: self._selected(batch) < batch)]

    def _fits(self, batch: int, profiled: int) -> bool:
        if profiled not in self.profiles:
            self.profiles[profiled] = _workspaces(Tdfg.of(self.graph.at_batch(profiled), self.alignment))
        need = _largest_window(self.tdfg, self._sizes(batch), self.profiles[profiled], self.alpha)
        return need <= self.budget

    def _sizes(self, batch: int) -> Sequence[int]:
        if batch == self.whole:
            return self.tdfg.sizes
        return [
            padded(scaled(size, batch, self.whole) if b in self.growing else size, self.alignment)
            for b, size in enumerate(self.graph.sizes)
        ]
