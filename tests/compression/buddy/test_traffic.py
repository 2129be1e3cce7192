"""Traffic of kernels in compressed memory, compared with plain counts, closed forms, and the signs in the paper."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.compression.buddy.streams import EntryAccesses
from simgpu.compression.buddy.traffic import Moved, demand_of, link_ns, moved_by, over_link
from simgpu.graph.compressed import Demand
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import BuddyMode, BuddySpec, Duplex, LinkSpec
from simgpu.machine.flows import FlowNetwork
from simgpu.trace.model import AccessOrder
from tests.compression.buddy.caches import PAPERS
from tests.compression.buddy.plain_memory import SIZES, entries_of, lies, walked

GB = 10**9
CAPACITY, IN_TRANSFER = BuddyMode
SEQUENTIAL, STRIDED, RANDOM = AccessOrder
TARGETS = (128, 96, 64, 32, 8)
SHRINKING = TARGETS[1:]

histograms = st.lists(st.integers(0, 12), min_size=8, max_size=8).filter(any)
orders = st.sampled_from(AccessOrder)
many = settings(deadline=None, max_examples=100)


def walk(
    entries: int, accesses: int, *, write: bool = False, order: AccessOrder = SEQUENTIAL, sectors: int = 4
) -> EntryAccesses:
    return EntryAccesses(0, entries, write, order, sectors, accesses)


def only(size: int, count: int = 1) -> tuple[int, ...]:
    """A histogram of entries of one size."""
    return tuple(count if each == size else 0 for each in SIZES)


# --- bytes ------------------------------------------------------------------------------------------------------


@many
@given(histograms, st.sampled_from(TARGETS), st.integers(0, 300), st.integers(1, 4), orders, st.booleans())
def test_bytes_of_a_walk_equal_a_count_visit_by_visit(
    counts: list[int], target: int, accesses: int, sectors: int, order: AccessOrder, write: bool
):
    result = moved_by(walk(sum(counts), accesses, write=write, order=order, sectors=sectors), counts, target)
    alone = order is not SEQUENTIAL
    expected = walked(entries_of(counts), target, accesses, sectors, write=write, alone=alone)
    assert result == expected.rounded_up()


@many
@given(histograms, st.integers(0, 300), st.integers(1, 4), orders, st.booleans())
def test_bytes_of_compressed_transfers_equal_a_count_visit_by_visit(
    counts: list[int], accesses: int, sectors: int, order: AccessOrder, write: bool
):
    steps = walk(sum(counts), accesses, write=write, order=order, sectors=sectors)
    result = moved_by(steps, counts, 128, IN_TRANSFER)
    expected = walked(entries_of(counts), 128, accesses, sectors, write=write, alone=False, in_transfer=True)
    assert result == expected.rounded_up()


@given(histograms, st.sampled_from(SHRINKING), st.integers(1, 3))
def test_reading_a_complete_block_reads_its_stored_bytes(counts: list[int], target: int, passes: int):
    entries = sum(counts)
    result = moved_by(walk(entries, passes * entries), counts, target)
    retained = [lies(size, target) for size in entries_of(counts)]
    assert result.device == passes * sum(near for near, _ in retained)
    assert result.read == passes * sum(far for _, far in retained)
    assert result.far == passes * sum(128 * (far > 0) for _, far in retained)
    assert result.decompressed == passes * sum(128 * (0 < size < 128) for size in entries_of(counts))


@given(histograms, st.sampled_from(SHRINKING), st.integers(0, 300), orders)
def test_writing_a_complete_block_moves_as_many_bytes_as_reading_it(
    counts: list[int], target: int, accesses: int, order: AccessOrder
):
    entries = sum(counts)
    there = moved_by(walk(entries, accesses, order=order), counts, target)
    back = moved_by(walk(entries, accesses, order=order, write=True), counts, target)
    assert (back.device, back.written, back.read) == (there.device, there.read, 0)
    assert back.decompressed == back.far == 0, "nobody waits for a write"


@given(histograms, st.integers(0, 300), st.integers(1, 4), orders, st.booleans())
def test_entries_of_unknown_size_are_incompressible(
    counts: list[int], accesses: int, sectors: int, order: AccessOrder, write: bool
):
    entries = sum(counts)
    steps = walk(entries, accesses, write=write, order=order, sectors=sectors)
    for target in TARGETS:
        assert moved_by(steps, None, target) == moved_by(steps, only(128, entries), target)
    assert moved_by(steps, None, 128, IN_TRANSFER) == moved_by(steps, only(128, entries), 128, IN_TRANSFER)


@given(histograms, st.integers(0, 300), st.integers(1, 4), orders, st.booleans())
def test_uncompressed_memory_moves_the_requested_bytes(
    counts: list[int], accesses: int, sectors: int, order: AccessOrder, write: bool
):
    result = moved_by(walk(sum(counts), accesses, write=write, order=order, sectors=sectors), counts, 128)
    assert result == Moved(32 * sectors * accesses, 32 * sectors * accesses)


@given(histograms, st.integers(0, 300), st.integers(1, 4), st.booleans())
def test_more_device_memory_never_increases_link_traffic(counts: list[int], accesses: int, sectors: int, write: bool):
    steps = walk(sum(counts), accesses, write=write, sectors=sectors)
    far = [moved_by(steps, counts, target) for target in TARGETS]
    for more, less in pairwise(far):
        assert more.read <= less.read and more.written <= less.written and more.far <= less.far


@pytest.mark.parametrize(("target", "overflowing"), [(96, {128}), (64, {80, 96, 128}), (32, {64, 80, 96, 128})])
def test_an_entry_reads_buddy_memory_if_it_is_larger_than_its_target(target: int, overflowing: set[int]):
    """Figure 4: an entry that compresses to its target is read from device memory alone."""
    for size in SIZES:
        assert (moved_by(walk(1, 1), only(size), target).read > 0) is (size in overflowing)


def test_an_incompressible_entry_at_2x_is_half_in_device_and_half_in_buddy_memory():
    """Figure 4: the first two sectors in device memory, the last two in buddy memory."""
    assert moved_by(walk(1, 1), only(128), 64) == Moved(requested=128, device=64, read=64, far=128)
    assert moved_by(walk(1, 1, write=True), only(128), 64) == Moved(requested=128, device=64, written=64)


@pytest.mark.parametrize(
    ("target", "sectors", "chance"),
    [
        (96, 1, Fraction(1, 4)),
        (96, 2, Fraction(1, 2)),
        (96, 3, Fraction(3, 4)),
        (64, 1, Fraction(1, 2)),
        (64, 2, Fraction(5, 6)),
        (64, 3, Fraction(1)),
        (32, 1, Fraction(3, 4)),
        (32, 2, Fraction(1)),
        (8, 1, Fraction(1)),
    ],
)
def test_random_sectors_of_an_incompressible_entry_are_in_buddy_memory_by_probability(
    target: int, sectors: int, chance: Fraction
):
    """5 of the 6 pairs of sectors include one that is not among the first two."""
    result = moved_by(walk(1, 1200, order=RANDOM, sectors=sectors), only(128), target)
    assert result.far == 1200 * 32 * sectors * chance


def test_entries_at_16x_share_sectors_only_in_sequential_reads():
    """Four entries share a sector of 32 bytes."""
    assert moved_by(walk(64, 64), only(8, 64), 8).device == 64 * 8
    assert moved_by(walk(64, 64, order=RANDOM), only(8, 64), 8).device == 64 * 32
    assert moved_by(walk(64, 64, order=STRIDED), only(8, 64), 8).device == 64 * 32


def test_later_sectors_of_an_entry_at_16x_do_not_access_device_memory():
    """Of an incompressible entry only the first sector has a part there."""
    assert moved_by(walk(1, 400, order=RANDOM, sectors=1), only(128), 8).device == 100 * 32


def test_zero_entries_are_recognized_by_their_metadata():
    for target in SHRINKING:
        for write in (False, True):
            assert moved_by(walk(9, 9, write=write), only(0, 9), target) == Moved(requested=9 * 128)
    assert moved_by(walk(9, 9), only(0, 9), 128, IN_TRANSFER) == Moved(9 * 128, 9 * 32, decompressed=9 * 128)


# --- signs of section 4.2 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 16, 32, 64, 80, 96])
def test_over_fetch_makes_sparse_access_move_more_and_dense_access_less(size: int):
    """Section 4.2: a compressed entry is moved whole, a raw one sector by sector."""
    for mode, target in ((IN_TRANSFER, 128), (CAPACITY, 96)):
        sparse = moved_by(walk(100, 100, order=RANDOM, sectors=1), only(size, 100), target, mode)
        dense = moved_by(walk(100, 100), only(size, 100), target, mode)
        assert sparse.device >= sparse.requested
        assert (sparse.device > sparse.requested) is (size > 32)
        assert dense.device < dense.requested


def slowed(counts: tuple[int, ...], buddy: BuddySpec, sectors: int, target: int = 128, write: bool = False) -> float:
    """The slowdown of a kernel that only moves memory, with an unlimited link."""
    node = load_node("buddy-gpu")
    entries = sum(counts)
    order = SEQUENTIAL if sectors == 4 else RANDOM
    moved = moved_by(
        walk(entries, 100 * entries, order=order, sectors=sectors, write=write), counts, target, buddy.mode
    )
    link, dram = LinkSpec("free", 10**18, 10**18), node.gpu.dram_bandwidth or 0
    demand = demand_of(moved, moved.requested // (32 * sectors), 0, 0, buddy, link, dram)
    return demand.device_ns(demand.memory_ns) / demand.memory_ns


def papers(mode: BuddyMode) -> BuddySpec:
    buddy = load_node("buddy-gpu").gpu.buddy
    assert buddy is not None
    return replace(buddy, mode=mode)


def test_bandwidth_only_compression_slows_sparse_and_speeds_dense_access():
    """cg and ilbdc slow down, the networks speed up (section 4.2)."""
    compressible = only(64, 1000)
    assert slowed(compressible, papers(IN_TRANSFER), sectors=1) > 1.5
    assert slowed(compressible, papers(IN_TRANSFER), sectors=4) < 0.6
    assert slowed(compressible, papers(IN_TRANSFER), sectors=1, write=True) > 1.5


@pytest.mark.parametrize("sectors", [1, 2, 3, 4])
@pytest.mark.parametrize("write", [False, True])
def test_bandwidth_only_compression_has_no_effect_on_incompressible_data(sectors: int, write: bool):
    assert slowed(only(128, 1000), papers(IN_TRANSFER), sectors, write=write) == 1


# --- times ----------------------------------------------------------------------------------------------------


def spec(**changed: Any) -> BuddySpec:
    return replace(BuddySpec(None, 3, PAPERS, decompression_ns=13, memory_latency_ns=288, in_flight=458752), **changed)


def waited(moved: Moved, accesses: int, misses: int, buddy: BuddySpec, latency: int) -> int:
    """Little's law: bytes in flight = bandwidth x latency, so time = total latency / accesses in flight."""
    waits = Fraction(moved.requested * buddy.memory_latency_ns)
    waits += moved.decompressed * buddy.decompression_ns
    after = latency + (Fraction(misses, accesses) * buddy.memory_latency_ns if accesses else 0)
    waits += moved.far * after
    return ceil(waits / buddy.in_flight)


