"""Tasks in compressed memory: bytes of entries and durations of kernels, compared with plain counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.compression.buddy.histograms import trace_allocations
from simgpu.compression.buddy.targets import choose_targets
from simgpu.errors import InputError
from simgpu.graph.compressed import CompressedMemory
from simgpu.graph.transforms import uncompressed
from simgpu.hardware.spec import BuddyMode, Duplex, Granularity, MetadataCacheSpec, NodeSpec
from simgpu.simulation.tasks import task_graph
from simgpu.trace.chain import chain
from simgpu.trace.model import Access, AccessOrder, BlockKind, CompressedSize, Kernel, Trace
from tests.compression.buddy.compressible import (
    ENDLESS,
    all_of,
    buddy_node,
    buddy_nodes,
    buddy_of,
    compressible,
    entries,
    memory_of,
    rows,
    with_histograms,
    without_buddy,
)
from tests.compression.buddy.plain_memory import SIZES, Bytes, added, entries_of, lies, walked
from tests.semantics.hand_made import GB, block, held, kernel, trace
from tests.semantics.random_traces import traces

many = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def counted(trace: Trace, block_id: str, epoch: int = 0) -> tuple[int, ...] | None:
    """The entries of a block by size, at its last recorded epoch up to `epoch`, or its first."""
    known = {row.epoch for row in trace.compressibility if row.block == block_id}
    if not known:
        return None
    chosen = max((each for each in known if each <= epoch), default=min(known))
    here = [row for row in trace.compressibility if row.block == block_id and row.epoch == chosen]
    return tuple(sum(row.entries for row in here if row.bytes == size) for size in SIZES)


def sizes_in(trace: Trace, block_id: str, size: int, epoch: int = 0) -> list[int]:
    """The size of every entry of a block; unknown entries do not compress."""
    counts = counted(trace, block_id, epoch)
    return [128] * entries(size) if counts is None else entries_of(counts)


# --- bytes of memory ----------------------------------------------------------------------------------------------


@many
@given(st.data(), st.sampled_from([0, 1, 5]))
def test_device_and_buddy_bytes_add_up_to_the_stored_entries(data: st.DataObject, epoch: int):
    created = data.draw(compressible(traces()))
    graph = task_graph(created, data.draw(buddy_nodes()), epoch)
    memory = memory_of(graph)
    for b, each in enumerate(created.blocks):
        target = memory.targets[b]
        assert target in (128, 96, 64, 32, 8)
        if target == 128:
            assert (graph.sizes[b], memory.carved[b], memory.overflow[b]) == (each.bytes, 0, 0)
            continue
        result = sizes_in(created, each.id, each.bytes, epoch)
        assert graph.sizes[b] == sum(target for _ in result)
        assert graph.sizes[b] + memory.carved[b] == 128 * len(result) >= each.bytes
        assert memory.overflow[b] == sum(lies(size, target)[1] for size in result) <= memory.carved[b]


@pytest.mark.parametrize(
    ("counts", "target"),
    [
        ((0, 0, 0, 0, 0, 0, 0, 10), 128),
        ((0, 0, 0, 0, 0, 6, 1, 3), 96),
        ((0, 0, 0, 2, 5, 0, 0, 3), 64),
        ((0, 1, 1, 5, 0, 1, 1, 1), 32),
        ((7, 1, 0, 0, 0, 1, 1, 0), 8),
    ],
)
def test_an_allocation_gets_the_smallest_target_with_acceptable_overflow(counts: tuple[int, ...], target: int):
    """Threshold 30%: three of these ten entries may be larger. Uncompressed data keep the total ratio below 4."""
    created = with_histograms(
        trace([kernel("k", 9, "x raw", "y")], [held("x", 1280), held("raw", 9600), block("y", 4)]),
        {"x": counts, "raw": (0,) * 7 + (75,)},
    )
    graph = task_graph(created, buddy_node())
    assert memory_of(graph).targets == (target, 128, 128)
    assert graph.sizes == (10 * target, 9600, 4)
    assert memory_of(graph).carved == (10 * (128 - target), 0, 0)


@many
@given(st.data())
def test_targets_consider_all_epochs_of_a_trace(data: st.DataObject):
    created = data.draw(compressible(traces()))
    node = data.draw(buddy_nodes(mode=BuddyMode.CAPACITY))
    buddy = buddy_of(node)
    expected = choose_targets(
        trace_allocations(created),
        threshold=buddy.threshold,
        granularity=buddy.granularity.value,
        mostly_zero=buddy.mostly_zero,
        largest_ratio=4,
    )
    smaller = [
        target if entries(b.bytes) * target < b.bytes else 128
        for b, target in zip(created.blocks, expected, strict=True)
    ]
    for epoch in (0, 3):
        assert list(memory_of(task_graph(created, node, epoch)).targets) == smaller


def test_no_compressed_block_is_larger_than_its_bytes():
    """A scalar is smaller than the smallest part of an entry."""
    created = all_of(8, trace([kernel("k", 9, "s t", "")], [held("s", 4), held("t", 130)]))
    assert task_graph(created, buddy_node(mostly_zero=False)).sizes == (4, 64)
    assert task_graph(created, buddy_node(mostly_zero=False, threshold=0.0)).sizes == (4, 64)


@many
@given(st.data(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_threshold_never_takes_more_device_memory(data: st.DataObject, one: float, other: float):
    """Without the zero case, which the cap on the program's ratio may move from one allocation to another."""
    created = data.draw(compressible(traces()))
    nodes = [buddy_node(threshold=each, mostly_zero=False) for each in sorted((one, other))]
    taken = [sum(task_graph(created, each).sizes) for each in (without_buddy(nodes[0]), *nodes)]
    assert taken == sorted(taken, reverse=True)


