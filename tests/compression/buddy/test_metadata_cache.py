"""The metadata cache: LRU replacement, hashed sets, and write-back of changed lines."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.compression.buddy.metadata_cache import CacheCounts, MetadataCache, sets_of
from simgpu.hardware.spec import MetadataCacheSpec
from tests.compression.buddy.caches import PAPERS, Reference, added, place, spec, specs

many = settings(deadline=None, max_examples=60)

#: Lines that meet often, among them some far away; whether they are written; of how many accesses each is a sample.
line = st.one_of(st.integers(0, 40), st.integers(0, 2**45))
stream = st.lists(st.tuples(line, st.booleans(), st.integers(1, 9)), max_size=200)


def reads(count: int) -> np.ndarray:
    return np.zeros(count, bool)


@many
@given(spec=specs, streams=st.lists(stream, max_size=3))
def test_counts_equal_the_plain_reference_over_several_calls(
    spec: MetadataCacheSpec, streams: list[list[tuple[int, bool, int]]]
):
    reference = Reference(spec)
    cache = MetadataCache(spec)
    for accesses in streams:
        lines, writes, stand_for = (np.array([access[c] for access in accesses], np.int64) for c in range(3))
        expected = added([reference.access(*access) for access in accesses])
        assert cache.access(lines, writes.astype(bool), stand_for) == expected


@many
@given(spec=specs, lines=st.lists(line, max_size=200))
def test_an_access_misses_if_its_set_saw_as_many_other_lines_as_ways_since_the_last(
    spec: MetadataCacheSpec, lines: list[int]
):
    misses = 0
    for at, line in enumerate(lines):
        since = lines[:at][::-1]
        others = (
            {other for other in since[: since.index(line)] if place(other, spec) == place(line, spec)}
            if line in since
            else None
        )
        misses += others is None or len(others) >= spec.ways
    result = MetadataCache(spec).access(np.array(lines, np.int64), reads(len(lines)))
    assert result == CacheCounts(len(lines) - misses, misses, 0)


@many
@given(spec=specs, entries=st.lists(st.integers(0, 300), max_size=100))
def test_each_entry_maps_to_the_line_with_its_metadata(spec: MetadataCacheSpec, entries: list[int]):
    by_entry = MetadataCache(spec).access_entries(np.array(entries, np.int64), reads(len(entries)))
    by_line = MetadataCache(spec).access(
        np.array([entry // spec.entries for entry in entries], np.int64), reads(len(entries))
    )
    assert by_entry == by_line


@many
@given(spec=specs, lines=st.lists(line, max_size=50))
def test_slice_and_set_follow_the_documented_hash(spec: MetadataCacheSpec, lines: list[int]):
    expected = [slice_ * spec.sets + set_ for slice_, set_ in (place(line, spec) for line in lines)]
    assert sets_of(np.array(lines, np.int64), spec).tolist() == expected


@pytest.mark.parametrize("slices", [1, 3, 8, 12, 32, 80, 96])
@pytest.mark.parametrize("first", [0, 7])
def test_neighbouring_lines_are_in_different_slices(slices: int, first: int):
    lines = np.arange(first * slices, (first + 1) * slices)
    one_set = spec(sets=1, slices=slices)
    assert sorted(sets_of(lines, one_set).tolist()) == list(range(slices))


@pytest.mark.parametrize("shift", range(30))
def test_a_stride_of_a_power_of_two_uses_all_slices_of_the_papers_cache(shift: int):
    assert len(set((sets_of(np.arange(32) << shift, PAPERS) // PAPERS.sets).tolist())) == 32


class TestClosedForms:
    def test_a_sequential_walk_misses_once_per_line(self):
        cache = MetadataCache(PAPERS)
        assert cache.access_entries(np.arange(64 * 1000), reads(64 * 1000)) == CacheCounts(63_000, 1000, 0)

    def test_lines_that_fit_miss_only_once(self):
        lines = PAPERS.total // PAPERS.line
        cache = MetadataCache(PAPERS)
        assert cache.access(np.arange(lines), ~reads(lines)) == CacheCounts(0, lines, 0)
        assert cache.access(np.arange(lines), reads(lines)) == CacheCounts(lines, 0, 0)

    @pytest.mark.parametrize("ways", [1, 2, 4])
    def test_cycling_through_more_lines_than_ways_never_hits(self, ways: int):
        cache = MetadataCache(spec(sets=8, ways=ways))
        lines = np.tile(np.arange(ways + 1) * 8, 5)
        assert cache.access(lines, reads(lines.size)) == CacheCounts(0, lines.size, 0)

    def test_a_line_changed_several_times_is_written_back_once(self):
        cache = MetadataCache(spec(ways=1))
        assert cache.access(np.array([0, 0, 0, 1, 0]), np.array([True, True, False, False, False])) == CacheCounts(
            2, 3, 1
        )

    def test_a_read_does_not_clear_the_dirty_state(self):
        cache = MetadataCache(spec(ways=2))
        assert cache.access(np.array([0, 1, 0, 2, 3]), np.array([True, False, False, False, False])) == CacheCounts(
            1, 4, 1
        )


def test_numba_is_imported_only_by_the_first_access():
    code = "import sys, simgpu.compression.buddy.streams; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
