"""The sub-batch that fits a memory budget, by equation 8 of moDNN (Chen et al., TPDS 2019, section 5.1.2): it limits
the memory of any alpha |T| consecutive tasks.

Where the published text is open, this implementation decides:

* A task is one layer in one pass (`Tdfg.layer_tasks`), as in the published graph: it may have several kernels, and
  their number may differ between forward and backward. Weight updates (BP3) are not tasks. The window is alpha |T|
  tasks, rounded up.
* A window needs its data and the largest workspace of the fastest algorithms of its tasks.
* The equation as printed, the default, adds up all data that the window's tasks touch, each once: `touched`. With it
  moDNN moves as few bytes as in figure 11. But data that no later task uses can be freed within the window: `live` is
  the peak of the window's resident data. Data from before the window is resident from its begin, new data from its
  creation, and data that is used later stays. Only `live` agrees with section 7.4, where ResNet-34 at batch 256 is not
  partitioned in 5 GB and is below.
* Workspaces are profiled at one batch, while data sizes scale with the candidate sub-batch. The selected sub-batch is
  rounded down and profiled in turn, until it no longer changes. Where the profiles cycle, the largest rounded sub-batch
  in the cycle is selected that equation 8 allows by its own profile.
* The full batch is never rounded: nothing is partitioned then.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import InputError
from simgpu.graph.bounds import first_reason
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg, padded
from simgpu.graph.transforms import algorithm_choices, transformed
from simgpu.hardware.spec import GpuSpec
from simgpu.policies.base import PlanContext
from simgpu.program.lowering import require_reads
from simgpu.trace.model import BlockKind, Origin, Trace
from simgpu.workloads.rescale.kernels import scaled
from simgpu.workloads.rescale.samples import sample_sides


def partitioned(
    context: PlanContext, requested: int, alpha: float, counted: Counted
) -> tuple[TaskGraph, int, list[str]]:
    """The graph in sub-batches, the sub-batch size, and notes on both.

    requested: samples per sub-batch, 0 to choose. alpha, counted: of equation 8. Where the size is to be
    chosen and the batch cannot be partitioned, it stays undivided. Raises `InputError` for values out of range, and
    where a requested sub-batch is impossible.
    """
    require_reads(context.graph)
    batch = context.graph.trace.info.batch
    if not 0 < alpha <= 1:
        what = f"{alpha} is not a share of the tasks"
        raise InputError.single("", "parameters.alpha", what, "give a number over 0 and up to 1")
    if requested:
        if not 1 <= requested <= batch:
            what = f"{requested} is no part of a batch of {batch}"
            raise InputError.single("", "parameters.sub_batch", what, f"give 1 to {batch}, or 0 to have it chosen")
        notes = [f"sub-batches of {requested} of {batch} samples, as requested", *on_times(context.graph, requested)]
        return transformed(context.graph, (Split(requested),)), requested, notes
    selection = select_sub_batch(context.graph, context.node.gpu, context.budget, alpha=alpha, counted=counted)
    reason = selection.whole_batch_reason
    if selection.size < batch:
        try:
            graph = transformed(context.graph, (Split(selection.size),))
            notes = [f"sub-batches of {selection.size} of {batch} samples", *on_times(context.graph, selection.size)]
            return graph, selection.size, notes
        except InputError as error:
            reason = first_reason(error)
    notes = [f"the batch of {batch} is not partitioned" + (f": {reason}" if reason else "")]
    return transformed(context.graph, (Split(batch),)), batch, notes


def on_times(graph: TaskGraph, size: int, parts: str = "sub-batches") -> list[str]:
    """A note on the times of parts of the batch where those of the full batch were recorded. parts: their name."""
    info = graph.trace.info
    if info.origin is Origin.MODELLED or size == info.batch:
        return []
    how = graph.at_batch(size).trace.info.notes.removeprefix(info.notes).strip()
    return [f"times of {parts} are modelled, not recorded. {how}"]


def on_batch_norms(trace: Trace, size: int) -> list[str]:
    """A note where a part of the batch changes what is computed: the statistics of batch norms."""
    if any(_BATCH_NORM.search(kernel.op) for kernel in trace.kernels):
        return [f"batch norms see {samples_text(size)} at a time"]
    return []


def samples_text(count: int) -> str:
    """A number of samples.

    >>> samples_text(1), samples_text(2)
    ('1 sample', '2 samples')
    """
    return f"{count} sample{'' if count == 1 else 's'}"


_BATCH_NORM = re.compile(r"batch_?norm", re.IGNORECASE)


Ints = NDArray[np.int64]

#: The share of tasks that the paper uses.
ALPHA = 0.15

#: The data of a window that count: see the module's docstring.
Counted = Literal["live", "touched"]


def fastest_workspaces(graph: TaskGraph, alignment: int = 1) -> list[int]:
    """The workspace of each kernel's fastest algorithm, bytes: as in `Tdfg.fastest`, without the rest of it."""
    choices = algorithm_choices(graph)
    result = []
    for k, duration_ns in enumerate(graph.durations):
        written = (b for b in graph.writes[k] if graph.blocks[b].kind is BlockKind.WORKSPACE)
        own = sum(padded(graph.sizes[b], alignment) for b in written if not graph.blocks[b].persistent)
        listed = [(each.duration_ns, padded(each.workspace_bytes, alignment)) for each in choices.get(k, ())]
        result.append(min(((duration_ns, own), *listed))[1])
    return result