@many
@given(
    histograms,
    st.sampled_from(SHRINKING),
    st.integers(0, 300),
    st.integers(1, 4),
    orders,
    st.booleans(),
    st.tuples(st.integers(0, 30), st.integers(0, 300), st.integers(1, 10**6), st.integers(0, 400)),
    st.integers(1, 10**12),
    st.tuples(st.integers(0, 50), st.integers(0, 50)),
)
def test_memory_time_is_limited_by_bandwidth_or_latency(
    counts: list[int],
    target: int,
    accesses: int,
    sectors: int,
    order: AccessOrder,
    write: bool,
    times: tuple[int, int, int, int],
    dram: int,
    cache: tuple[int, int],
):
    decompression, memory, in_flight, far = times
    buddy = spec(decompression_ns=decompression, memory_latency_ns=memory, in_flight=in_flight)
    moved = moved_by(walk(sum(counts), accesses, write=write, order=order, sectors=sectors), counts, target)
    misses, back = min(cache[0], accesses), cache[1]
    link = LinkSpec("wire", 3 * GB, 7 * GB, far)
    result = demand_of(moved, accesses, misses, misses + back, buddy, link, dram)
    without = Moved(moved.requested, moved.requested)
    assert result.memory_ns == max(ceil(Fraction(moved.requested * GB, dram)), waited(without, 0, 0, buddy, 0))
    through = Fraction((moved.device + 32 * (misses + back)) * GB, dram)
    assert result.compressed_ns == max(ceil(through), waited(moved, accesses, misses, buddy, far))
    assert (result.read, result.written) == (moved.read, moved.written)
    assert result.link_ns == max(ceil(Fraction(moved.read, 7)), ceil(Fraction(moved.written, 3)))


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**12), st.integers(1, 10**12))
def test_a_single_kernel_gets_the_full_link_bandwidth(read: int, written: int, out: int, back: int):
    full = LinkSpec("wire", out, back)
    assert link_ns(read, written, full) == max(ceil(Fraction(read * GB, back)), ceil(Fraction(written * GB, out)))
    assert link_ns(read, written, replace(full, duplex=Duplex.HALF)) == as_flows(read, written, max(out, back))