@many
@given(st.data())
def test_incompressible_tasks_equal_tasks_without_compressed_memory(data: st.DataObject):
    created = data.draw(traces())
    node = data.draw(buddy_nodes(threshold=0.0))
    for same in (created, all_of(128, created)):
        graph, plain = task_graph(same, node), task_graph(same, without_buddy(node))
        assert graph.durations == plain.durations
        assert graph.sizes == plain.sizes
        assert not memory_of(graph).uses_link and memory_of(graph).accesses == 0
        assert uncompressed(graph).durations == plain.durations


def test_blocks_without_sizes_overflow_under_a_single_target():
    """A single target applies to them too; their entries do not compress to it."""
    created = with_histograms(
        trace([kernel("k", 10**6, "known unknown", "")], [held("known", 128 * 90), held("unknown", 1280)]),
        {"known": (0, 0, 0, 90, 0, 0, 0, 0)},
    )
    graph = task_graph(created, buddy_node(granularity=Granularity.PROGRAM, mostly_zero=False))
    memory = memory_of(graph)
    assert memory.targets == (64, 64)
    assert memory.overflow == (0, 640)
    assert memory.demands[0].read == 640


# --- time of kernels ----------------------------------------------------------------------------------------------


def half_duplex_ns(read: Fraction, written: Fraction, both: int) -> int:
    """Nanoseconds until both have passed a half-duplex link, counted one by one; together each has half the rate."""
    left = [read * GB, written * GB]
    passed = 0
    while moving := [way for way in (0, 1) if left[way] > 0]:
        for way in moving:
            left[way] -= both // len(moving)
        passed += 1
    return passed


def expected_ns(built: Trace, node: NodeSpec, memory: CompressedMemory, k: Kernel, epoch: int) -> tuple[int, int]:
    """Device time and link time, counted entry by entry; metadata always hit their cache."""
    buddy = buddy_of(node)
    in_transfer = buddy.mode is BuddyMode.BANDWIDTH_ONLY
    blocks_with_sizes = {(a.block, a.write): a for a in built.accesses if a.kernel == k.id}
    blocks = {b.id: (n, b) for n, b in enumerate(built.blocks) if b.kind is not BlockKind.WORKSPACE and b.bytes}
    touched = [(name, write) for write, names in ((False, k.reads), (True, k.writes)) for name in names]
    touched = [each for each in touched if each[0] in blocks]
    once = 128 * sum(entries(blocks[name][1].bytes) for name, _ in touched)
    traffic = sum(blocks[name][1].bytes for name, _ in touched) if k.dram_bytes is None else k.dram_bytes
    parts = []
    for name, write in touched:
        number, each = blocks[name]
        access = blocks_with_sizes.get((name, write)) or Access(
            k.id, name, write, AccessOrder.SEQUENTIAL, 4, entries(each.bytes)
        )
        accesses = access.entries if blocks_with_sizes else access.entries * traffic // once
        result = walked(
            sizes_in(built, name, each.bytes, epoch),
            memory.targets[number],
            accesses,
            access.sectors,
            write=write,
            alone=access.order is not AccessOrder.SEQUENTIAL,
            in_transfer=in_transfer,
        )
        parts.append(Bytes(*map(Fraction, result.rounded_up())))
    moved = added(parts)
    dram = node.gpu.dram_bandwidth or 0
    without = max(ceil(moved.requested * GB / dram), ceil(moved.requested * buddy.memory_latency_ns / buddy.in_flight))
    link = buddy.link or node.link
    waits = moved.requested * buddy.memory_latency_ns
    waits += moved.decompressed * buddy.decompression_ns + moved.far * link.latency_ns
    with_it = max(ceil(moved.device * GB / dram), ceil(waits / buddy.in_flight))
    share = min(without, k.duration_ns)
    device = k.duration_ns - share + ceil(Fraction(with_it * share, without)) if share else k.duration_ns
    if not (moved.read or moved.written):
        return device, device
    if link.duplex is Duplex.HALF:
        passing = half_duplex_ns(moved.read, moved.written, max(link.d2h_bandwidth, link.h2d_bandwidth))
    else:
        passing = max(ceil(moved.read * GB / link.h2d_bandwidth), ceil(moved.written * GB / link.d2h_bandwidth))
    head = device - device * round(buddy.overlap * 10**6) // 10**6
    return device, max(device, head + passing)


