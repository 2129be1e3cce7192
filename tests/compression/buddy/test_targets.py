"""Targets of allocations: Buddy Compression, sections 3.2, 3.4 and 3.5."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simgpu.compression.buddy.targets import (
    TARGETS,
    ProfiledAllocation,
    choose_targets,
    compression_ratio,
    device_bytes,
    mean_overflow,
    optimistic_ratio,
    overflow_share,
    overflowing,
    targets_by_mean,
)
from simgpu.compression.codecs.entries import ENTRY_SIZES
from simgpu.errors import InputError

SECTORS_OF = {0: 0, 8: 1, 16: 1, 32: 1, 64: 2, 80: 3, 96: 3, 128: 4}
THRESHOLDS = st.integers(0, 100).map(lambda percent: percent / 100)
RATIOS = st.sampled_from([1, 4 / 3, 1.5, 2, 3, 4, 6, 16])

#: An allocation as a list of entry sizes for each snapshot.
Sizes = list[list[int]]


@st.composite
def entry_sizes(draw: st.DrawFn) -> Sizes:
    """Random entries, mostly of equal size, in one to four snapshots."""
    entries = draw(st.integers(1, 40))
    usual = draw(st.sampled_from(ENTRY_SIZES))
    size = st.sampled_from([usual, usual, usual, *ENTRY_SIZES])
    row = st.lists(size, min_size=entries, max_size=entries)
    return draw(st.lists(row, min_size=1, max_size=4))


PROGRAMS = st.lists(entry_sizes(), min_size=1, max_size=6)


def allocations(program: Sequence[Sizes]) -> list[ProfiledAllocation]:
    """The program's allocations, called a, b, c and so on."""
    return [
        ProfiledAllocation(chr(ord("a") + at), 128 * len(sizes[0]), tuple(counts(row) for row in sizes))
        for at, sizes in enumerate(program)
    ]


def counts(row: Sequence[int]) -> tuple[int, ...]:
    return tuple(row.count(size) for size in ENTRY_SIZES)


def one(entries: dict[int, int], name: str = "a") -> ProfiledAllocation:
    """An allocation with that many entries of each size, in one snapshot."""
    return ProfiledAllocation(name, 128 * sum(entries.values()), (tuple(entries.get(size, 0) for size in ENTRY_SIZES),))


# --- an independent derivation, entry by entry ---------------------------------------------------------------


def brute_share(sizes: Sizes, target: int) -> Fraction:
    """Mean over the snapshots of the share of entries larger than a target."""
    shares = [Fraction(sum(1 for size in row if size > target), len(row)) for row in sizes]
    return sum(shares, Fraction()) / len(shares)


def brute_targets(program: Sequence[Sizes], threshold: Fraction, largest: Fraction, mostly_zero: bool) -> list[int]:
    result = []
    for sizes in program:
        target = 128
        for smaller in (96, 64, 32):
            if Fraction(128, smaller) <= largest and brute_share(sizes, smaller) <= threshold:
                target = smaller
        result.append(target)
    if not mostly_zero:
        return result
    zeros = [
        at
        for at, sizes in enumerate(program)
        if all(Fraction(sum(size <= 8 for size in row), len(row)) >= 1 - threshold for row in sizes)
    ]
    while zeros:
        best = max(zeros, key=lambda at: ((result[at] - 8) * len(program[at][0]), -at))
        zeros.remove(best)
        tried = [8 if at == best else target for at, target in enumerate(result)]
        if brute_ratio(program, tried) <= largest:
            result = tried
    return result


def brute_ratio(program: Sequence[Sizes], targets: Sequence[int]) -> Fraction:
    entries = [len(sizes[0]) for sizes in program]
    return Fraction(128 * sum(entries), sum(n * target for n, target in zip(entries, targets, strict=True)))


@settings(deadline=None, max_examples=100)
@given(program=PROGRAMS, percent=st.integers(0, 100), largest=st.sampled_from([1, 2, 3, 4, 8]), zero=st.booleans())
def test_targets_equal_the_definition_by_brute_force(
    program: list[Sizes], percent: int, largest: int, zero: bool
) -> None:
    result = choose_targets(allocations(program), threshold=percent / 100, mostly_zero=zero, largest_ratio=largest)
    assert list(result) == brute_targets(program, Fraction(percent, 100), Fraction(largest), zero)


