"""The rules of Buddy Compression's design (Choukse et al., ISCA 2020), checked against independent derivations."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, log2

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest import MonkeyPatch

from simgpu.compression.buddy.metadata_cache import CacheCounts, MetadataCache, sets_of
from simgpu.compression.buddy.streams import EntryAccesses
from simgpu.compression.buddy.targets import (
    LARGEST_RATIO,
    THRESHOLD,
    ProfiledAllocation,
    choose_targets,
    compression_ratio,
)
from simgpu.compression.buddy.traffic import Moved, demand_of, moved_by
from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES, SECTOR_BYTES, size_classes
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import BuddySpec, NodeSpec
from simgpu.program.paging import GROUP
from simgpu.trace.model import AccessOrder
from tests.papers.rules import fails

#: The node of the paper's table 2, and the frequency of its memory, with which cycles are counted.
NODE, DRAM_MHZ = "buddy-gpu", 875
#: Random programs that a rule is tried on.
TRIED = 400
#: Device bytes of an entry: four, three, two or one sector, or 8 bytes.
TARGETS = (128, 96, 64, 32, 8)


def _node() -> tuple[NodeSpec, BuddySpec]:
    node = load_node(NODE)
    assert node.gpu.buddy is not None
    return node, node.gpu.buddy


@pytest.mark.rule
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", ENTRY_SIZES)
def test_an_entry_is_split_into_device_and_buddy_sectors(size: int, target: int) -> None:
    """Figure 4: which bytes a sequential pass over compressed entries reads from device and from buddy memory."""
    assert (ENTRY_BYTES, SECTOR_BYTES) == (128, 32)
    assert entries_read(size, target) == figure_4(size, target)


@pytest.mark.rule
def test_targets_are_four_sector_counts_and_a_sixteenth() -> None:
    chosen = {target for program in random_programs() for target in choose_targets(program)}
    assert chosen == set(TARGETS)


@pytest.mark.rule
def test_every_entry_takes_the_smallest_size_that_holds_its_bit_plane_code() -> None:
    words = random_words()
    expected = [size_of_code(row) for row in words.reshape(-1, 32).tolist()]
    assert [ENTRY_SIZES[each] for each in size_classes(words)] == expected


def entries_read(size: int, target: int) -> tuple[int, int]:
    """Device and buddy bytes of a sequential read of 64 entries of one size, at a target of device bytes each."""
    counts = [64 if each == size else 0 for each in ENTRY_SIZES]
    moved = moved_by(EntryAccesses(0, 64, False, AccessOrder.SEQUENTIAL, 4, accesses=64), counts, target)
    return moved.device, moved.read


def figure_4(size: int, target: int) -> tuple[int, int]:
    """The same as the paper draws it."""
    stored = size if size == 128 else 32 * ceil(size / 32)
    if target == 128:
        device, buddy = 128, 0
    elif target == 8:
        # What 8 bytes do not hold is stored in whole sectors of buddy memory; an incompressible entry is stored as is.
        device = min(stored, 8)
        buddy = 120 if size == 128 else 32 * ceil(max(size - 8, 0) / 32)
    else:
        device = min(stored, target)
        buddy = stored - device
    return 64 * device, 64 * buddy


def random_words() -> NDArray[np.int32]:
    """Entries of several kinds of numbers."""
    draw = np.random.default_rng(3)
    return np.concatenate(
        [
            draw.standard_normal(1280).astype("<f4").view("<i4"),
            (np.maximum(draw.standard_normal(1280), 0) * (draw.random(1280) < 0.2)).astype("<f4").view("<i4"),
            draw.integers(-50, 50, 1280, np.int32),
            np.cumsum(draw.integers(0, 3, 1280, np.int32)),
            np.zeros(128, np.int32),
        ]
    ).astype("<i4")


def size_of_code(row: Sequence[int]) -> int:
    """Bytes of the entry that holds the bit-plane code of 32 words."""
    return next((size for size in ENTRY_SIZES if 8 * size >= code_bits(row)), 128) if any(row) else 0


def code_bits(words: Sequence[int]) -> int:
    """Length of the bit-plane code of an entry, 32 signed words, counted plane by plane (Kim et al., ISCA 2016).

    >>> code_bits([0] * 32), code_bits([5] * 32), code_bits([0, 1] * 16)
    (10, 14, 74)
    """
    first = abs(words[0] + (words[0] < 0))
    bits = 3 if words[0] == 0 else next((4 + n - 1 for n in (4, 8, 16) if first < 1 << (n - 1)), 33)
    steps = [(later - earlier) & ((1 << 33) - 1) for earlier, later in pairwise(words)]
    planes = [sum((step >> place & 1) << at for at, step in enumerate(steps)) for place in range(32, -1, -1)]
    zeros = 0
    for before, plane in pairwise([0, *planes, None]):
        change = None if plane is None else plane ^ (before or 0)
        if change == 0:
            zeros += 1
            continue
        bits += 0 if not zeros else 3 if zeros == 1 else 7
        zeros = 0
        if change is not None:
            bits += _change_bits(change, plane == 0)
    return bits


def _change_bits(change: int, of_zeros: bool) -> int:
    if change == 2**31 - 1 or of_zeros:
        return 5
    ones = change.bit_count()
    return 10 if ones == 1 or (ones == 2 and change & change >> 1) else 32


@pytest.mark.rule
def test_metadata_are_4_bits_an_entry() -> None:
    node, _ = _node()
    assert Fraction(8 * node.gpu.reserved * ENTRY_BYTES, node.gpu.memory) == 4


@pytest.mark.rule
def test_a_page_table_entry_needs_24_more_bits() -> None:
    """Whether a page is compressed, at which of five targets, and its buddy page's place in the carve-out.

    Page tables are not simulated; these are the bits for pages of 64 KiB, which Unified Memory moves at least.
    """
    node, buddy = _node()
    pages = buddy.carve_out * node.gpu.memory // GROUP
    assert 1 + ceil(log2(5)) + ceil(log2(pages)) == 24


@pytest.mark.rule
def test_a_metadata_cache_line_of_32_bytes_covers_64_entries() -> None:
    """One miss in 64 neighbouring entries, whichever comes first."""
    _, buddy = _node()
    assert buddy.cache.line == 32
    for first in range(64):
        cache = MetadataCache(buddy.cache)
        neighbours = np.roll(np.arange(640, 704), -first)
        assert cache.access_entries(neighbours, np.zeros(64, bool)).misses == 1
        assert cache.access_entries(np.array([639, 704]), np.zeros(2, bool)).misses == 2


@pytest.mark.rule
def test_the_metadata_cache_has_four_ways_and_lru_eviction() -> None:
    _, buddy = _node()
    lines = np.arange(2**16)
    sets = sets_of(lines, buddy.cache)
    for number in range(0, buddy.cache.slices * buddy.cache.sets, 37):
        a, b, c, d, e = lines[sets == number][:5].tolist()
        cache = MetadataCache(buddy.cache)
        accesses = [a, b, c, d, a, b, c, d, e, b, a]
        misses = [cache.access(np.array([line]), np.zeros(1, bool)).misses for line in accesses]
        # Four lines fit; e evicts a, then a evicts c.
        assert misses == [1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1]


@pytest.mark.rule
def test_the_metadata_cache_has_4_kib_in_each_of_32_slices() -> None:
    _, buddy = _node()
    lines = 32 * 4096 // 32
    cache = MetadataCache(buddy.cache)
    assert [cache.access(np.arange(lines), np.zeros(lines, bool)).misses for _ in range(2)] == [lines, 0]
    one_more = np.tile(np.arange(lines + 1), 2)
    assert MetadataCache(buddy.cache).access(one_more, np.zeros(2 * lines + 2, bool)).misses > lines + 1
    drawn = np.random.default_rng(5).integers(0, 3 * lines, 20_000)
    misses = MetadataCache(buddy.cache).access(drawn, np.zeros(drawn.size, bool)).misses
    assert misses == misses_of_plain_sets(drawn.tolist(), sets_of(drawn, buddy.cache).tolist())


def misses_of_plain_sets(lines: Sequence[int], numbers: Sequence[int]) -> int:
    """Misses of accesses to lines, by the number of their set, in sets of four with LRU eviction."""
    sets: dict[int, OrderedDict[int, None]] = {}
    misses = 0
    for line, number in zip(lines, numbers, strict=True):
        resident = sets.setdefault(number, OrderedDict())
        misses += line not in resident
        resident[line] = None
        resident.move_to_end(line)
        if len(resident) > 4:
            resident.popitem(last=False)
    return misses


@pytest.mark.rule
def test_the_carve_out_is_three_times_the_device_memory() -> None:
    _, buddy = _node()
    assert buddy.carve_out == 3
    assert buddy.carve_out + 1 == LARGEST_RATIO


@pytest.mark.rule
def test_targets_keep_a_programs_ratio_within_4() -> None:
    for program in random_programs():
        targets = choose_targets(program)
        assert compression_ratio(program, targets) <= 4
        assert _buddy_over_device(program, targets) <= 3


@pytest.mark.rule
@pytest.mark.parametrize("zeros", range(1, 20))
@pytest.mark.parametrize("dense", range(4))
def test_the_overall_ratio_of_4_limits_the_allocations_at_16x(dense: int, zeros: int) -> None:
    assert _zeros_small(dense, zeros) == min(zeros, 4 * dense)


def _buddy_over_device(program: Sequence[ProfiledAllocation], targets: Sequence[int]) -> float:
    pairs = list(zip(program, targets, strict=True))
    return sum(each.entries * (128 - target) for each, target in pairs) / sum(each.entries * t for each, t in pairs)


def _zeros_small(dense: int, zeros: int) -> int:
    """How many of equal allocations, some dense and some zeros, get 8 bytes of an entry."""
    full, empty = (0,) * 7 + (10,), (10, *(0,) * 7)
    program = [ProfiledAllocation(f"dense{n}", 1280, (full,)) for n in range(dense)]
    program += [ProfiledAllocation(f"zeros{n}", 1280, (empty,)) for n in range(zeros)]
    return choose_targets(program).count(8)


@pytest.mark.rule
def test_by_default_30_percent_of_an_allocations_entries_may_overflow() -> None:
    assert [over for over in range(1001) if _target_of_overflow(over) == 32] == list(range(301))


@pytest.mark.rule
def test_every_allocation_has_the_smallest_target_within_the_threshold() -> None:
    _, buddy = _node()
    assert buddy.threshold == THRESHOLD
    for program in random_programs():
        for allocation in program:
            chosen = choose_targets([allocation], mostly_zero=False, threshold=buddy.threshold)
            assert chosen == (_smallest_target(allocation),)


def _target_of_overflow(over: int) -> int:
    counts = (0, 0, 0, 1000 - over, 0, 0, 0, over)
    return choose_targets([ProfiledAllocation("a", 128_000, (counts,))], mostly_zero=False)[0]


def _smallest_target(allocation: ProfiledAllocation) -> int:
    """By trying each target on every entry of every snapshot."""
    sizes = [
        size for counts in allocation.snapshots for size, n in zip(ENTRY_SIZES, counts, strict=True) for _ in range(n)
    ]
    return min(t for t in (32, 64, 96, 128) if 10 * sum(size > t for size in sizes) <= 3 * len(sizes))


@pytest.mark.rule
def test_decompression_adds_11_memory_cycles_to_a_read() -> None:
    assert cycles_added() == 11


def cycles_added() -> int:
    """Whole cycles of device memory that the read of one compressed entry takes longer."""
    node, buddy = _node()
    longer = _longer(node, buddy, Moved(128, 128, decompressed=128))
    return max(count for count in range(100) if ceil(count * 1000 / DRAM_MHZ) <= longer)


@pytest.mark.rule
def test_only_reads_of_compressed_entries_wait_for_decompression() -> None:
    read, write = (EntryAccesses(0, 64, writes, AccessOrder.SEQUENTIAL, 4, accesses=64) for writes in (False, True))
    compressed, incompressible = (0, 0, 0, 64, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0, 0, 64)
    assert moved_by(read, compressed, 64).decompressed == 64 * 128
    assert moved_by(read, incompressible, 64).decompressed == 0
    assert moved_by(write, compressed, 64).decompressed == 0


def _longer(node: NodeSpec, buddy: BuddySpec, moved: Moved) -> int:
    """Nanoseconds that one access takes longer than one without compression, with one entry in flight at a time."""
    alone = replace(buddy, in_flight=ENTRY_BYTES)
    demand = demand_of(moved, 1, 0, 0, alone, node.link, node.gpu.dram_bandwidth or 1)
    return demand.compressed_ns - demand.memory_ns


def random_programs() -> Iterator[list[ProfiledAllocation]]:
    """Random programs of one to eight allocations, of which some are mostly zero and some hardly compress."""
    draw = np.random.default_rng(4)
    for _ in range(TRIED):
        program = []
        for number in range(draw.integers(1, 9)):
            entries = int(draw.integers(1, 200))
            shares = draw.dirichlet(draw.choice([0.05, 0.3, 2.0]) * np.ones(8))
            snapshots = [tuple(draw.multinomial(entries, shares).tolist()) for _ in range(draw.integers(1, 4))]
            program.append(ProfiledAllocation(f"a{number}", entries * 128, tuple(snapshots)))
        yield program


# --- the tests above fail where the design is another ---------------------------------------------------------


def changed(monkeypatch: MonkeyPatch, **values: object) -> None:
    """The paper's GPU with another compressed memory."""
    node, buddy = _node()
    other = replace(buddy, **values)  # type: ignore[arg-type]  # of several types
    monkeypatch.setattr(f"{__name__}._node", lambda: (replace(node, gpu=replace(node.gpu, buddy=other)), other))


