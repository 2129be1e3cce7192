"""A measured step compared with a simulated iteration: the same, then with one change, which must be reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.trace.chain import chain
from simgpu.validation.calibration import durations
from simgpu.validation.measured import MeasuredKind, MeasuredSpan
from simgpu.validation.timelines.comparison import (
    Agreement,
    Row,
    TimelineComparison,
    compare_timelines,
    divergence_text,
)
from simgpu.validation.timelines.matching import match
from tests.validation.example_timelines import as_if_measured, kernel

NODE = NodeSpec("made", GpuSpec("made", memory=10**9), LinkSpec("made", d2h_bandwidth=10**9, h2d_bandwidth=10**9))
TRACE = chain([1000, 2000, 3000, 4000], [2000, 4000, 6000, 8000], [1000, 2000, 3000, 4000])

#: Three copies out of x1, x2, x3 next to the forward kernels, and three in next to the backward ones; 30 us in all.
RESULT = simgpu.simulate(TRACE, NODE, "vdnn", engine="simpy")
SPANS = as_if_measured(RESULT)
STEP = 30_000
OUT = [place for place, span in enumerate(SPANS) if span.kind is MeasuredKind.COPY_D2H]
PLACES = st.integers(0, len(SPANS) - 1)


def compared(spans: list[MeasuredSpan], tolerance: float = 0.05) -> TimelineComparison:
    return compare_timelines(spans, RESULT, tolerance=tolerance)


def with_span(place: int, *spans: MeasuredSpan) -> list[MeasuredSpan]:
    """The timeline with others in the place of one span."""
    return [*SPANS[:place], *spans, *SPANS[place + 1 :]]


def delayed_from(place: int, by: int) -> list[MeasuredSpan]:
    """The timeline with one span, and all behind it on its stream, later."""
    first = SPANS[place]
    return [
        span._replace(start_ns=span.start_ns + by, end_ns=span.end_ns + by)
        if span.stream == first.stream and span.start_ns >= first.start_ns
        else span
        for span in SPANS
    ]


def first(timeline_comparison: TimelineComparison) -> Row:
    assert timeline_comparison.first_divergence is not None
    return timeline_comparison.first_divergence


def test_the_compared_timeline_has_copies_in_both_directions() -> None:
    assert [SPANS[place].bytes for place in OUT] == [1000, 2000, 3000]
    assert [span.bytes for span in SPANS if span.kind is MeasuredKind.COPY_H2D] == [3000, 2000, 1000]


def test_an_equal_timeline_does_not_diverge() -> None:
    result = compared(SPANS, tolerance=0)
    assert result.first_divergence is None
    assert result.is_same_order
    assert result.measured_ns == result.simulated_ns == STEP
    assert {row.offset_ns for row in result.rows} == {0}
    assert len(result.rows) == len(SPANS)
    assert divergence_text(result) == (
        "No divergence: the same order on every stream, starts within 0 ns; starts differ by at most 0 ns."
    )


def test_rows_are_the_measured_and_simulated_spans_by_stream() -> None:
    result = compared(SPANS)
    assert list(result.streams) == ["compute", "d2h", "h2d"]
    compute = result.streams["compute"].rows
    assert [row.simulated.name for row in compute if row.simulated] == [each.id for each in TRACE.kernels]
    assert [row.measured.op for row in compute if row.measured] == [each.op for each in TRACE.kernels]
    assert [row.position for row in compute] == list(range(len(TRACE.kernels)))
    sizes = {block.id: block.bytes for block in TRACE.blocks}
    out = [(row.measured, row.simulated) for row in result.streams["d2h"].rows]
    assert [(real.bytes, sizes[simulated.name]) for real, simulated in out if real and simulated] == [
        (1000, 1000),
        (2000, 2000),
        (3000, 3000),
    ]


def test_recomputations_are_compute() -> None:
    slow = NodeSpec("slow", NODE.gpu, LinkSpec("slow", d2h_bandwidth=10**8, h2d_bandwidth=10**8))
    result = simgpu.simulate(TRACE, slow, "joint", budget=8000)
    spans = as_if_measured(result)
    outcome = compare_timelines(spans, result)
    assert outcome.first_divergence is None
    kinds = [(row.simulated.kind, row.simulated.name) for row in outcome.streams["compute"].rows if row.simulated]
    assert kinds.count(("recompute", "F1")) == 1
    assert len(kinds) == len(TRACE.kernels) + 1
    without = [span for span in spans if span.call != kinds.index(("recompute", "F1"))]
    row = first(compare_timelines(without, result))
    assert (row.agreement, row.simulated and row.simulated.name) == (Agreement.ONLY_SIMULATED, "F1")


@given(PLACES)
def test_a_start_later_than_the_tolerance_is_a_divergence(place: int) -> None:
    tolerance = STEP // 10
    assert compared(delayed_from(place, tolerance), tolerance=0.1).first_divergence is None
    result = compared(delayed_from(place, 2 * tolerance), tolerance=0.1)
    row = first(result)
    assert (row.stream, row.agreement, row.offset_ns) == (SPANS[place].stream, Agreement.SAME, 2 * tolerance)
    assert row.measured is not None
    assert row.measured.start_ns == SPANS[place].start_ns + 2 * tolerance
    assert result.is_same_order


def test_starts_within_the_tolerance_do_not_diverge() -> None:
    result = compared(delayed_from(OUT[1], 1500), tolerance=0.05)
    assert result.tolerance_ns == 1500
    assert result.first_divergence is None
    assert first(compared(delayed_from(OUT[1], 1600))).offset_ns == 1600


@given(PLACES)
def test_a_missing_measured_event_is_a_divergence(place: int) -> None:
    """Of equal kernels in a row, any may be the missing one."""
    result = compared(with_span(place), tolerance=10.0)
    row = first(result)
    assert (row.stream, row.agreement) == (SPANS[place].stream, Agreement.ONLY_SIMULATED)
    assert row.simulated is not None
    assert (row.simulated.op, row.simulated.bytes) == (SPANS[place].op, SPANS[place].bytes)
    assert sum(each.agreement is not Agreement.SAME for each in result.rows) == 1
    assert not result.is_same_order


@given(PLACES)
def test_a_copy_that_is_not_simulated_is_a_divergence(place: int) -> None:
    at = SPANS[place].end_ns
    extra = MeasuredSpan("d2h", MeasuredKind.COPY_D2H, "Memcpy DtoH", "", -1, at, at, 4)
    result = compared([*SPANS, extra], tolerance=10.0)
    row = first(result)
    assert (row.stream, row.agreement, row.measured and row.measured.bytes) == ("d2h", Agreement.ONLY_MEASURED, 4)
    assert sum(each.agreement is not Agreement.SAME for each in result.rows) == 1


def test_a_copy_of_another_size_is_paired_with_the_simulated_one() -> None:
    changed = SPANS[OUT[1]]._replace(bytes=2048)
    result = compared(with_span(OUT[1], changed))
    row = first(result)
    assert (row.stream, row.position, row.agreement) == ("d2h", 1, Agreement.DIFFERENT)
    assert divergence_text(result) == (
        "First divergence at 1 us, d2h, event 1: measured copy_d2h Memcpy of 2 KiB, simulated copy_d2h x2 of 1.953 KiB."
    )


def test_another_operator_is_paired_with_the_simulated_one() -> None:
    place = next(place for place, span in enumerate(SPANS) if span.op == "conv2d_backward")
    other = kernel("aten::mm", SPANS[place].call, SPANS[place].start_ns, SPANS[place].end_ns)
    result = compared(with_span(place, other))
    row = first(result)
    assert (row.stream, row.position, row.agreement) == ("compute", 4, Agreement.DIFFERENT)
    assert divergence_text(result) == (
        "First divergence at 10 us, compute, event 4: measured aten::mm, simulated conv2d_backward (compute B4)."
    )


def test_the_first_divergence_is_the_earliest_of_all_streams() -> None:
    late = [
        span._replace(bytes=5) if span.kind is MeasuredKind.COPY_H2D else span for span in delayed_from(OUT[2], 9000)
    ]
    result = compared(late)
    assert first(result).stream == "d2h"
    assert divergence_text(result) == (
        "First divergence at 3 us, d2h, event 2: copy_d2h x3 of 2.93 KiB starts 9 us later than simulated. "
        "The order first differs at 10 us, h2d, event 0."
    )


def test_a_missing_event_is_described() -> None:
    result = compared(with_span(OUT[0]))
    assert divergence_text(result) == ("First divergence at 0 ns, d2h, event 0: only simulated: copy_d2h x1 of 1000 B.")


def test_time_counts_from_the_first_start_of_either_side() -> None:
    later = [span._replace(start_ns=span.start_ns + 77, end_ns=span.end_ns + 77) for span in SPANS]
    assert compared(later, tolerance=0).first_divergence is None


def test_the_frame_has_both_events_of_each_row() -> None:
    frame = compared(with_span(OUT[0])).as_frame()
    assert len(frame) == len(SPANS)
    lone = frame[frame["agreement"] == "only_simulated"].iloc[0]
    assert (lone["stream"], lone["position"], lone["simulated_name"], lone["simulated_bytes"]) == ("d2h", 0, "x1", 1000)
    assert frame.loc[lone.name, ["offset_ns", "measured_start_ns", "measured_bytes"]].isna().all()
    same = frame[frame["agreement"] == "same"]
    assert (same["measured_start_ns"] - same["simulated_start_ns"] == same["offset_ns"]).all()
    assert frame["measured_end_ns"].dtype == "Int64"


@pytest.mark.parametrize("spans", [[], SPANS[:1]])
def test_an_incomplete_timeline_is_compared(spans: list[MeasuredSpan]) -> None:
    result = compared(spans, tolerance=10.0)
    assert len(result.rows) == len(SPANS)
    assert sum(row.measured is not None for row in result.rows) == len(spans)


@given(st.lists(st.integers(0, 5000), min_size=8, max_size=8))
def test_calibrated_kernels_start_at_their_measured_times(gaps: list[int]) -> None:
    """Whatever the gaps: each is behind its kernel, and a step as long as its timeline is not scaled."""
    spans, at = [], 0
    for call, (each, gap) in enumerate(zip(TRACE.kernels, gaps, strict=True)):
        spans.append(kernel(each.op, call, at, at + each.duration_ns))
        at += each.duration_ns + gap
    times = durations(spans, match(spans, [each.op for each in TRACE.kernels]), spans[-1].end_ns)
    kernels = tuple(replace(each, duration_ns=ns) for each, ns in zip(TRACE.kernels, times, strict=True))
    result = compare_timelines(spans, simgpu.simulate(replace(TRACE, kernels=kernels), NODE, "none"), tolerance=0.0)
    assert result.first_divergence is None
    assert result.measured_ns == result.simulated_ns