@settings(deadline=None)
@given(program=PROGRAMS)
def test_the_naive_target_is_the_largest_reachable_ratio_in_sectors(program: list[Sizes]) -> None:
    sectors = sum(Fraction(sum(SECTORS_OF[size] for row in sizes for size in row), len(sizes)) for sizes in program)
    everything = 4 * sum(len(sizes[0]) for sizes in program)
    reached = [target for target in TARGETS if Fraction(128, target) * sectors <= everything]
    result = choose_targets(allocations(program), granularity="program")
    assert result == (min(reached),) * len(program)


# --- what always holds --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(program=PROGRAMS, threshold=THRESHOLDS, higher=THRESHOLDS)
def test_a_higher_threshold_never_lowers_the_ratio(program: list[Sizes], threshold: float, higher: float) -> None:
    assume(threshold <= higher)
    known = allocations(program)
    low, high = (choose_targets(known, threshold=each, mostly_zero=False) for each in (threshold, higher))
    assert all(after <= before for before, after in zip(low, high, strict=True))
    assert compression_ratio(known, high) >= compression_ratio(known, low)
    assert mean_overflow(known, high) >= mean_overflow(known, low)


@settings(deadline=None)
@given(program=PROGRAMS, threshold=THRESHOLDS, largest=RATIOS, zero=st.booleans())
def test_the_cap_on_the_ratio_is_never_exceeded(
    program: list[Sizes], threshold: float, largest: float, zero: bool
) -> None:
    known = allocations(program)
    for targets in (
        choose_targets(known, threshold=threshold, mostly_zero=zero, largest_ratio=largest),
        choose_targets(known, granularity="program", largest_ratio=largest),
        targets_by_mean(known, mostly_zero=zero, largest_ratio=largest),
    ):
        assert 1 <= compression_ratio(known, targets) <= largest


@settings(deadline=None)
@given(program=PROGRAMS, threshold=THRESHOLDS)
def test_no_allocation_overflows_more_than_the_threshold(program: list[Sizes], threshold: float) -> None:
    known = allocations(program)
    for allocation, target in zip(known, choose_targets(known, threshold=threshold), strict=True):
        assert mean_overflow([allocation], [target]) <= threshold
        if target == 8:
            assert all(overflow_share(snapshot, 8) <= threshold for snapshot in allocation.snapshots)


@settings(deadline=None)
@given(program=PROGRAMS, threshold=THRESHOLDS)
def test_stored_bytes_add_up_exactly(program: list[Sizes], threshold: float) -> None:
    """Device and buddy bytes of every entry add up to the entry; overflow fits into its reserved space."""
    known = allocations(program)
    targets = choose_targets(known, threshold=threshold)
    buddy = 0
    for sizes, target in zip(program, targets, strict=True):
        buddy += len(sizes[0]) * (128 - target)
        for size in (size for row in sizes for size in row):
            on_device, beyond = min(size, target), max(size - target, 0)
            assert on_device + beyond == size
            assert beyond <= 128 - target
    assert device_bytes(known, targets) + buddy == sum(128 * len(sizes[0]) for sizes in program)


@settings(deadline=None)
@given(program=PROGRAMS, data=st.data())
def test_the_order_of_allocations_does_not_matter(program: list[Sizes], data: st.DataObject) -> None:
    known = allocations(program)
    mixed = data.draw(st.permutations(known))
    chosen = dict(zip([each.name for each in known], choose_targets(known), strict=True))
    assert choose_targets(mixed) == tuple(chosen[each.name] for each in mixed)


@given(sizes=entry_sizes(), target=st.sampled_from([*TARGETS, 8]))
def test_overflow_counts_entries_larger_than_their_target(sizes: Sizes, target: int) -> None:
    for row in sizes:
        assert overflowing(counts(row), target) == sum(size > target for size in row)
    assert mean_overflow(allocations([sizes]), [target]) == float(brute_share(sizes, target))


def test_a_share_equal_to_the_threshold_is_still_allowed() -> None:
    for percent in range(1, 100):
        at, above = one({32: 100 - percent, 128: percent}), one({32: 99 - percent, 128: percent + 1})
        assert choose_targets([at, above], threshold=percent / 100, mostly_zero=False) == (32, 128), percent


# --- figures of the paper -----------------------------------------------------------------------------------