def test_another_carve_out_breaks_its_rule(monkeypatch: MonkeyPatch) -> None:
    changed(monkeypatch, carve_out=5)
    assert fails(test_the_carve_out_is_three_times_the_device_memory)
    assert fails(test_a_page_table_entry_needs_24_more_bits)
    assert not fails(test_targets_keep_a_programs_ratio_within_4)


def test_targets_without_a_cap_break_it(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.choose_targets", lambda program: tuple(8 for _ in program))
    assert fails(test_targets_keep_a_programs_ratio_within_4)
    assert fails(test_the_overall_ratio_of_4_limits_the_allocations_at_16x, 1, 19)


def test_another_threshold_breaks_the_rule(monkeypatch: MonkeyPatch) -> None:
    changed(monkeypatch, threshold=0.2)
    assert fails(test_every_allocation_has_the_smallest_target_within_the_threshold)
    monkeypatch.setattr(f"{__name__}._target_of_overflow", lambda over: 32 if over <= 250 else 128)
    assert fails(test_by_default_30_percent_of_an_allocations_entries_may_overflow)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"entries": 32}, test_a_metadata_cache_line_of_32_bytes_covers_64_entries),
        ({"ways": 2}, test_the_metadata_cache_has_four_ways_and_lru_eviction),
        ({"ways": 8}, test_the_metadata_cache_has_four_ways_and_lru_eviction),
        ({"size": 2048}, test_the_metadata_cache_has_4_kib_in_each_of_32_slices),
        ({"size": 8192}, test_the_metadata_cache_has_4_kib_in_each_of_32_slices),
    ],
)
def test_another_metadata_cache_breaks_its_rule(
    monkeypatch: MonkeyPatch, values: dict[str, int], rule: Callable[[], None]
) -> None:
    _, buddy = _node()
    changed(monkeypatch, cache=replace(buddy.cache, **values))
    assert fails(rule)