def as_flows(read: int, written: int, capacity: int) -> int:
    """The end of the later of two flows that start together on one link."""
    env, ends = simpy.Environment(), [0]
    flows = FlowNetwork(env, {"link": capacity})
    for size in (read, written):
        if size:
            flows.send(("link",), size).callbacks.append(lambda _: ends.append(int(env.now)))
    env.run()
    return max(ends)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_only_the_memory_time_of_a_kernel_changes(memory: int, compressed: int, duration: int):
    result = Demand(memory, compressed, 0, 0, 0).device_ns(duration)
    share = min(memory, duration)
    expected = duration - share + (Fraction(share * compressed, memory) if memory else share)
    assert result == ceil(expected)
    assert Demand(memory, memory, 0, 0, 0).device_ns(duration) == duration


@given(st.integers(1, 10**5), st.integers(0, 10**5), st.integers(0, 10**5), st.integers(0, 10**5))
def test_more_metadata_misses_never_make_a_kernel_faster(moved: int, read: int, misses: int, more: int):
    """They slow palm and seismic (section 4.2)."""
    node = load_node("buddy-gpu")
    accesses = max(misses + more, 1)
    what = Moved(128 * moved, 64 * moved, read, 0, moved, min(read, accesses))
    times = [
        demand_of(what, accesses, each, each, spec(), node.link, 900 * GB).compressed_ns for each in (misses, accesses)
    ]
    assert times[0] <= times[1]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_two_of_three_flits_carry_data_and_requests_go_the_other_way(read: int, written: int):
    """NVLink: a header of 16 B with each sector of 32 B, and one the other way to ask for or to confirm it."""
    from_buddy, to_buddy = over_link(32 * read, 32 * written, header=16)
    assert (from_buddy, to_buddy) == (48 * read + 16 * written, 48 * written + 16 * read)
    assert over_link(32 * read, 32 * written, header=0) == (32 * read, 32 * written)
