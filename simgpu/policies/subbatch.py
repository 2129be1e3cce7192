"""How many samples to run at a time within a budget of memory (moDNN, Chen et al., TPDS 2019, section 5.1.2).

Readings of what the published text leaves open:

* The workspaces are those profiled at one batch, while data grow with the sub-batch that is tried. The sub-batch found
  is rounded down, profiled in turn, and so on until it stays. Where the profiles go round in a circle, the largest
  rounded sub-batch between the circle's ends is taken that equation 8 allows by its own profile.
* The whole batch is never rounded: nothing is partitioned then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from simgpu.errors import InputError
from simgpu.graph.bounds import first_reason
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg, padded
from simgpu.hardware.spec import GpuSpec
from simgpu.policies.window import ALPHA, Counted, Windows, fastest_workspaces
from simgpu.workloads.rescale.kernels import scaled
from simgpu.workloads.rescale.samples import sample_sides


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


def select_sub_batch(
    graph: TaskGraph, gpu: GpuSpec, budget: int, *, alpha: float = ALPHA, counted: Counted = "live"
) -> SubBatch:
    """The sub-batch of which any alpha |T| consecutive tasks fit into `budget` bytes by equation 8; 1 if none does.

    graph: the whole iteration, told at other batches by its `at_batch`. gpu: whose alignment blocks have. alpha,
    counted: of equation 8 (`simgpu.policies.window`).

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> whole = chain([5, 7], [10, 14], [6400, 12800])
    >>> graph = TaskGraph.of(replace(whole, info=replace(whole.info, batch=64)))
    >>> [select_sub_batch(graph, GpuSpec("small", 10**9), budget).size for budget in (19200, 19199, 4800, 299)]
    [64, 32, 16, 1]
    """
    return _Selection(graph, gpu.alignment, budget, alpha, counted).run()


@dataclass
class _Selection:
    """One search. profiles: workspaces of the fastest algorithms by profiled batch. growing: blocks that hold samples.

    steps: profiles and what they led to, as they come.
    """

    graph: TaskGraph
    alignment: int
    budget: int
    alpha: float
    counted: Counted
    steps: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.whole = self.graph.trace.info.batch
        tdfg = Tdfg.of(self.graph, self.alignment)
        self.windows = Windows.of(tdfg, self.alpha, self.counted)
        self.profiles = {self.whole: fastest_workspaces(tdfg)}
        self.growing: frozenset[int] = frozenset()

    def run(self) -> SubBatch:
        """The whole batch where that fits or nothing else can be had, else what profiles and rounding settle on."""
        if self._fits(self.whole, self.whole):
            return SubBatch(self.whole, self.whole, True, ((self.whole, self.whole),))
        try:
            self.growing = frozenset(map(self.graph.block, sample_sides(self.graph.trace)))
            if self.growing:
                size = self._settled()
                return SubBatch(size, self.whole, self._fits(size, size), tuple(self.steps))
            why = "no block of the iteration grows with the batch"
        except InputError as error:
            why = first_reason(error)
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
            self.profiles[profiled] = fastest_workspaces(Tdfg.of(self.graph.at_batch(profiled), self.alignment))
        return self.windows.largest(self._sizes(batch), self.profiles[profiled]) <= self.budget

    def _sizes(self, batch: int) -> Sequence[int]:
        return [
            padded(scaled(size, batch, self.whole) if b in self.growing else size, self.alignment)
            for b, size in enumerate(self.graph.sizes)
        ]