def test_memory_that_fills_up_gets_its_final_ratio() -> None:
    """355.seismic begins with zeros and settles at 2x: its target is 2x, not 6x or 7x, and it is not mostly zero."""
    zeros, settled = counts([0] * 100), counts([64] * 100)
    seismic = ProfiledAllocation("wave field", 12_800, (zeros, zeros, *(settled,) * 8))
    assert optimistic_ratio([seismic]) == 2.5
    assert choose_targets([seismic]) == (64,)


def test_targets_by_allocation_compress_what_one_target_cannot() -> None:
    """354.cg and 370.bt are mostly incompressible: 1x with one target, more with one for each allocation."""
    program = [one({128: 800}, "dense"), one({32: 100}, "sparse")]
    assert choose_targets(program, granularity="program") == (128, 128)
    assert compression_ratio(program, choose_targets(program)) == pytest.approx(900 / 825)


def test_a_striped_allocation_reaches_its_best_ratio_only_with_a_very_high_threshold() -> None:
    """FF_HPGMG: arrays of structs; one part in five compresses well, the rest does not fit half an entry."""
    striped = one({0: 19, 80: 81})
    assert choose_targets([striped], threshold=0.80) == (96,)
    assert choose_targets([striped], threshold=0.81, mostly_zero=False) == (32,)
    assert mean_overflow([striped], [64]) == 0.81


def test_a_program_of_zeros_stays_within_the_carve_out() -> None:
    """Everything at 16x would need a buddy memory of 15x; a buddy memory of 3x allows 4x."""
    program = [one({0: 100}, name) for name in "abcd"]
    assert choose_targets(program) == (32, 32, 32, 32)
    assert choose_targets(program, largest_ratio=16) == (8, 8, 8, 8)


def test_the_largest_mostly_zero_allocations_come_first_and_ties_go_by_name() -> None:
    """The cap allows 24 bytes x 100 entries, from dense memory of 128 bytes x 25 entries."""
    dense = one({128: 25}, "dense")
    program = [one({0: 60}, "small"), one({0: 100}, "z"), one({0: 100}, "y"), dense]
    assert choose_targets(program) == (32, 32, 8, 128)
    assert choose_targets([one({0: 110}, "too large"), *program]) == (32, 32, 32, 8, 128)


def test_allocations_with_temporary_zeros_are_not_mostly_zero() -> None:
    lasting, passing = counts([0] * 9 + [128]), counts([0] * 6 + [32] * 4)
    dense = one({128: 100}, "dense")
    assert choose_targets([ProfiledAllocation("a", 1280, (lasting, lasting)), dense]) == (8, 128)
    assert choose_targets([ProfiledAllocation("a", 1280, (lasting, passing)), dense]) == (32, 128)


# --- ends of the scale, and mistakes ------------------------------------------------------------------------


def test_unknown_entries_count_as_incompressible() -> None:
    unknown, empty = ProfiledAllocation("unknown", 1000, ()), ProfiledAllocation("empty", 0, ())
    assert choose_targets([unknown, empty])[0] == 128
    assert mean_overflow([unknown], [32]) == 1.0
    assert choose_targets([]) == ()
    assert (compression_ratio([], []), mean_overflow([], []), optimistic_ratio([])) == (1.0, 0.0, 1.0)
    assert optimistic_ratio([one({0: 5})]) == float("inf")


def test_wrong_histograms_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        ProfiledAllocation("a", 300, ((1, 0, 0, 0, 0, 0, 0, 0), (3, 0), (4, 0, 0, 0, 0, 0, 0, -1)))
    assert [str(problem) for problem in caught.value.problems] == [
        "allocation a, snapshot 1: counts 1 entries, 300 bytes have 3; count each entry of 128 bytes once",
        "allocation a, snapshot 2: has counts of 2 sizes, not 8; count each entry of 128 bytes once",
        "allocation a, snapshot 3: counts -1 entries of a size; count each entry of 128 bytes once",
    ]


@pytest.mark.parametrize("threshold", [-0.01, 1.01, float("nan")])
@pytest.mark.parametrize("ratio", [0.99, 0, float("nan")])
def test_wrong_arguments_are_reported_together(threshold: float, ratio: float) -> None:
    with pytest.raises(InputError) as caught:
        choose_targets([], threshold=threshold, largest_ratio=ratio)
    assert [problem.place for problem in caught.value.problems] == ["argument threshold", "argument largest_ratio"]
