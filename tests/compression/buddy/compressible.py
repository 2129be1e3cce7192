"""Traces with compressed sizes of memory-entries and accesses of kernels, and nodes with compressed memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from simgpu.graph.compressed import CompressedMemory
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import BuddyMode, BuddySpec, Duplex, Granularity, LinkSpec, MetadataCacheSpec, NodeSpec
from simgpu.trace.check import check_trace
from simgpu.trace.model import Access, AccessOrder, CompressedSize, Trace
from tests.compression.buddy.plain_memory import ENTRY, SIZES
from tests.semantics.hand_made import GB, node
from tests.semantics.random_traces import nodes

#: All that a small program touches stays in it from the first iteration on.
ENDLESS = MetadataCacheSpec(2**20, slices=1, ways=2**10, line=32, entries=64)


def entries(size: int) -> int:
    """The number of entries of a block of that many bytes."""
    return -(-size // ENTRY)


def rows(block: str, counts: Sequence[int], epoch: int = 0) -> list[CompressedSize]:
    """A histogram as a trace stores it."""
    with_histograms = zip(SIZES, counts, strict=True)
    return [
        CompressedSize(block, epoch, "bpc", "plain", ENTRY, size, count) for size, count in with_histograms if count
    ]


def with_histograms(trace: Trace, histograms: Mapping[str, Sequence[int]], accesses: Sequence[Access] = ()) -> Trace:
    """A trace with these counts for these blocks, and these accesses."""
    result = [row for block, counts in histograms.items() for row in rows(block, counts)]
    created = replace(trace, compressibility=tuple(result), accesses=tuple(accesses))
    assert not check_trace(created), [str(problem) for problem in check_trace(created)]
    return created


def all_of(size: int, trace: Trace) -> Trace:
    """A trace in which every entry has this size."""
    counts = {b.id: [entries(b.bytes) * (each == size) for each in SIZES] for b in trace.blocks if b.bytes}
    return with_histograms(trace, counts)


def pattern(trace: Trace, counts: tuple[int, ...] = (0, 0, 0, 3, 0, 0, 0, 1)) -> Trace:
    """Entries of every block in these shares, rounded; the remaining entries have the smallest size."""
    result = {}
    for each in trace.blocks:
        if each.bytes:
            full, rest = divmod(entries(each.bytes), sum(counts))
            result[each.id] = [full * n for n in counts]
            result[each.id][next(place for place, n in enumerate(counts) if n)] += rest
    return with_histograms(trace, result)


def grown(trace: Trace, times: int = 64) -> Trace:
    """The trace with blocks that many times as large, so that a few bytes become a few entries."""
    return replace(trace, blocks=tuple(replace(b, bytes=b.bytes * times) for b in trace.blocks))


def buddy_spec(**changed: Any) -> BuddySpec:
    """Only bytes take time: no latencies and no metadata reads."""
    plain = BuddySpec(None, 3, ENDLESS, decompression_ns=0, memory_latency_ns=0, in_flight=1)
    return replace(plain, **changed)


def with_buddy(on: NodeSpec, dram: int = 10 * GB, **changed: object) -> NodeSpec:
    """The node with compressed memory."""
    return replace(on, gpu=replace(on.gpu, dram_bandwidth=dram, buddy=buddy_spec(**changed)))


def buddy_node(memory: int = 10**9, dram: int = 10 * GB, **changed: object) -> NodeSpec:
    """A node with links of 1 byte/ns and memory of 10 bytes/ns."""
    return with_buddy(node(memory), dram, **changed)


def without_buddy(on: NodeSpec) -> NodeSpec:
    return replace(on, gpu=replace(on.gpu, buddy=None))


def buddy_of(node: NodeSpec) -> BuddySpec:
    assert node.gpu.buddy is not None
    return node.gpu.buddy


def memory_of(graph: TaskGraph) -> CompressedMemory:
    assert graph.compressed is not None
    return graph.compressed


@st.composite
def histograms(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """Random entries by size, mostly small, so that many targets occur."""
    if count > 16:
        weights = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 5]), min_size=8, max_size=8).filter(any))
        shares = [count * weight // sum(weights) for weight in weights]
        shares[draw(st.integers(0, 7))] += count - sum(shares)
        return tuple(shares)
    sizes = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 3, 4, 5, 6, 7]), min_size=count, max_size=count))
    return tuple(sizes.count(each) for each in range(len(SIZES)))


@st.composite
def compressible(draw: st.DrawFn, traces: st.SearchStrategy[Trace], *, accesses: bool = True) -> Trace:
    """A trace with histograms of most blocks at one or two epochs, and access patterns of some kernels."""
    trace = draw(traces)
    result: list[CompressedSize] = []
    for block in trace.blocks:
        if block.bytes and draw(st.integers(0, 3)):
            for epoch in draw(st.sampled_from([(0,), (0,), (0, 3)])):
                result += rows(block.id, draw(histograms(entries(block.bytes))), epoch)
    accesses = []
    sizes = {block.id: block.bytes for block in trace.blocks}
    for kernel in trace.kernels if accesses else ():
        for write, touched in ((False, kernel.reads), (True, kernel.writes)):
            for name in dict.fromkeys(touched):
                if sizes[name] and draw(st.integers(0, 2)) == 0:
                    order, sectors = draw(st.sampled_from(AccessOrder)), draw(st.integers(1, 4))
                    stride = draw(st.integers(2, 5)) if order is AccessOrder.STRIDED else 1
                    first = 0 if order is AccessOrder.RANDOM else draw(st.integers(0, entries(sizes[name]) - 1))
                    count = draw(st.integers(1, 40))
                    accesses.append(Access(kernel.id, name, write, order, sectors, count, stride, first))
    created = replace(trace, compressibility=tuple(result), accesses=tuple(accesses))
    assert not check_trace(created), [str(problem) for problem in check_trace(created)]
    return created


@st.composite
def buddy_nodes(draw: st.DrawFn, **fixed: object) -> NodeSpec:
    """Any small node with any compressed memory."""
    on = draw(nodes())
    rate = st.sampled_from([10**8, GB, GB, 3 * GB + 7])
    own = LinkSpec("buddy", draw(rate), draw(rate), draw(st.sampled_from([0, 0, 5])), draw(st.sampled_from(Duplex)))
    drawn: dict[str, object] = {
        "link": draw(st.sampled_from([None, None, own])),
        "cache": MetadataCacheSpec(
            64, slices=draw(st.integers(1, 2)), ways=2, line=32, entries=draw(st.integers(1, 9))
        ),
        "decompression_ns": draw(st.integers(0, 20)),
        "memory_latency_ns": draw(st.integers(0, 100)),
        "in_flight": draw(st.sampled_from([32, 1000, 458752])),
        "overlap": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "mode": draw(st.sampled_from([BuddyMode.CAPACITY] * 3 + [BuddyMode.BANDWIDTH_ONLY])),
        "granularity": draw(st.sampled_from([Granularity.ALLOCATION] * 3 + [Granularity.PROGRAM])),
        "threshold": draw(st.sampled_from([0.0, 0.3, 0.3, 1.0])),
        "mostly_zero": draw(st.booleans()),
    }
    return with_buddy(on, draw(st.sampled_from([10**8, 10 * GB, 900 * GB])), **(drawn | fixed))
