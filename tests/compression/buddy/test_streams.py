"""Walks of kernels become metadata cache accesses, tile by tile, with the same counts as entry by entry."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import cycle, islice
from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simgpu.compression.buddy import streams
from simgpu.compression.buddy.streams import (
    Counts,
    EntryAccesses,
    hit_rates,
    misses_of,
    seed_of,
    side_by_side,
    stream_of,
    walks_of,
)
from simgpu.errors import InputError
from simgpu.hardware.spec import MetadataCacheSpec
from simgpu.trace.model import Access, AccessOrder, Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
from tests.compression.buddy.caches import PAPERS, Reference, added, spec, specs

many = settings(deadline=None, max_examples=60)
SEQUENTIAL, STRIDED, RANDOM = AccessOrder.SEQUENTIAL, AccessOrder.STRIDED, AccessOrder.RANDOM


@st.composite
def any_walk(draw: st.DrawFn) -> EntryAccesses:
    entries, order = draw(st.integers(1, 40)), draw(st.sampled_from(AccessOrder))
    return EntryAccesses(
        first_entry=draw(st.integers(0, 60)),
        entries=entries,
        write=draw(st.booleans()),
        order=order,
        sectors=draw(st.integers(1, 4)),
        accesses=draw(st.integers(0, 90)),
        stride=draw(st.integers(1, 50)),
        seed=draw(st.integers(0, 3)),
        begin=0 if order is AccessOrder.RANDOM else draw(st.integers(0, entries - 1)),
    )


walks = any_walk()
kernels_of_walks = st.lists(st.lists(walks, max_size=4), max_size=4)


def sequential(entries: int, first: int = 0, write: bool = False, accesses: int | None = None) -> EntryAccesses:
    return EntryAccesses(first, entries, write, SEQUENTIAL, 4, entries if accesses is None else accesses)


def random(entries: int, accesses: int, seed: int = 0, write: bool = False) -> EntryAccesses:
    return EntryAccesses(0, entries, write, RANDOM, 1, accesses, seed=seed)


def entries_accessed(walk: EntryAccesses) -> list[int]:
    """The accessed entries, by the definition of the orders."""
    if walk.order is RANDOM:
        drawn = np.random.Philox(key=walk.seed).random_raw(walk.accesses).tolist()
        return [walk.first_entry + number % walk.entries for number in drawn]
    stride = walk.stride if walk.order is STRIDED else 1
    once = [at for column in range(stride) for at in range(column, walk.entries, stride)]
    return [walk.first_entry + (walk.begin + at) % walk.entries for at in islice(cycle(once), walk.accesses)]


def tiles_visited(walk: EntryAccesses, entries_per_line: int) -> list[list[int]]:
    """The tiles of a walk: visits that other walks do not interrupt."""
    tiles: list[list[int]] = []
    for entry in entries_accessed(walk):
        same = walk.order is SEQUENTIAL and tiles and tiles[-1][-1] // entries_per_line == entry // entries_per_line
        if same and entry != walk.first_entry:
            tiles[-1].append(entry)
        else:
            tiles.append([entry])
    return tiles


def interleaved(walks: list[EntryAccesses], entries_per_line: int) -> list[tuple[EntryAccesses, list[int]]]:
    """Tiles of all walks, each walk in step with the longest."""
    tiles = [tiles_visited(walk, entries_per_line) for walk in walks]
    longest = max(map(len, tiles), default=0)
    placed = [
        (ceil(Fraction(number * longest, len(of_walk))), place, tile)
        for place, of_walk in enumerate(tiles)
        for number, tile in enumerate(of_walk, start=1)
    ]
    return [(walks[place], tile) for _, place, tile in sorted(placed, key=lambda each: each[:2])]


class TestOrder:
    @many
    @given(walks=st.lists(walks, max_size=4), entries_per_line=st.integers(1, 9))
    def test_tiles_are_interleaved_in_proportion(self, walks: list[EntryAccesses], entries_per_line: int):
        stream = stream_of(walks, entries_per_line)
        expected = interleaved(walks, entries_per_line)
        assert stream.lines.tolist() == [tile[0] // entries_per_line for _, tile in expected]
        assert stream.writes.tolist() == [walk.write for walk, _ in expected]
        assert stream.stand_for.tolist() == [1] * len(expected)

    @many
    @given(spec=specs, kernels=kernels_of_walks)
    def test_tile_by_tile_counts_as_entry_by_entry(self, spec: MetadataCacheSpec, kernels: list[list[EntryAccesses]]):
        reference = Reference(spec)
        for _ in range(2):
            expected = []
            for of_kernel in kernels:
                accesses = [
                    reference.access(entry // spec.entries, walk.write)
                    for walk, tile in interleaved(of_kernel, spec.entries)
                    for entry in tile
                ]
                result = added(accesses)
                assert len(accesses) == result.hits + result.misses
                expected.append(Counts(len(accesses), result.misses, result.written_back))
        assert misses_of(kernels, spec) == expected

    def test_a_strided_walk_visits_all_entries_before_repeating(self):
        walk = EntryAccesses(100, 10, False, STRIDED, 1, accesses=23, stride=4)
        once = [100, 104, 108, 101, 105, 109, 102, 106, 103, 107]
        assert stream_of([walk], 1).lines.tolist() == [*once, *once, *once[:3]]

    def test_a_walk_may_begin_within_its_block_and_wraps_around(self):
        walk = EntryAccesses(100, 10, False, STRIDED, 1, accesses=12, stride=4, begin=5)
        once = [105, 109, 103, 106, 100, 104, 107, 101, 108, 102]
        assert stream_of([walk], 1).lines.tolist() == [*once, *once[:2]]
        assert stream_of([replace(walk, order=SEQUENTIAL)], 1).lines.tolist() == [
            *range(105, 110),
            *range(100, 107),
        ]

    def test_a_walk_from_the_middle_of_a_line_accesses_each_line_visit_once(self):
        walk = EntryAccesses(64, 256, False, SEQUENTIAL, 4, accesses=256, begin=100)
        assert stream_of([walk], 64).lines.tolist() == [2, 3, 4, 1, 2]

    def test_a_kernel_without_walks_has_no_accesses(self):
        assert stream_of([], 64).lines.tolist() == []
        assert stream_of([sequential(10, accesses=0)], 64).lines.tolist() == []
        assert misses_of([[]], PAPERS) == [Counts(0, 0, 0)]
        assert misses_of([], PAPERS) == []


class TestRandomWalks:
    def test_random_walks_are_the_same_on_every_machine(self):
        drawn = stream_of([random(10**6, 4, seed_of("spmv", "x"))], 1).lines.tolist()
        assert drawn == [375654, 794933, 71128, 443640]

    def test_random_walks_differ_between_kernels_and_blocks(self):
        seeds = {seed_of(kernel, block) for kernel in ("k", "kb", "l") for block in ("b", "bb", "c", "")}
        assert len(seeds) == 12

    def test_random_walks_hit_in_proportion_to_the_ways(self):
        """All n lines of a set are equally likely to be among the last used, so `ways` of n accesses hit."""
        cache, lines, accesses = spec(sets=4, ways=4, slices=4), 16 * 10, 100_000
        [counts] = misses_of([[random(64 * lines, accesses)]], cache)
        expected, deviation = 4 / 10, sqrt(0.4 * 0.6 / accesses)
        assert abs(counts.hit_rate - expected) < 4 * deviation


class TestSample:
    @pytest.fixture
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streams, "SAMPLE", 16)

    @pytest.mark.usefixtures("short")
    @pytest.mark.parametrize("order", [STRIDED, RANDOM])
    def test_the_sample_is_the_first_accesses_weighted_to_all(self, order: AccessOrder):
        for accesses in (*range(1, 70), 999, 10**12 + 7):
            self.check(order, accesses)

    def check(self, order: AccessOrder, accesses: int) -> None:
        walk = EntryAccesses(5, 1000, False, order, 1, accesses, stride=7, begin=0 if order is RANDOM else 990)
        sample = stream_of([walk], 4)
        assert sample.stand_for.sum() == accesses
        assert min(accesses, 12) <= sample.lines.size <= 16
        assert sample.stand_for[:8].tolist() == [1] * min(8, accesses)
        assert len(set(sample.stand_for[8:-1].tolist())) <= 1
        first = entries_accessed(replace(walk, accesses=sample.lines.size))
        assert sample.lines.tolist() == [entry // 4 for entry in first]
        if accesses <= 16:
            assert sample.lines.size == accesses

    @pytest.mark.usefixtures("short")
    def test_a_sequential_walk_is_never_sampled(self):
        assert stream_of([sequential(100)], 1).lines.tolist() == list(range(100))

    @pytest.mark.usefixtures("short")
    def test_a_sample_scales_misses_and_write_backs(self):
        """Entries at least a line apart in a block much larger than the cache: no access hits, each line is written."""
        [counts] = misses_of([[EntryAccesses(0, 64 * 1000, True, STRIDED, 1, accesses=700, stride=64)]], spec(ways=2))
        assert counts == Counts(700, 700, 700)

    def test_a_sample_does_not_scale_cold_misses(self):
        """Other kernels have filled the cache. A block that fits misses once per line, however long the walk."""
        lines, accesses = PAPERS.total // PAPERS.line, 10**8
        other = sequential(64 * lines, first=64 * lines)
        _, counts = misses_of([[other], [random(64 * 100, accesses)]], PAPERS)
        assert counts == Counts(accesses, 100, 0)


class TestClosedForms:
    def test_a_streaming_walk_misses_once_per_line_and_writes_back_each_changed_line(self):
        """In the steady state every changed line is evicted once, some in a later kernel."""
        copy = [sequential(640_000), sequential(640_000, first=640_000, write=True)]
        look = [sequential(640_000)]
        copied, looked = misses_of([copy, look], PAPERS)
        assert (copied.accesses, copied.misses, looked.accesses, looked.misses) == (1_280_000, 20_000, 640_000, 10_000)
        assert copied.written_back + looked.written_back == 10_000
        assert copied.hit_rate == 63 / 64

    def test_lines_that_fit_miss_only_once(self):
        entries = PAPERS.entries * PAPERS.total // PAPERS.line
        assert misses_of([[sequential(entries, write=True)]] * 2, PAPERS) == [Counts(entries, 0, 0)] * 2

    def test_a_kernel_hits_lines_left_by_the_previous_kernel(self):
        """The second half of a block twice as large as the cache is cached for a kernel that starts with it."""
        half = PAPERS.entries * PAPERS.total // PAPERS.line
        full, again = misses_of([[sequential(2 * half)], [sequential(half, first=half)]], PAPERS)
        assert (full.misses, again.misses) == (2 * half // 64, 0)

    def test_a_block_changed_in_place_is_read_once(self):
        [counts] = misses_of([[sequential(640_000), sequential(640_000, write=True)]], PAPERS)
        assert counts == Counts(1_280_000, 10_000, 10_000)

    def test_a_block_that_begins_within_a_line_shares_it(self):
        assert stream_of([sequential(100, first=40)], 64).lines.tolist() == [0, 1, 2]
        assert stream_of([sequential(24, first=40)], 64).lines.tolist() == [0]
        assert stream_of([sequential(100, first=40, accesses=124)], 64).lines.tolist() == [0, 1, 2, 0]


class TestSizes:
    @many
    @given(kernels=kernels_of_walks, ways=st.integers(1, 4), slices=st.integers(1, 4))
    def test_a_cache_of_twice_the_sets_never_hits_less(
        self, kernels: list[list[EntryAccesses]], ways: int, slices: int
    ):
        assume(any(walk.accesses for of_kernel in kernels for walk in of_kernel))
        base = spec(ways=ways, slices=slices, entries=4)
        sizes = [base.total * 2**doubled for doubled in range(5)]
        rates = hit_rates(kernels, base, sizes)
        assert list(rates) == sorted(rates)
        assert 0 <= rates[0] <= rates[-1] <= 1

    def test_each_cache_size_is_simulated_separately(self):
        kernels = [[sequential(640_000), random(640_000, 10_000)], [random(200_000, 5000, write=True)]]
        sizes = [2**shift for shift in range(12, 20)]
        together = hit_rates(kernels, PAPERS, sizes)
        for size, rate in zip(sizes, together, strict=True):
            counts = misses_of(kernels, replace(PAPERS, size=size // PAPERS.slices))
            assert rate == 1 - sum(each.misses for each in counts) / sum(each.accesses for each in counts)
            assert hit_rates(kernels, PAPERS, [size]) == (rate,)
        assert hit_rates(kernels, PAPERS, []) == ()

    def test_cache_sizes_that_are_not_multiples_of_a_set_are_reported_together(self):
        with pytest.raises(InputError) as refused:
            hit_rates([[sequential(64)]], PAPERS, [0, 4096, 5000, 65536])
        assert refused.value.lines() == [
            f"size of the metadata cache: {size} B is not a multiple of sets of 4 lines of 32 B in each of 32 slices; "
            "give a multiple of 4096 B"
            for size in (0, 5000)
        ]


class TestTraces:
    BLOCKS = (
        Block("x", 128 * 64 + 1, BlockKind.INPUT, persistent=True),
        Block("none", 0, BlockKind.OTHER, persistent=True),
        Block("w", 128 * 10, BlockKind.WEIGHT, persistent=True),
        Block("y", 128 * 3, BlockKind.ACTIVATION),
    )
    KERNELS = (
        Kernel("conv", "conv", Phase.FORWARD, 10, reads=("x", "w", "none"), writes=("y",)),
        Kernel("relu", "relu_", Phase.FORWARD, 10, reads=("y",), writes=("y",)),
    )
    ACCESSES = (
        Access("conv", "x", write=False, order=RANDOM, sectors=1, entries=500),
        Access("relu", "y", write=True, order=STRIDED, sectors=2, entries=2, stride=2, first=1),
    )
    TRACE = Trace(TraceInfo("tiny", 1, "hand", "float32", Origin.MODELLED, "test"), KERNELS, BLOCKS, accesses=ACCESSES)

    def test_blocks_do_not_share_metadata_lines(self):
        assert side_by_side(self.BLOCKS, PAPERS) == {"x": 0, "none": 128, "w": 128, "y": 192}

    def test_a_block_without_an_access_pattern_is_walked_once(self):
        places = side_by_side(self.BLOCKS, PAPERS)
        conv, relu = walks_of(self.TRACE, places)
        assert conv == (
            EntryAccesses(0, 65, False, RANDOM, 1, accesses=500, seed=seed_of("conv", "x")),
            EntryAccesses(128, 10, False, SEQUENTIAL, 4, accesses=10),
            EntryAccesses(192, 3, True, SEQUENTIAL, 4, accesses=3),
        )
        assert relu == (
            EntryAccesses(192, 3, False, SEQUENTIAL, 4, accesses=3),
            EntryAccesses(192, 3, True, STRIDED, 2, accesses=2, stride=2, begin=1),
        )

    def test_blocks_without_metadata_are_not_accessed(self):
        conv, relu = walks_of(self.TRACE, {"w": 7})
        assert conv == (EntryAccesses(7, 10, False, SEQUENTIAL, 4, accesses=10),)
        assert relu == ()
