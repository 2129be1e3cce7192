"""Metrics of hand-made iterations, number by number."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.analysis.metrics import Metrics, measure
from simgpu.hardware.spec import DEVICE, HOST, Duplex, MemoryLink
from simgpu.timeline.model import SpanKind, Timeline
from tests.timeline.hand_made import curve_of, timeline_of

K = SpanKind
LINK = MemoryLink((DEVICE, HOST), "pcie", (10**9, 2 * 10**9))


def two_iterations() -> Timeline:
    """Iterations [0, 100) and [100, 250)."""
    return timeline_of(
        [
            ("compute", K.COMPUTE, "a", 0, 100),
            ("d2h", "copy_d2h", "x", 90, 110, 20, ""),
            ("compute", K.COMPUTE, "a", 100, 200),
            ("d2h", "copy_d2h", "y", 110, 140, 30, ""),
            ("h2d", "copy_h2d", "y", 100, 150, 100, ""),
            ("compute", K.STALL_EVENT, "z", 200, 230, 0, "h2d"),
            ("h2d", "copy_h2d", "z", 200, 230, 60, ""),
            ("compute", K.COMPUTE, "b", 230, 250),
            ("h2d", "copy_h2d", "w", 250, 260, 7, ""),
        ],
        [100, 250],
        device=curve_of(
            [(0, 900, 1000), (10, 40, 64), (100, 70, 80), (100, 20, 32), (150, 50, 64), (250, 999, 1999)], 4000
        ),
        host=curve_of([(90, 20, 20), (110, 50, 50), (150, 0, 0)], memory="host"),
    )


def measured(timeline: Timeline, iteration: int = -1, link: MemoryLink = LINK, ideal_ns: int = 120) -> Metrics:
    return measure(timeline, batch=3, ideal_ns=ideal_ns, links=[link], iteration=iteration)


def test_metrics_include_time_rate_and_slowdown() -> None:
    metrics = measured(two_iterations())
    assert metrics.iteration_ns == 150
    assert metrics.samples_per_s == 20_000_000.0
    assert metrics.slowdown == 1.25
    assert metrics.breakdown.compute == 120
    assert metrics.breakdown.stalled_copies["h2d"] == 30


def test_a_copy_counts_in_the_iteration_in_which_it_starts() -> None:
    first, second = measured(two_iterations(), 0), measured(two_iterations(), 1)
    assert (first.copied_bytes["d2h"], first.copied_bytes["h2d"]) == (20, 0)
    assert (second.copied_bytes["d2h"], second.copied_bytes["h2d"]) == (30, 160)


def test_utilization_is_given_per_direction_or_for_the_shared_link() -> None:
    full = measured(two_iterations())
    assert full.utilisation["d2h"] == 30 / 150
    assert full.utilisation["h2d"] == 160 / 300
    half = measured(two_iterations(), link=replace(LINK, duplex=Duplex.HALF))
    assert half.utilisation["d2h"] == 30 / 300
    assert half.utilisation["h2d"] == 160 / 300


def test_the_peak_includes_initial_memory_and_peaks_of_zero_duration() -> None:
    second = measured(two_iterations(), 1)
    assert second.device_peak_bytes == 999
    assert second.device_peak_used_bytes == 1999
    assert second.device_mean_bytes == (20 * 50 + 50 * 100) // 150
    assert second.run_peak_bytes == 999
    assert second.shared_peak_bytes["host"] == 50


def test_the_start_of_the_next_iteration_does_not_belong_to_this_one() -> None:
    first = measured(two_iterations(), 0)
    assert first.device_peak_bytes == 900
    assert first.device_mean_bytes == (900 * 10 + 40 * 90) // 100
    # The 70 bytes at 100 ns are of the second iteration, whose own peak would otherwise be 50.
    quiet = timeline_of(
        [("compute", K.COMPUTE, "a", 0, 100), ("compute", K.COMPUTE, "a", 100, 200)],
        [100, 200],
        device=curve_of([(0, 5, 5), (100, 70, 70), (100, 20, 20), (150, 50, 50)]),
    )
    assert measured(quiet, 0).device_peak_bytes == 5
    assert measured(quiet, 1).device_peak_bytes == 70


def test_a_window_between_samples_uses_the_last_sample_before_it() -> None:
    timeline = timeline_of(
        [("compute", K.COMPUTE, "a", 0, 10), ("compute", K.COMPUTE, "b", 10, 20)],
        [10, 20],
        device=curve_of([(3, 7, 8)]),
    )
    assert (measured(timeline, 0).device_peak_bytes, measured(timeline, 0).device_mean_bytes) == (7, 4)
    assert (measured(timeline, 1).device_peak_bytes, measured(timeline, 1).device_mean_bytes) == (7, 7)
    assert measured(timeline, 1).device_peak_used_bytes == 8


def test_a_sample_at_the_start_of_a_window_replaces_the_previous_one() -> None:
    timeline = timeline_of(
        [("compute", K.COMPUTE, "a", 0, 10), ("compute", K.COMPUTE, "b", 10, 20)],
        [10, 20],
        device=curve_of([(0, 90, 90), (10, 30, 30)]),
    )
    assert measured(timeline, 1).device_peak_bytes == 30


def test_the_mean_does_not_overflow() -> None:
    huge, long = 2**41, 2**40
    timeline = timeline_of([("compute", K.COMPUTE, "a", 0, long)], [long], device=curve_of([(0, huge, huge)]))
    assert measured(timeline).device_mean_bytes == huge


@given(
    st.lists(st.tuples(st.integers(0, 2**58), st.integers(0, 2**62)), min_size=1),
    st.integers(0, 2**59),
)
def test_the_mean_equals_that_of_python_integers(samples: list[tuple[int, int]], end: int) -> None:
    levels = dict(sorted((min(at, end), live) for at, live in samples))
    device = curve_of([(at, live, live) for at, live in levels.items()])
    timeline = timeline_of([("compute", K.COMPUTE, "a", 0, end)], [end], device=device)
    area = sum(live * (after - at) for (at, live), after in zip(levels.items(), [*levels, end][1:], strict=True))
    assert measured(timeline).device_mean_bytes == (area // end if end else 0)


def test_an_iteration_of_zero_length_has_no_finite_rate_and_valid_json() -> None:
    timeline = timeline_of([("compute", K.COMPUTE, "a", 0, 0)], [0])
    metrics = measured(timeline, ideal_ns=0)
    assert metrics.samples_per_s == math.inf
    assert metrics.slowdown == 1.0
    assert (metrics.utilisation["d2h"], metrics.device_mean_bytes) == (0.0, 0)
    values = {row.key: row.value for row in metrics.rows()}
    assert values["samples_per_s"] is None
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_rows_have_a_fixed_order_and_contain_every_number_once() -> None:
    metrics = measure(two_iterations(), batch=3, ideal_ns=120, links=[LINK], fragmentation=0.125)
    rows = metrics.rows()
    keys = [row.key for row in rows]
    assert keys[:4] == ["iteration_ns", "samples_per_s", "slowdown", "compute_ns"]
    assert len(set(keys)) == len(keys)
    values = {row.key: (row.value, row.unit) for row in rows}
    assert values["stalled_h2d_ns"] == (30, "ns")
    assert values["h2d_overlapped_ns"] == (50, "ns")
    assert values["h2d_exposed_ns"] == (30, "ns")
    assert values["fragmentation"] == (0.125, "")
    causes = ("compute", "recompute", "codec", "stalled_d2h", "stalled_h2d", "stalled_memory")
    causes = (*causes, "stalled_host", "stalled_other")
    assert sum(values[f"{cause}_ns"][0] for cause in causes) == metrics.iteration_ns


def test_an_unknown_iteration_is_refused() -> None:
    with pytest.raises(IndexError):
        measured(two_iterations(), 2)