@many
@given(st.data(), st.sampled_from([0, 1, 5]))
def test_kernel_durations_equal_a_count_visit_by_visit(data: st.DataObject, epoch: int):
    created = data.draw(compressible(traces()))
    known_bytes = data.draw(st.lists(st.none() | st.integers(0, 5000), min_size=10, max_size=10))
    kernels = [replace(k, dram_bytes=known_bytes[n]) for n, k in enumerate(created.kernels)]
    created = replace(created, kernels=tuple(kernels))
    node = data.draw(buddy_nodes(cache=ENDLESS))
    graph = task_graph(created, node, epoch)
    memory = memory_of(graph)
    assert memory.misses == 0
    for n, k in enumerate(created.kernels):
        assert (memory.device_ns[n], graph.durations[n]) == expected_ns(created, node, memory, k, epoch)


def test_metadata_cache_misses_cost_memory_bandwidth():
    """Two blocks of a line each in a cache of one line: every access misses, and changed lines are written back."""
    one_line = MetadataCacheSpec(32, slices=1, ways=1, line=32, entries=64)
    created = with_histograms(
        trace([kernel("k", 10**6, "x", "y")], [held("x", 128 * 60), block("y", 128 * 60)]),
        {"x": (0, 0, 0, 0, 60, 0, 0, 0), "y": (0, 0, 0, 0, 60, 0, 0, 0)},
    )
    always, never = (task_graph(created, buddy_node(cache=cache)) for cache in (ENDLESS, one_line))
    memory = memory_of(never)
    assert (memory_of(always).misses, memory.accesses, memory.misses) == (0, 120, 2)
    # Two lines read and one written, of 32 bytes at 10 bytes a nanosecond, next to 2 x 60 x 64 bytes of data.
    assert memory_of(always).demands[0].compressed_ns == 768
    assert memory.demands[0].compressed_ns == ceil(Fraction(2 * 60 * 64 + 3 * 32, 10))


def test_uncompressed_blocks_have_no_metadata():
    created = with_histograms(
        trace([kernel("k", 10**6, "x", "y")], [held("x", 128 * 60), block("y", 128 * 60)]),
        {"x": (0, 0, 0, 0, 60, 0, 0, 0), "y": (0, 0, 0, 0, 0, 0, 0, 60)},
    )
    assert memory_of(task_graph(created, buddy_node())).accesses == 60
    assert memory_of(task_graph(created, buddy_node(mode=BuddyMode.BANDWIDTH_ONLY))).accesses == 0


def test_workspaces_have_the_given_target_and_no_walks():
    created = with_histograms(
        trace(
            [kernel("k", 100, "x", "y ws")],
            [held("x", 1280), block("y", 1280), block("ws", 1280, kind=BlockKind.WORKSPACE)],
        ),
        {"ws": (10, 0, 0, 0, 0, 0, 0, 0)},
    )
    graph = task_graph(created, buddy_node(mostly_zero=False))
    assert graph.sizes == (1280, 1280, 320)
    assert graph.durations == (100,)


@pytest.mark.parametrize("overlap", [0.0, 0.25, 1.0])
def test_overlapped_link_bytes_cost_no_time(overlap: float):
    """2560 B at half: 1280 from memory (128 ns at 10 B/ns), 1280 over the link (1280 ns), of 1000 ns in all."""
    created = with_histograms(trace([kernel("k", 1000, "x", "")], [held("x", 2560)]), {"x": (0, 0, 0, 0, 14, 0, 0, 6)})
    graph = task_graph(created, buddy_node(overlap=overlap))
    memory = memory_of(graph)
    assert memory.targets == (64,)
    assert memory.demands[0][:4] == (256, 128, 6 * 64, 0)
    device = 1000 - 256 + 128
    assert memory.device_ns == (device,)
    assert graph.durations == (max(device, device - int(device * overlap) + 384),)