def window_bytes(tdfg: Tdfg, alpha: float = ALPHA, counted: Counted = "touched") -> int:
    """The left side of equation 8 at the graph's own batch, bytes. alpha: over 0 and up to 1.

    >>> from simgpu.graph.taskgraph import TaskGraph
    >>> from simgpu.trace.chain import chain
    >>> tdfg = Tdfg.of(TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 400])))
    >>> window_bytes(tdfg), window_bytes(tdfg, 0.4, "live"), window_bytes(tdfg, 0.5)
    (600, 700, 700)
    """
    workspaces = [tdfg.fastest(k).workspace for k in range(len(tdfg.kinds))]
    return Windows.of(tdfg, alpha, counted).largest(tdfg.sizes, workspaces)


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a graph. tasks: kernels of each layer's task; width: tasks in a window.

    resident: blocks that always reside. blocks: blocks that tasks touch; first, last: the first and last task that
    touches each. touched: rows of (block, first window, one past the last window): the windows that touch the block.
    """

    tasks: tuple[tuple[int, ...], ...]
    resident: frozenset[int]
    blocks: Ints
    first: Ints
    last: Ints
    touched: Ints
    width: int
    counted: Counted

    @classmethod
    def of(cls, tdfg: Tdfg, alpha: float, counted: Counted) -> Windows:
        """The windows of a graph. alpha: share of its tasks. Raises `ValueError` unless it is over 0 and up to 1."""
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha is {alpha}: give a share of the tasks over 0 and up to 1")
        tasks = tdfg.layer_tasks
        places: dict[int, list[int]] = {}
        for place, task in enumerate(tasks):
            for b in dict.fromkeys(b for k in task for b in tdfg.data(k)):
                places.setdefault(b, []).append(place)
        width = ceil(Fraction(str(alpha)) * len(tasks))
        touched = []
        for b, own in places.items():
            for before, place in pairwise((-1, *own)):
                # Windows up to the task, less those that touch the block already at the task before.
                touched.append((b, max(place - width + 1, before + 1), place + 1))
        windows = len(tasks) - width + 1
        rows = np.array(touched, dtype=np.int64).reshape(-1, 3)
        rows[:, 1:] = rows[:, 1:].clip(0, windows)
        ends = np.array([(own[0], own[-1]) for own in places.values()], dtype=np.int64).reshape(-1, 2)
        blocks, (first, last) = np.array([*places], dtype=np.int64), ends.T
        return cls(tasks, tdfg.resident, blocks, first, last, rows, width, counted)

    def largest(self, sizes: Sequence[int], workspaces: Sequence[int]) -> int:
        """Bytes of the largest window with all resident blocks, for sizes by block and workspaces by kernel."""
        resident = sum(sizes[b] for b in self.resident)
        if not self.tasks:
            return resident
        scratch = [max(workspaces[k] for k in task) for task in self.tasks]
        # Python's integers are exact where sums could exceed 64 bits.
        kind = np.int64 if sum(sizes) + max(scratch) < 2**62 else object
        needs = self._touched(np.array(sizes, dtype=kind))
        if self.counted == "live":
            needs = self._live(np.array(sizes, dtype=kind), needs)
        return resident + int((needs + _largest_in_window(np.array(scratch, dtype=kind), self.width)).max())

    def _touched(self, sizes: Ints) -> Ints:
        """The bytes of all data that each window's tasks touch."""
        blocks, begins, ends = self.touched.T
        changes = np.zeros(len(self.tasks) - self.width + 2, dtype=sizes.dtype)
        np.add.at(changes, begins, sizes[blocks])
        np.subtract.at(changes, ends, sizes[blocks])
        totals: Ints = np.cumsum(changes)[:-1]
        return totals

    def _live(self, sizes: Ints, touched: Ints) -> Ints:
        """The peak bytes of live data in each window.

        At a task, this is all data of the window but the blocks that died before it and those that are born after it.
        """
        born, dead = (np.zeros(len(self.tasks) + 1, dtype=sizes.dtype) for _ in range(2))
        np.add.at(born, self.first + 1, sizes[self.blocks])
        np.add.at(dead, self.last + 1, sizes[self.blocks])
        born_before, dead_before = np.cumsum(born), np.cumsum(dead)
        fullest = _largest_in_window(born_before[1:] - dead_before[:-1], self.width)
        windows = len(touched)
        live: Ints = touched + dead_before[:windows] - born_before[self.width :] + fullest
        return live


