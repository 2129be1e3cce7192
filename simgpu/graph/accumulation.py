"""Gradient accumulation: forward and backward of equal micro-batches, as PyTorch adds up their gradients.

A graph in micro-batches renumbers kernels and blocks, so this transform comes before all others.

The first micro-batch is a round, the others are one that repeats, then the optimizer runs once. PyTorch's
``AccumulateGrad`` (torch/csrc/autograd/functions/accumulate_grad.h) decides what a weight's gradient costs:

* First micro-batch: ``.grad`` is undefined, so it takes over the new gradient without a kernel or a copy.
* Later ones: ``grad += new`` in place, when the operator of backward that completes the new gradient has ended. The
  new gradient is live until then. Of one operator, gradients are added in the order in which they were written.

Where PyTorch cannot take over a gradient and the recording has a kernel that copies it, this kernel runs in every
micro-batch; in PyTorch it runs in the first only. Gradients that the optimizer reads live from the first micro-batch to
where the recording frees them. Without an optimizer they are resident throughout, as in `simgpu.graph.split`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from simgpu.errors import InputError
from simgpu.graph.saved import saved_tensors
from simgpu.graph.split import RoundPart, end_of_backward, joined, round_of
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import HOST_INPUTS, Role, Tdfg
from simgpu.trace.model import Block, Kernel

#: The operator that adds a micro-batch's gradient of a weight to the sum.
ADD = "aten::add_"


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Run the iteration in this number of micro-batches: see `accumulated`.

    bandwidth: bytes per second that a kernel reads and writes while it adds gradients; overhead_ns: fixed time of each
    of these kernels.
    """

    micro_batches: int
    bandwidth: int
    overhead_ns: int = 0

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph of the same iteration in micro-batches."""
        return accumulated(graph, self)


def accumulated(graph: TaskGraph, how: Accumulate) -> TaskGraph:
    """The same iteration in equal micro-batches, two or more.

    Kernels and blocks of later micro-batches have the suffix ``@2-4``, if there are four. Costs of encoding are unknown
    for the result. Raises `InputError` for a number that does not divide the batch, for a trace that cannot be rescaled
    to another batch, whose optimizer does not come last, or whose gradients of weights have rows for each sample.

    >>> from simgpu.trace.model import Block, BlockKind, Origin, Phase, Trace, TraceInfo
    >>> images = Block("x", 400, BlockKind.INPUT, persistent=True)
    >>> weight = Block("w", 100, BlockKind.WEIGHT, persistent=True)
    >>> gradient = Block("w.grad", 100, BlockKind.WEIGHT_GRADIENT)
    >>> backward = Kernel("B", "op", Phase.BACKWARD, 40, ("x",), ("w.grad",))
    >>> step = Kernel("step", "add", Phase.OPTIMIZER, 1, ("w", "w.grad"), ("w",))
    >>> info = TraceInfo("one layer", 4, "gpu", "float32", Origin.MODELLED, "by hand")
    >>> trace = Trace(info, (backward, step), (images, weight, gradient))
    >>> graph = accumulated(TaskGraph.of(trace), Accumulate(4, 10**10))
    >>> [(kernel.id, kernel.writes) for kernel in graph.kernels]
    [('B', ('w.grad',)), ('B@2-4', ('w.grad@2-4',)), ('B@2-4:w.grad', ('w.grad',)), ('step', ('w',))]
    >>> graph.durations, [part.repeat for part in graph.rounds]
    ((16, 16, 30, 1), [1, 3, 1])
    """
    count = how.micro_batches
    full = graph.at_batch(micro_batch(graph, count))
    end = end_of_backward(graph, partitioned=True)
    sums = summed_gradients(full, end)
    _check_rows(graph, full, sums)
    suffix = "@2" if count == 2 else f"@2-{count}"
    lasting = frozenset(full.blocks[b].id for b in Tdfg.of(full).resident if not _is_left_over(full, b))
    gradients = frozenset(full.blocks[b].id for b in sums)
    passing = frozenset(full.blocks[b].id for b in sums if full.uses[b][-1] >= end and not full.blocks[b].persistent)
    first = _held_to_end(round_of(full, end, lasting, ""), full, end, "")
    later = _with_adds(round_of(full, end, lasting - gradients, suffix), full, sums, suffix, how)
    return joined(graph, full, [(first, 1), (later, count - 1)], lasting - passing)


def _is_left_over(graph: TaskGraph, b: int) -> bool:
    """Whether a block only waits to be freed, as the gradients that ``zero_grad`` drops when an iteration begins."""
    return not graph.uses[b] and graph.recorded_releases[b] is not None


def micro_batch(graph: TaskGraph, count: int) -> int:
    """Samples of each of `count` micro-batches. Raises `InputError` unless the number divides the batch."""
    batch = graph.trace.info.batch
    if count < 1 or batch % count:
        near = ", ".join(map(str, divisors(batch)))
        what = f"a batch of {batch} cannot be split into {count} equal micro-batches"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "batch", what, f"give one of {near}")
    return batch // count


def divisors(batch: int) -> list[int]:
    """The numbers of equal micro-batches that a batch can be split into, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [count for count in range(1, batch + 1) if batch % count == 0]


