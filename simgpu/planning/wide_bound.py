"""A lower bound for programs that may move any block: feature maps, gradients, weights, inputs.

It holds for every program of the full batch that runs the recorded kernels once and in order, with the recorded
algorithms, in uncompressed memory that it acquires and releases itself:

* While a kernel runs, its own blocks are resident. `simgpu.program.verify` rejects every program where these alone
  exceed the budget, so if this bound reports that nothing fits, nothing does.
* While kernel k runs, enough of the blocks that kernels wrote before it and read after it are offloaded or dropped.
  Offloaded blocks were copied out between their last write and k, and are copied in between k and their next use;
  dropped blocks are recomputed, which takes at least their last writer's time.
* Blocks that the host can initialize again (weights, inputs, optimizer state that no kernel has written yet) may be
  missing at no cost. So may the bytes that an encoded form saves of a block with a known compressed size.

Programs that split the batch, choose other algorithms, reorder kernels, compress memory or page it are not bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from simgpu.compression.codecs.registry import codec_names
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.pool import aligned
from simgpu.memory.transfer import stream_ns
from simgpu.planning.bound import Bound, Filling, smallest
from simgpu.units import format_bytes


@dataclass(frozen=True, slots=True)
class _Live:
    """A block over a gap: last write, last use before it, next use, bytes, times to copy it out and in, to recompute
    it."""

    written: int
    after: int
    before: int
    bytes: int
    copies_ns: int
    recompute_ns: int


def wide_bound(graph: TaskGraph, node: NodeSpec, budget: int) -> Bound:
    """Lower bound of the step time of every program that fits `budget` bytes; `fits` is False where none does.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([50] * 4, [50] * 4, [100] * 4))
    >>> node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**8, 10**8))
    >>> [wide_bound(graph, node, budget).ns for budget in (400, 200)], wide_bound(graph, node, 199).fits
    ([400, 443], False)
    """
    sizes = [aligned(size, node.gpu.alignment) for size in graph.sizes]
    own = [sum(sizes[b] for b in {*graph.reads[k], *graph.writes[k]}) for k in range(len(graph.kernels))]
    worked = [0, *accumulate(graph.durations)]
    kernel = max(range(len(own)), key=lambda k: own[k], default=None)
    peak = own[kernel] if kernel is not None else 0
    if peak > budget:
        how = f"a kernel needs {format_bytes(peak)} for its own blocks, above the budget of {format_bytes(budget)}"
        return Bound(worked[-1], worked[-1], peak, kernel, False, () if kernel is None else (kernel,), how)
    ns, pressure = _slowest_kernels([need - budget for need in own], _live_blocks(graph, node, sizes), worked)
    how = "whatever a program moves, one kernel at a time" if pressure else "time of the kernels"
    return Bound(ns, worked[-1], peak, kernel, True, pressure, how)


def _live_blocks(graph: TaskGraph, node: NodeSpec, sizes: list[int]) -> Iterator[_Live]:
    """The gaps over which blocks that kernels wrote are live."""
    writers = [[k for k in uses if b in graph.writes[k]] for b, uses in enumerate(graph.uses)]
    for b, size in enumerate(sizes):
        for gap in graph.gaps(b):
            written = max((k for k in writers[b] if k <= gap.after), default=None)
            if written is None or b not in graph.reads[gap.before]:
                continue
            smaller = _encoded(graph, b)
            copied = min(graph.copy_sizes[b], smaller)
            link = node.link
            copies = stream_ns(copied, link.d2h_bandwidth) + stream_ns(copied, link.h2d_bandwidth)
            freed = min(size, aligned(smaller, node.gpu.alignment))
            # A kernel with several outputs recomputes all of them at once: none has a time of its own.
            single = len(graph.writes[written]) == 1
            recompute_ns = graph.durations[written] if single else 0
            yield _Live(written, gap.after, gap.before, freed, copies, recompute_ns)


def _encoded(graph: TaskGraph, b: int) -> int:
    """Bytes of a block's smallest known form."""
    block, costs = graph.blocks[b], graph.costs
    if costs is None:
        return graph.sizes[b]
    known = (costs.encoded_bytes(block, codec) for codec in codec_names() if costs.is_known(block, codec))
    return min(graph.sizes[b], *known, graph.copy_sizes[b])


def _slowest_kernels(own: list[int], live: Iterable[_Live], worked: list[int]) -> tuple[int, tuple[int, ...]]:
    """The largest of the kernels' time bounds, and the kernels that have it where it exceeds their time.

    own: bytes of each kernel over the budget.
    """
    gaps = [each for each in live if each.bytes]
    copied = _during(sorted(gaps, key=lambda each: Fraction(each.copies_ns, each.bytes)), len(own))
    recomputed = _during(sorted(gaps, key=lambda each: Fraction(each.recompute_ns, each.bytes)), len(own))
    largest, slowest = worked[-1], list[int]()
    for k, over in enumerate(own):
        demand = _Demand(over, copied[k], recomputed[k], worked)
        if not demand.met(largest):
            largest, slowest = demand.time_bound(largest), [k]
        elif slowest and not demand.met(largest - 1):
            slowest.append(k)
    return largest, tuple(slowest)


def _during(gaps: list[_Live], kernels: int) -> list[list[_Live]]:
    """For each kernel, the gaps in which it runs, in the same order."""
    by_kernel: list[list[_Live]] = [[] for _ in range(kernels)]
    for each in gaps:
        for k in range(each.after + 1, each.before):
            by_kernel[k].append(each)
    return by_kernel


class _Demand:
    """What must be offloaded or dropped while a kernel runs.

    own: bytes of the kernel over the budget. copied, recomputed: gaps in which it runs, by time per byte.
    """

    def __init__(self, own: int, copied: list[_Live], recomputed: list[_Live], worked: list[int]) -> None:
        self.missing = own + sum(each.bytes for each in copied)
        self.compute = worked[-1]
        if self.missing > 0 and copied:
            first, last = min(each.written for each in copied), max(each.before for each in copied)
            self.fixed = worked[first + 1] + self.compute - worked[last]
            self.copied = Filling([(each.bytes, each.copies_ns) for each in copied])
            self.recomputed = Filling([(each.bytes, each.recompute_ns) for each in recomputed])

    def met(self, ns: int) -> bool:
        """Whether enough can be offloaded or dropped in this time."""
        if self.missing <= 0:
            return True
        freed = self.copied.most_bytes(ns - self.fixed) + self.recomputed.most_bytes(ns - self.compute)
        return freed >= self.missing

    def time_bound(self, low: int) -> int:
        """The shortest time, from `low` on, in which enough can be offloaded or dropped."""
        return smallest(self.met, low, self.compute + self.fixed + self.copied.ns + self.recomputed.ns)