@many
@given(st.data(), st.floats(0, 1), st.floats(0, 1))
def test_more_overlap_never_makes_a_kernel_longer(data: st.DataObject, one: float, other: float):
    created = data.draw(compressible(traces()))
    node = data.draw(buddy_nodes())
    result = []
    for overlap in sorted((one, other)):
        buddy = replace(buddy_of(node), overlap=overlap)
        result.append(task_graph(created, replace(node, gpu=replace(node.gpu, buddy=buddy))).durations)
    assert all(less >= more for less, more in zip(*result, strict=True))


# --- signs of section 4.2 and modes ---------------------------------------------------------------------------------


def reading(sectors: int, order: AccessOrder, size: int = 64) -> Trace:
    """A kernel of 1000 ns, all of it memory, that reads entries of one size."""
    created = with_histograms(
        trace([kernel("k", 1000, "x", "")], [held("x", 128 * 100)]),
        {"x": [100 * (each == size) for each in SIZES]},
        [Access("k", "x", False, order, sectors, 1000 * 10 // (32 * sectors))],
    )
    return replace(created, kernels=(replace(created.kernels[0], dram_bytes=10_000),))


@pytest.mark.parametrize("mode", BuddyMode)
def test_sparse_random_reads_slow_down_and_dense_ones_speed_up(mode: BuddyMode):
    node = buddy_node(mode=mode)
    assert task_graph(reading(1, AccessOrder.RANDOM), node).ideal_ns() > 1900
    assert task_graph(reading(4, AccessOrder.SEQUENTIAL), node).ideal_ns() < 510


@many
@given(st.data())
def test_bandwidth_only_compression_saves_no_capacity_and_uses_no_link(data: st.DataObject):
    created = data.draw(compressible(traces()))
    node = data.draw(buddy_nodes(mode=BuddyMode.BANDWIDTH_ONLY))
    graph = task_graph(created, node)
    assert graph.sizes == tuple(each.bytes for each in created.blocks)
    assert not memory_of(graph).uses_link
    assert (memory_of(graph).accesses, sum(memory_of(graph).carved), sum(memory_of(graph).overflow)) == (0, 0, 0)


def test_the_decompression_latency_slows_latency_bound_kernels():
    """Lulesh: regular access, slowed by the latency (section 4.2). One entry in flight, each 100 ns away."""
    created = reading(4, AccessOrder.SEQUENTIAL)
    for wait, slower in ((0, 1.0), (11, 1.11), (100, 2.0)):
        node = buddy_node(decompression_ns=wait, memory_latency_ns=100, in_flight=128, mode=BuddyMode.BANDWIDTH_ONLY)
        assert task_graph(created, node).ideal_ns() == ceil(1000 * slower)


# --- applying it again, and mistakes ----------------------------------------------------------------------------------


@many
@given(st.data())
def test_applying_compression_again_changes_nothing(data: st.DataObject):
    graph = task_graph(data.draw(compressible(traces())), data.draw(buddy_nodes()))
    assert graph.compression is not None
    again = graph.compression.apply(graph)
    assert (again.sizes, again.durations) == (graph.sizes, graph.durations)
    assert memory_of(again).demands == memory_of(graph).demands


def wrong(compressed_sizes: Sequence[CompressedSize]) -> list[str]:
    created = replace(chain([5], [7], [256]), compressibility=tuple(compressed_sizes))
    with pytest.raises(InputError) as caught:
        task_graph(created, buddy_node())
    assert all(problem.place and problem.remedy for problem in caught.value.problems)
    return [f"{problem.place}: {problem.what}" for problem in caught.value.problems]


def test_histograms_with_wrong_sums_are_reported_together():
    result = rows("x1", (0, 0, 0, 3, 0, 0, 0, 0)) + rows("x1", (0, 0, 0, 0, 1, 0, 0, 0), epoch=2)
    assert wrong(result) == [
        "block x1, epoch 0: counts 3 entries, its 256 bytes have 2",
        "block x1, epoch 2: counts 1 entries, its 256 bytes have 2",
    ]


def test_impossible_entry_sizes_are_reported_together():
    result = [CompressedSize("x1", epoch, "bpc", "plain", 128, size, 2) for epoch, size in ((0, 24), (1, 65))]
    assert wrong(result) == [
        "block x1, epoch 0: 24 bytes is not an entry size of bpc",
        "block x1, epoch 1: 65 bytes is not an entry size of bpc",
    ]


def test_rows_of_other_codecs_are_not_entry_histograms():
    created = replace(chain([5], [7], [256]), compressibility=(CompressedSize("x1", 0, "zvc", "plain", 256, 100, 1),))
    assert task_graph(created, buddy_node()).sizes == task_graph(created, without_buddy(buddy_node())).sizes