def summed_gradients(graph: TaskGraph, end: int) -> dict[int, int]:
    """The gradients of weights that backward completes, each with the kernel before `end` after which it is added.

    That is the last kernel of the operator that completes it, where the saved tensors that the operator takes back are
    recorded. A gradient whose first kernel reads it is added to what it was already, so nothing is missing there.
    """
    tdfg = Tdfg.of(graph)
    operators = [(each.before, each.freed) for each in saved_tensors(graph).tensors if each.freed is not None]
    sums = {}
    for b in sorted(tdfg.resident):
        uses = [k for k in graph.uses[b] if k < end]
        if tdfg.roles[b] is Role.WEIGHT_GRADIENT and uses and b not in graph.reads[uses[0]]:
            last = max((last for first, last in operators if first <= uses[-1] <= last), default=uses[-1])
            sums[b] = min(last, end - 1)
    return sums


def add_ns(size: int, how: Accumulate) -> int:
    """Time to add a gradient of `size` bytes to another in place: two are read, one is written."""
    return how.overhead_ns + ceil(Fraction(3 * size * 10**9, how.bandwidth))


def _check_rows(graph: TaskGraph, full: TaskGraph, sums: Mapping[int, int]) -> None:
    before = graph.trace.block_by_id
    for b in sums:
        block = full.blocks[b]
        if block.bytes != before[block.id].bytes:
            what = f"'{block.id}' has rows for each sample, and sums of such gradients are not modelled"
            raise InputError.single(graph.trace.name or graph.trace.info.model, "blocks", what, "take another trace")


def _with_adds(part: RoundPart, graph: TaskGraph, sums: Mapping[int, int], suffix: str, how: Accumulate) -> RoundPart:
    """The round with a kernel after each completed gradient of a weight that adds it to the sum and frees it."""
    completed: defaultdict[int, list[int]] = defaultdict(list)
    for b, k in sums.items():
        completed[k].append(b)
    kernels: list[Kernel] = []
    added: dict[str, str] = {}
    for k, kernel in enumerate(part.kernels):
        kernels.append(kernel)
        for b in completed[k]:
            total = graph.blocks[b].id
            add = _add(kernel, total, total + suffix, add_ns(graph.sizes[b], how))
            kernels.append(add)
            added[total + suffix] = add.id
    part = _held_to_end(replace(part, kernels=tuple(kernels)), graph, len(part.kernels), suffix)
    blocks = tuple(
        replace(block, persistent=False, release=added[block.id]) if block.id in added else block
        for block in part.blocks
    )
    return replace(part, blocks=blocks)


def _add(kernel: Kernel, total: str, new: str, duration_ns: int) -> Kernel:
    """The kernel that adds a new gradient, which `kernel` has completed."""
    return Kernel(
        f"{kernel.id}:{total}",
        ADD,
        kernel.phase,
        duration_ns,
        (total, new),
        (total,),
        kernel.layer,
        kernel.stream,
        pure=False,
    )


def _held_to_end(part: RoundPart, graph: TaskGraph, end: int, suffix: str) -> RoundPart:
    """The round whose last kernel releases what the recording holds beyond backward: the variables of a loop."""
    last = part.kernels[-1].id if part.kernels else None
    names = {kernel.id for kernel in graph.kernels[:end]}
    held = {block.id + suffix for block in graph.blocks if _is_held(block, names)}
    blocks = tuple(replace(block, release=last) if block.id in held else block for block in part.blocks)
    return replace(part, blocks=blocks)


def _is_held(block: Block, names: set[str]) -> bool:
    if block.release is None:
        return block.persistent and block.kind in HOST_INPUTS
    return block.release not in names