def _largest_in_window(values: Ints, width: int) -> Ints:
    """The largest of each `width` neighbours.

    >>> _largest_in_window(np.array([3, 1, 2, 5, 4]), 2).tolist()
    [3, 2, 5, 5]
    """
    reach = 1
    while reach < width:
        step = min(reach, width - reach)
        values = np.maximum(values[:-step], values[step:])
        reach += step
    return values


@dataclass(frozen=True, slots=True)
class SubBatch:
    """A selected sub-batch.

    size: samples per sub-batch; whole: the full batch. fits: whether equation 8 holds at `size`; if not, one sample is
    too much, or the batch cannot be partitioned. steps: (profiled batch, sub-batch selected by that profile), in order.
    whole_batch_reason: why a batch that does not fit is not partitioned, else empty.
    """

    size: int
    batch: int
    fits: bool
    steps: tuple[tuple[int, int], ...]
    whole_batch_reason: str = ""


def rounded_down(batch: int) -> int:
    """The largest regular sub-batch up to `batch`: above 64 a multiple of 64, else a power of two (section 5.1.2).

    >>> [rounded_down(batch) for batch in (255, 130, 64, 63, 31, 5, 1)]
    [192, 128, 64, 32, 16, 4, 1]
    """
    return batch // 64 * 64 if batch >= 64 else 1 << (batch.bit_length() - 1)


def select_sub_batch(
    graph: TaskGraph, gpu: GpuSpec, budget: int, *, alpha: float = ALPHA, counted: Counted = "touched"
) -> SubBatch:
    """The largest sub-batch for which any alpha |T| consecutive tasks fit into `budget` bytes by equation 8; else 1.

    graph: the undivided iteration; its `at_batch` gives other batches. gpu: its alignment pads blocks. alpha, counted:
    parameters of equation 8 (`simgpu.policies.common.sub_batches`).

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5, 7], [10, 14], [6400, 12800])
    >>> graph = TaskGraph.of(replace(trace, info=replace(trace.info, batch=64)))
    >>> [select_sub_batch(graph, GpuSpec("small", 10**9), budget).size for budget in (19200, 19199, 4800, 299)]
    [64, 32, 16, 1]
    """
    return _Selection(graph, gpu.alignment, budget, alpha, counted).run()


@dataclass
class _Selection:
    """One search. profiles: workspaces of the fastest algorithms by profiled batch. growing: blocks whose size depends
    on the batch. steps: as in `SubBatch`.
    """

    graph: TaskGraph
    alignment: int
    budget: int
    alpha: float
    counted: Counted
    steps: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batch_size = self.graph.trace.info.batch
        tdfg = Tdfg.of(self.graph, self.alignment)
        self.windows = Windows.of(tdfg, self.alpha, self.counted)
        self.profiles = {self.batch_size: fastest_workspaces(self.graph, self.alignment)}
        self.growing: frozenset[int] = frozenset()

    def run(self) -> SubBatch:
        """The full batch where it fits or cannot be partitioned, else the sub-batch that the profiles select."""
        if self._fits(self.batch_size, self.batch_size):
            return SubBatch(self.batch_size, self.batch_size, True, ((self.batch_size, self.batch_size),))
        try:
            self.growing = frozenset(map(self.graph.block, sample_sides(self.graph.trace)))
            if self.growing:
                size = self._settled()
                return SubBatch(size, self.batch_size, self._fits(size, size), tuple(self.steps))
            why = "no block of the iteration grows with the batch"
        except InputError as error:
            why = first_reason(error)
        return SubBatch(self.batch_size, self.batch_size, False, ((self.batch_size, self.batch_size),), why)

    def _settled(self) -> int:
        """Profile and select in turn until the sub-batch no longer changes."""
        seen = [self.batch_size]
        while (size := self._selected(seen[-1])) not in seen:
            seen.append(size)
        cycle = seen[seen.index(size) :]
        return self._between(min(cycle), max(cycle))

    def _selected(self, profiled: int) -> int:
        """The largest sub-batch that fits with the workspaces of one profile, rounded; 1 if none does."""
        size = bisect_right(range(2, self.batch_size + 1), 0, key=lambda batch: not self._fits(batch, profiled)) + 1
        rounded = size if size == self.batch_size else rounded_down(size)
        self.steps.append((profiled, rounded))
        return rounded

    def _between(self, low: int, high: int) -> int:
        """The largest regular sub-batch that its own profile allows, between one that fits and one that does not."""
        regular = sorted({rounded_down(batch) for batch in range(low, max(high, low + 1))})
        return regular[bisect_right(regular[1:], 0, key=lambda batch: self._selected(batch) < batch)]

    def _fits(self, batch: int, profiled: int) -> bool:
        if profiled not in self.profiles:
            self.profiles[profiled] = fastest_workspaces(self.graph.at_batch(profiled), self.alignment)
        return self.windows.largest(self._sizes(batch), self.profiles[profiled]) <= self.budget

    def _sizes(self, batch: int) -> Sequence[int]:
        return [
            padded(scaled(size, batch, self.batch_size) if b in self.growing else size, self.alignment)
            for b, size in enumerate(self.graph.sizes)
        ]
