"""The contents of figures: styles, merged bars, thinned memory curves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simgpu.analysis.bars import (
    CODEC,
    COLLECTIVE,
    COLLECTIVE_WAIT,
    COMPUTE,
    COPY_D2H,
    COPY_WAIT,
    COPY_WAIT_MEMORY,
    LOOKS,
    PHASES,
    WAIT_COLLECTIVE,
    WAIT_COPY_IN,
    WAIT_COPY_OUT,
    WAIT_MEMORY,
    WAIT_OTHER,
    bars,
    merge_tiny,
    steps,
)
from simgpu.timeline.model import SpanKind
from simgpu.trace.model import Phase
from tests.timeline.hand_made import curve_of, timeline_of

K = SpanKind


def test_bars_are_clipped_to_the_window_and_sorted_by_style() -> None:
    timeline = timeline_of(
        [
            ("compute", K.COMPUTE, "a", 0, 15),
            ("compute", K.COMPUTE, "b", 15, 15),
            ("compute", K.STALL_EVENT, "x", 15, 20, 0, "d2h"),
            ("compute", K.STALL_EVENT, "x", 20, 22, 0, "h2d"),
            ("compute", K.STALL_EVENT, "x", 22, 24, 0, "host"),
            ("compute", "stall_device_memory", "c", 24, 26),
            ("compute", K.ENCODE, "c", 26, 40),
            ("d2h", "copy_d2h", "x", 5, 20, 9, ""),
            ("d2h", K.STALL_EVENT, "y", 20, 30, 0, "compute"),
            ("h2d", "stall_device_memory", "y", 12, 13),
            ("host", K.DECODE, "x", 30, 31),
        ],
        [10, 30],
    )
    drawn = bars(timeline, 10, 30, {"a": Phase.BACKWARD}, grain=1)
    assert {key: (starts.tolist(), ends.tolist()) for key, (starts, ends, _) in drawn.items()} == {
        ("compute", PHASES[Phase.BACKWARD]): ([0], [5]),
        ("compute", WAIT_COPY_OUT): ([5], [10]),
        ("compute", WAIT_COPY_IN): ([10], [12]),
        ("compute", WAIT_OTHER): ([12], [14]),
        ("compute", WAIT_MEMORY): ([14], [16]),
        ("compute", CODEC): ([16], [20]),
        ("d2h", COPY_D2H): ([0], [10]),
        ("d2h", COPY_WAIT): ([10], [20]),
        ("h2d", COPY_WAIT_MEMORY): ([2], [3]),
    }
    assert all(look in LOOKS for _, look in drawn)


def test_collectives_and_waits_for_them_have_a_look_of_their_own() -> None:
    spans = [
        ("compute", K.STALL_EVENT, "r", 0, 5, 0, "collectives"),
        ("collectives", K.COMPUTE, "r", 0, 5),
        ("collectives", K.STALL_EVENT, "s", 5, 9, 0, "compute"),
    ]
    timeline = timeline_of(spans, [9], streams=("compute", "collectives"))
    looks = list(bars(timeline, 0, 9, {"r": Phase.BACKWARD}, grain=1))
    assert looks == [("compute", WAIT_COLLECTIVE), ("collectives", COLLECTIVE), ("collectives", COLLECTIVE_WAIT)]
    assert all(look in LOOKS for _, look in looks)


def test_a_kernel_of_unknown_phase_has_the_compute_style() -> None:
    timeline = timeline_of([("compute", K.COMPUTE, "a", 0, 5)], [5])
    assert list(bars(timeline, 0, 5, {"other": Phase.FORWARD}, grain=1)) == [("compute", COMPUTE)]


def test_many_tiny_kernels_are_merged_into_few_bars_of_the_same_extent() -> None:
    starts = np.arange(0, 100_000, 10)
    merged = merge_tiny(starts, starts + 9, grain=50)
    assert (merged.starts.tolist(), merged.ends.tolist()) == ([0], [99_999])
    assert merged.busy.tolist() == [9 * 10_000 / 99_999]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=12), st.integers(1, 20))
def test_merging_hides_no_span_and_fills_only_gaps_below_the_grain(gaps: list[tuple[int, int]], grain: int) -> None:
    flat = np.cumsum(np.array(gaps, dtype=np.int64).reshape(-1))
    starts, ends = flat[0::2], flat[1::2]
    merged_starts, merged_ends, busy = merge_tiny(starts, ends, grain)
    assert int(((merged_ends - merged_starts) * busy).round().sum()) == int((ends - starts).sum())
    covered = {t for a, b in zip(merged_starts.tolist(), merged_ends.tolist(), strict=True) for t in range(a, b)}
    original = {t for a, b in zip(starts.tolist(), ends.tolist(), strict=True) for t in range(a, b)}
    assert original <= covered
    filled = sum(max(0, b - a) for a, b in zip(ends[:-1].tolist(), starts[1:].tolist(), strict=True) if b - a < grain)
    assert len(covered - original) <= filled
    wide = ends - starts >= grain
    bars_left = set(zip(merged_starts.tolist(), merged_ends.tolist(), strict=True))
    assert set(zip(starts[wide].tolist(), ends[wide].tolist(), strict=True)) <= bars_left


def test_a_memory_curve_in_a_window_starts_with_the_current_value() -> None:
    shown = steps(curve_of([(0, 5, 6), (20, 9, 12), (30, 1, 1)]), 10, 30)
    assert (shown.time.tolist(), shown.live.tolist(), shown.used.tolist()) == ([0, 10, 20], [5, 9, 9], [6, 12, 12])
    assert steps(curve_of(), 10, 30).live.tolist() == [0, 0]


def test_a_peak_of_zero_duration_is_drawn_and_a_dip_is_not() -> None:
    shown = steps(curve_of([(0, 5, 5), (10, 8, 8), (10, 2, 2), (10, 6, 6)]), 0, 20)
    assert (shown.time.tolist(), shown.live.tolist()) == ([0, 10, 10, 20], [5, 8, 6, 6])


def test_a_long_curve_is_thinned_and_keeps_its_extremes() -> None:
    generator = np.random.default_rng(7)
    live = generator.integers(100, 10**6, size=100_000)
    live[43_210], live[77_777] = 10**7, 1
    shown = steps(curve_of([(7 * i, value, value) for i, value in enumerate(live.tolist())]), 0, 700_000, limit=1000)
    assert len(shown.time) < 1500
    assert shown.live.max() == 10**7
    assert shown.time[shown.live.argmax()] == 7 * 43_210
    assert shown.live.min() == 1
    assert (shown.live[0], shown.live[-1]) == (live[0], live[-1])
    assert shown.time[-2:].tolist() == [7 * 99_999, 700_000]
    assert np.all(np.diff(shown.time) >= 0)
