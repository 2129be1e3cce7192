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

from dataclasses import dataclass
from itertools import accumulate

from simgpu.compression.codecs.registry import codec_names
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.pool import aligned
from simgpu.memory.transfer import stream_ns
from simgpu.planning.bound import Bound, filled, smallest
from simgpu.units import format_bytes


@dataclass(frozen=True, slots=True)
class _Live:
    """A block that is live over a gap: last write, next use, bytes, times to copy it out and in, to recompute it."""

    written: int
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
    live = _live_blocks(graph, node, sizes)
    times = {k: _time_bound(k, need - budget, live[k], worked) for k, need in enumerate(own)}
    ns = max(times.values(), default=worked[-1])
    pressure = tuple(k for k, each in times.items() if each == ns > worked[-1])
    how = "whatever a program moves, one kernel at a time" if pressure else "time of the kernels"
    return Bound(ns, worked[-1], peak, kernel, True, pressure, how)


def _live_blocks(graph: TaskGraph, node: NodeSpec, sizes: list[int]) -> list[list[_Live]]:
    """For each kernel, the blocks written by kernels that are live while it runs, except its own."""
    blocks_by_kernel: list[list[_Live]] = [[] for _ in graph.kernels]
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
            live = _Live(written, gap.before, freed, copies, graph.durations[written] if single else 0)
            for k in range(gap.after + 1, gap.before):
                blocks_by_kernel[k].append(live)
    return blocks_by_kernel


def _encoded(graph: TaskGraph, b: int) -> int:
    """Bytes of a block's smallest known form."""
    block, costs = graph.blocks[b], graph.costs
    if costs is None:
        return graph.sizes[b]
    known = (costs.encoded_bytes(block, codec) for codec in codec_names() if costs.is_known(block, codec))
    return min(graph.sizes[b], *known, graph.copy_sizes[b])


def _time_bound(k: int, own: int, live: list[_Live], worked: list[int]) -> int:
    """The shortest time in which enough can be offloaded or dropped while kernel k runs. own: bytes of k over the
    budget."""
    compute, missing = worked[-1], own + sum(live.bytes for live in live)
    if missing <= 0:
        return compute
    fixed = worked[min(live.written for live in live) + 1] + compute - worked[max(live.before for live in live)]
    copies = [(live.bytes, live.copies_ns) for live in live if live.bytes]
    recomputes = [(live.bytes, live.recompute_ns) for live in live if live.bytes]

    def enough(ns: int) -> bool:
        return filled(copies, ns - fixed) + filled(recomputes, ns - compute) >= missing

    return smallest(enough, compute, compute + fixed + sum(ns for _, ns in (*copies, *recomputes)))
