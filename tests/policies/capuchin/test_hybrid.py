"""The hybrid policy: fully overlapped swaps by free time first, then the cheaper of swap on demand and recompute."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.policies.capuchin.hybrid import (
    Candidate,
    Decision,
    LinkReservations,
    RecomputeBlock,
    Situation,
    SwapOut,
    decide,
    triggered_earlier,
)

#: An access every 10 ns of 1000, and the peak of memory from 490 to 500.
SHARED = Situation(tuple(range(0, 1000, 10)), peak_start_ns=490, peak_end_ns=500)


def a_map(number: int, evicted: int, back: int, copy: int = 20, **more: object) -> Candidate:
    """A feature map of 100 bytes whose offload and prefetch take equally long."""
    return Candidate(number, 100, evicted, back, copy, copy, **more)  # type: ignore[arg-type]


def test_free_time_is_the_gap_without_the_copies():
    assert a_map(0, evicted=100, back=900).free_ns == (900 - 20) - (100 + 20)
    assert a_map(0, evicted=480, back=510).free_ns == -10


def test_tensors_are_evicted_by_largest_free_time_until_enough():
    maps = [a_map(0, 300, 700), a_map(1, 100, 900), a_map(2, 200, 800)]
    assert list(decide(maps, SHARED, 100)) == [1]
    assert list(decide(maps, SHARED, 101)) == [1, 2]
    assert decide(maps, SHARED, 0) == {}
    assert set(decide(maps, SHARED, 10**9)) == {0, 1, 2}


def test_the_trigger_is_the_last_access_from_which_the_copy_ends_in_time():
    assert decide([a_map(0, 100, 900)], SHARED, 1) == {0: SwapOut(88)}
    assert decide([a_map(0, 100, 905)], SHARED, 1) == {0: SwapOut(88)}


def test_a_trigger_does_not_fall_into_the_peak():
    assert decide([a_map(0, 100, 520)], SHARED, 1) == {0: SwapOut(50)}
    assert decide([a_map(0, 100, 519)], SHARED, 1) == {0: SwapOut(None)}
    assert decide([a_map(0, 100, 480)], SHARED, 1) == {0: SwapOut(46)}, "back before the peak begins"


def test_a_prefetch_does_not_begin_before_its_offload_has_ended():
    after_peak = replace(SHARED, peak_start_ns=0, peak_end_ns=0)
    assert decide([a_map(0, 400, 440)], after_peak, 1) == {0: SwapOut(42)}
    assert decide([a_map(0, 400, 439)], after_peak, 1) == {0: SwapOut(None)}


def test_copies_of_one_direction_exclude_each_other():
    """Both need the link from 870 to 890; the second is fetched before the first and needs an earlier trigger."""
    maps = [a_map(0, 100, 890), a_map(1, 100, 885)]
    assert decide(maps, SHARED, 200) == {0: SwapOut(87), 1: SwapOut(85)}


def test_a_swap_that_delays_kernels_is_replaced_by_a_cheaper_recompute():
    near = a_map(0, 480, 510, recompute_ns=19)
    assert decide([near], SHARED, 1) == {0: RecomputeBlock()}
    assert decide([replace(near, recompute_ns=30)], SHARED, 1) == {0: SwapOut(None)}
    assert decide([replace(near, recompute_ns=None)], SHARED, 1) == {0: SwapOut(None)}


def test_a_swap_on_demand_also_waits_for_the_rest_of_its_copy_out():
    """Evicted at 480, needed at 490: 10 ns of the offload plus the fetch are 30 ns, as long as the recompute."""
    near = a_map(0, 480, 490, recompute_ns=30)
    assert decide([near], SHARED, 1) == {0: SwapOut(None)}
    assert decide([replace(near, recompute_ns=29)], SHARED, 1) == {0: RecomputeBlock()}


def test_the_map_with_most_bytes_per_second_is_recomputed_first():
    """Map 0 has more free time; map 1 saves its bytes at half the cost and is chosen before map 0."""
    maps = [a_map(0, 470, 510, recompute_ns=18), a_map(1, 480, 510, recompute_ns=9)]
    assert decide(maps, SHARED, 100) == {1: RecomputeBlock()}
    assert list(decide(maps, SHARED, 200)) == [1, 0]


def test_a_recomputed_source_makes_the_next_one_dearer():
    """1 is made from 0. Once 0 is recomputed, 1 takes 6 + 15 ns, more than the 20 ns of a swap."""
    first, second = a_map(0, 470, 510, recompute_ns=6), a_map(1, 480, 505, recompute_ns=15, sources=frozenset({0}))
    assert decide([first, second], SHARED, 200) == {0: RecomputeBlock(), 1: SwapOut(None)}
    apart = replace(second, sources=frozenset())
    assert decide([first, apart], SHARED, 200) == {0: RecomputeBlock(), 1: RecomputeBlock()}


def test_each_recompute_from_a_map_adds_a_run_to_its_own_recompute_cost():
    """1 and 2 are made from 0 and recomputed first; then 0 would run three times, 3 x 7 ns against a swap of 20."""
    source = a_map(0, 480, 490 + 15, recompute_ns=7)
    others = [a_map(n, 480, 505, recompute_ns=1, sources=frozenset({0})) for n in (1, 2)]
    assert decide([source, *others], SHARED, 300) == {1: RecomputeBlock(), 2: RecomputeBlock(), 0: SwapOut(None)}
    assert decide([source, others[0]], SHARED, 200) == {1: RecomputeBlock(), 0: RecomputeBlock()}


def test_late_prefetches_get_an_earlier_trigger():
    maps = [a_map(0, 100, 900, copy=200), a_map(1, 200, 700)]
    decisions: dict[int, Decision] = {0: SwapOut(70), 1: SwapOut(68)}
    assert triggered_earlier(decisions, maps, SHARED, {}) == decisions
    assert triggered_earlier(decisions, maps, SHARED, {0: 1}) == {0: SwapOut(69), 1: SwapOut(68)}
    assert triggered_earlier(decisions, maps, SHARED, {0: 2, 1: 1}) == {0: SwapOut(68), 1: SwapOut(67)}
    assert triggered_earlier(decisions, maps, SHARED, {0: 10**6}) == decisions, "nothing earlier is left"
    on_demand: dict[int, Decision] = {0: SwapOut(None), 1: RecomputeBlock()}
    assert triggered_earlier(on_demand, maps, SHARED, {0: 1, 1: 1}) == on_demand


@st.composite
def some(draw: st.DrawFn) -> list[Candidate]:
    """Random maps in forward order, each computed from earlier ones."""
    result = []
    for number in range(draw(st.integers(1, 8))):
        evicted = draw(st.integers(0, 600))
        inputs_of = st.sets(st.integers(0, number - 1)) if number else st.just(set[int]())
        result.append(
            Candidate(
                number,
                draw(st.integers(1, 100)),
                evicted,
                draw(st.integers(evicted + 1, 999)),
                draw(st.integers(0, 200)),
                draw(st.integers(0, 200)),
                draw(st.one_of(st.none(), st.integers(0, 100))),
                frozenset(draw(inputs_of)),
            )
        )
    return result


@settings(deadline=None)
@given(some(), st.integers(0, 500))
def test_random_decisions_save_enough_bytes_and_overlapped_swaps_follow_the_rules(maps: list[Candidate], to_save: int):
    decisions = decide(maps, SHARED, to_save)
    saved = [maps[number].bytes for number in decisions]
    assert sum(saved) >= to_save or len(decisions) == len(maps)
    assert sum(saved[:-1]) < max(to_save, 1)
    for number, decision in decisions.items():
        each = maps[number]
        if isinstance(decision, RecomputeBlock):
            assert each.recompute_ns is not None
        elif decision.trigger is not None:
            at = SHARED.accesses_ns[decision.trigger]
            assert each.evicted_ns + each.out_ns <= at <= each.back_ns - each.in_ns
            assert each.back_ns <= SHARED.peak_start_ns or at >= SHARED.peak_end_ns


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100), st.integers(0, 20)), max_size=12))
def test_a_copy_engine_schedule_never_assigns_a_time_twice(requests: list[tuple[bool, int, int]]):
    link = LinkReservations()
    for forward, at, length in requests:
        start, end = link.first(at, length) if forward else link.last(at, length)
        assert end - start == length
        assert start >= at if forward else end <= at
        link = link.reserving((start, end))
    assert all(before[1] <= after[0] for before, after in pairwise(link.reserved))