def test_a_metadata_cache_that_always_hits_breaks_the_rule_of_its_size(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataCache, "access", lambda self, lines, writes: CacheCounts(0, lines.size, 0))
    assert fails(test_the_metadata_cache_has_4_kib_in_each_of_32_slices)


@pytest.mark.parametrize(("decompression", "cycles"), [(0, 0), (12, 10), (13, 11), (14, 12)])
def test_cycles_are_those_that_a_read_takes_longer(monkeypatch: MonkeyPatch, decompression: int, cycles: int) -> None:
    """At 875 MHz eleven cycles are 12.6 ns, and twelve 13.7."""
    changed(monkeypatch, decompression_ns=decompression)
    assert cycles_added() == cycles


def test_bytes_of_the_wrong_memory_break_the_rule_of_entries(monkeypatch: MonkeyPatch) -> None:
    right = moved_by
    monkeypatch.setattr(f"{__name__}.moved_by", lambda *given: right(*given)._replace(read=0))
    assert fails(test_an_entry_is_split_into_device_and_buddy_sectors, 128, 64)


def test_an_entry_in_too_small_a_size_breaks_the_rule_of_codes(monkeypatch: MonkeyPatch) -> None:
    right = size_classes
    monkeypatch.setattr(f"{__name__}.size_classes", lambda words: right(words).clip(max=6))
    assert fails(test_every_entry_takes_the_smallest_size_that_holds_its_bit_plane_code)


@pytest.mark.parametrize(
    ("words", "bits"),
    [
        ([0] * 32, 3 + 7),
        ([1] * 32, 7 + 7),
        ([-8] * 32, 7 + 7),
        ([-9] * 32, 11 + 7),
        ([2**15] * 32, 33 + 7),
        # A single step: of the plane of 1 a single one, and 32 planes that are zero.
        ([0] * 31 + [1], 3 + 7 + 10),
        # Every step is 1: the lowest plane is all ones.
        (list(range(32)), 3 + 7 + 5),
    ],
)
def test_lengths_of_codes(words: list[int], bits: int) -> None:
    assert code_bits(words) == bits


def test_the_smallest_target_counts_entries_one_by_one() -> None:
    def allocation(*sizes: int) -> ProfiledAllocation:
        return ProfiledAllocation("a", 128 * len(sizes), (tuple(sizes.count(size) for size in ENTRY_SIZES),))

    assert _smallest_target(allocation(*[32] * 7, *[128] * 3)) == 32
    assert _smallest_target(allocation(*[32] * 6, 64, *[128] * 3)) == 64
    assert _smallest_target(allocation(*[0] * 6, *[128] * 4)) == 128
