"""The breakdown of an iteration: exact on hand-made timelines, equal to a slow count instant by instant."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.analysis.breakdown import Breakdown, CopyTime, breakdown
from simgpu.timeline.model import SpanKind, Timeline
from tests.timeline.hand_made import HandSpan, kind_and_resource, layered_run, timeline_of

K = SpanKind
NO_STALL = {"d2h": 0, "h2d": 0}
NO_COPIES = dict.fromkeys(NO_STALL, CopyTime(0, 0))


def parts(timeline: Timeline, iteration: int = -1) -> dict[str, int]:
    """The causes that took any time."""
    result = breakdown(timeline, iteration)
    names = ("compute", "recompute", "codec", "stalled_memory", "stalled_host", "stalled_launch", "stalled_other")
    names += ("stalled_collectives",)
    causes = {name: getattr(result, name) for name in names}
    causes |= {f"stalled_{engine}": ns for engine, ns in result.stalled_copies.items()}
    return {name: ns for name, ns in causes.items() if ns}


def test_a_single_kernel_has_only_compute_time() -> None:
    timeline = timeline_of([("compute", K.COMPUTE, "a", 0, 7)], [7])
    assert breakdown(timeline) == Breakdown(7, 0, 0, NO_STALL, 0, 0, 0, NO_COPIES, 0)


def test_intervals_are_half_open() -> None:
    spans = [
        ("compute", K.COMPUTE, "a", 0, 4),
        ("compute", K.RECOMPUTE, "b", 4, 9),
        ("compute", K.ENCODE, "c", 9, 10),
        ("d2h", "copy_d2h", "x", 4, 9, 5, ""),
        ("h2d", "copy_h2d", "x", 9, 10, 5, ""),
    ]
    timeline = timeline_of(spans, [10])
    assert parts(timeline) == {"compute": 4, "recompute": 5, "codec": 1}
    assert breakdown(timeline).copies["d2h"] == CopyTime(hidden=5, exposed=0)
    assert breakdown(timeline).copies["h2d"] == CopyTime(hidden=1, exposed=0)


def test_spans_are_clipped_to_iterations_and_parts_add_up() -> None:
    spans = [
        ("compute", K.COMPUTE, "a", 0, 10),
        ("d2h", "copy_d2h", "x", 8, 15, 7, ""),
        ("compute", K.STALL_EVENT, "x", 10, 15, 0, "d2h"),
        ("compute", K.COMPUTE, "b", 15, 20),
        ("h2d", "copy_h2d", "x", 18, 26, 8, ""),
    ]
    timeline = timeline_of(spans, [10, 20])
    assert breakdown(timeline, 0) == Breakdown(10, 0, 0, NO_STALL, 0, 0, 0, NO_COPIES | {"d2h": CopyTime(2, 0)}, 2)
    assert breakdown(timeline, 1) == Breakdown(
        *(5, 0, 0, {"d2h": 5, "h2d": 0}, 0, 0, 0), {"d2h": CopyTime(0, 5), "h2d": CopyTime(2, 0)}, 2
    )


def test_spans_of_zero_length_have_no_effect() -> None:
    spans: list[HandSpan] = [("compute", K.COMPUTE, "a", 0, 5), ("compute", K.COMPUTE, "c", 5, 9)]
    empty: list[HandSpan] = [("compute", K.COMPUTE, "b", at, at) for at in (0, 3, 5, 9)]
    assert breakdown(timeline_of(spans + empty, [9])) == breakdown(timeline_of(spans, [9]))


def test_an_iteration_of_zero_length_has_an_empty_breakdown() -> None:
    timeline = timeline_of([("compute", K.COMPUTE, "a", 0, 0)], [0])
    assert breakdown(timeline).total == 0


@pytest.mark.parametrize(
    ("awaited", "expected"),
    [
        pytest.param([("d2h", "copy_d2h", "x", 2, 10, 1, "")], {"stalled_d2h": 8}, id="copying-out"),
        pytest.param([("d2h", "stall_host_memory", "x", 2, 10)], {"stalled_memory": 8}, id="wants-host-memory"),
        pytest.param([], {"stalled_d2h": 8}, id="shows-nothing"),
        pytest.param(
            [("d2h", K.STALL_ENGINE, "x", 2, 10), ("h2d", "copy_h2d", "y", 2, 6, 1, "")],
            {"stalled_h2d": 4, "stalled_d2h": 4},
            id="engine-held-by-the-other-direction-half-the-time",
        ),
        pytest.param(
            [("d2h", K.STALL_EVENT, "x", 2, 10, 0, "h2d"), ("h2d", "copy_h2d", "x", 1, 10, 1, "")],
            {"stalled_h2d": 8},
            id="waits-for-the-other-copy-stream",
        ),
        pytest.param(
            [("d2h", K.STALL_EVENT, "x", 2, 10, 0, "h2d"), ("h2d", "stall_device_memory", "x", 2, 10)],
            {"stalled_memory": 8},
            id="waits-for-one-that-wants-device-memory",
        ),
        pytest.param(
            [("d2h", K.STALL_EVENT, "x", 2, 10, 0, "host"), ("host", K.DECODE, "x", 2, 10)],
            {"stalled_host": 8},
            id="waits-for-a-codec-on-the-host",
        ),
    ],
)
def test_a_stall_is_attributed_to_the_end_of_its_chain_of_waits(
    awaited: list[HandSpan], expected: dict[str, int]
) -> None:
    spans = [
        ("compute", K.COMPUTE, "a", 0, 2),
        ("compute", K.STALL_EVENT, "x", 2, 10, 0, "d2h"),
        ("compute", K.COMPUTE, "b", 10, 12),
        *awaited,
    ]
    assert parts(timeline_of(spans, [12])) == {"compute": 4, **expected}


def test_a_cycle_of_waiting_streams_ends_the_search_for_a_cause() -> None:
    spans = [
        ("compute", K.STALL_EVENT, "x", 0, 10, 0, "d2h"),
        ("d2h", K.STALL_EVENT, "y", 0, 10, 0, "compute"),
    ]
    assert parts(timeline_of(spans, [10])) == {"stalled_d2h": 10}


def test_memory_stalls_and_unexplained_time_are_separate_parts() -> None:
    spans = [("compute", "stall_device_memory", "a", 0, 6), ("compute", K.COMPUTE, "a", 6, 8)]
    assert parts(timeline_of(spans, [10])) == {"stalled_memory": 6, "compute": 2, "stalled_other": 2}


def test_with_two_compute_streams_work_has_priority_over_stalls() -> None:
    streams = ("compute", "compute1", "d2h", "h2d")
    spans = [
        ("compute", K.STALL_EVENT, "x", 0, 6, 0, "d2h"),
        ("compute1", K.COMPUTE, "a", 0, 2),
        ("compute1", K.DECODE, "x", 2, 3),
        ("compute1", "stall_device_memory", "b", 3, 8),
        ("d2h", "copy_d2h", "x", 1, 6, 1, ""),
    ]
    timeline = timeline_of(spans, [8], streams=streams)
    assert parts(timeline) == {"compute": 2, "codec": 1, "stalled_d2h": 3, "stalled_memory": 2}
    assert breakdown(timeline).copies["d2h"] == CopyTime(hidden=2, exposed=3)


def test_overlapping_spans_on_one_stream_are_refused() -> None:
    spans = [("compute", K.COMPUTE, "a", 0, 5), ("compute", K.COMPUTE, "b", 4, 8)]
    with pytest.raises(ValueError, match="'compute' does two things at once at 4 ns"):
        breakdown(timeline_of(spans, [8]))


def test_an_unknown_iteration_is_refused() -> None:
    with pytest.raises(IndexError):
        breakdown(timeline_of([("compute", K.COMPUTE, "a", 0, 5)], [5]), 1)


def test_a_layered_run_has_no_unexplained_time() -> None:
    timeline = layered_run()
    for iteration in (0, 1):
        start, end = timeline.window(iteration)
        result = breakdown(timeline, iteration)
        assert result.total == end - start
        assert result.stalled_copies["d2h"] > 0
        assert result.stalled_copies["h2d"] > 0
        assert result.stalled_memory == result.stalled_other == 0
        assert result.stalled_copies["d2h"] == result.copies["d2h"].exposed
        assert result.stalled_copies["h2d"] == result.copies["h2d"].exposed


# An independent reference: plain Python, one nanosecond at a time, written from the rule alone.


def _at(rows: list[tuple[str, str, int, int, str]], stream: str, instant: int) -> tuple[str, str] | None:
    return next(
        ((kind, cause) for name, kind, start, end, cause in rows if name == stream and start <= instant < end), None
    )


def _owner(rows: list[tuple[str, str, int, int, str]], streams: tuple[str, ...], instant: int) -> str:
    now = {stream: _at(rows, stream, instant) for stream in streams}
    running = {now[s][0] for s in streams if s.startswith("compute") and now[s]}
    for kind, field in (("compute", "compute"), ("recompute", "recompute"), ("encode", "codec"), ("decode", "codec")):
        if kind in running:
            return field
    here = next((s for s in streams if s.startswith("compute") and now[s] and now[s][0].startswith("stall")), None)
    answer = "stalled_other"
    for _ in streams:
        if here is None:
            break
        if here in ("d2h", "h2d"):
            answer = "stalled_d2h" if here == "d2h" else "stalled_h2d"
        kind, cause = now[here] or (None, "")
        if kind in ("copy_d2h", "copy_h2d"):
            return "stalled_d2h" if kind == "copy_d2h" else "stalled_h2d"
        if kind in ("stall_device_memory", "stall_host_memory"):
            return "stalled_memory"
        if kind in ("encode", "decode"):
            return "stalled_host"
        if kind == "compute" and here == "collectives":
            return "stalled_collectives"
        if kind == "stall_launch":
            return "stalled_launch"
        if kind == "stall_engine":
            others = [now[s][0] for s in streams if s != here and now[s]]
            holder = next((kind for kind in others if kind in ("copy_d2h", "copy_h2d")), None)
            return {"copy_d2h": "stalled_d2h", "copy_h2d": "stalled_h2d"}.get(holder, answer)
        here = cause if kind == "stall_event" and cause else None
    return answer


def _slowly(timeline: Timeline, iteration: int) -> Breakdown:
    rows = [(s.stream, s.label, s.start_ns, s.end_ns, s.cause) for s in timeline]
    fields: Counter[str] = Counter()
    copies = {"copy_d2h": [0, 0], "copy_h2d": [0, 0]}
    for instant in range(*timeline.window(iteration)):
        owner = _owner(rows, timeline.streams, instant)
        fields[owner] += 1
        copying = any(kind in copies and start <= instant < end for _, kind, start, end, _ in rows)
        fields["overlap"] += owner == "compute" and copying
        for kind, counts in copies.items():
            if any(row[1] == kind and row[2] <= instant < row[3] for row in rows):
                counts[owner not in ("compute", "recompute", "codec")] += 1
    return Breakdown(
        *(fields[name] for name in ("compute", "recompute", "codec")),
        {engine: fields[f"stalled_{engine}"] for engine in ("d2h", "h2d")},
        *(fields[name] for name in ("stalled_memory", "stalled_host", "stalled_other")),
        {engine: CopyTime(*copies[f"copy_{engine}"]) for engine in ("d2h", "h2d")},
        fields["overlap"],
        fields["stalled_launch"],
        fields["stalled_collectives"],
    )


_STREAMS = ("compute", "compute1", "d2h", "h2d", "host", "collectives")
_KINDS = {
    "compute": (
        K.COMPUTE,
        K.RECOMPUTE,
        K.ENCODE,
        K.DECODE,
        K.STALL_EVENT,
        "stall_device_memory",
        K.STALL_ENGINE,
        K.STALL_LAUNCH,
    ),
    "d2h": ("copy_d2h", K.STALL_EVENT, "stall_host_memory", K.STALL_ENGINE),
    "h2d": ("copy_h2d", K.STALL_EVENT, "stall_device_memory", K.STALL_ENGINE),
    "host": (K.ENCODE, K.DECODE, K.STALL_EVENT),
    "collectives": (K.COMPUTE, K.STALL_EVENT, "stall_device_memory"),
}


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Random small timelines with one or two compute streams; spans of a stream never overlap."""
    streams = draw(st.sampled_from([_STREAMS, ("compute", "h2d", "d2h"), ("compute",)]))
    spans: list[HandSpan] = []
    for stream in streams:
        at = 0
        for number in range(draw(st.integers(0, 6))):
            at += draw(st.integers(0, 3))
            kind = draw(st.sampled_from(_KINDS[stream.rstrip("1")]))
            stalls = kind_and_resource(kind)[0].is_stall
            length = draw(st.integers(1 if stalls else 0, 7))
            waits = kind is K.STALL_EVENT
            cause = draw(st.sampled_from([s for s in streams if s != stream] or [""])) if waits else ""
            spans.append((stream, kind, f"{stream}{number}", at, at + length, 0, cause))
            at += length
    ends = sorted(draw(st.lists(st.integers(0, 40), min_size=1, max_size=3)))
    return timeline_of(spans, ends, streams=streams)


@given(timelines(), st.data())
def test_the_breakdown_equals_a_count_instant_by_instant(timeline: Timeline, data: st.DataObject) -> None:
    iteration = data.draw(st.integers(0, len(timeline.iteration_ends_ns) - 1))
    result = breakdown(timeline, iteration)
    assert result == _slowly(timeline, iteration)
    start, end = timeline.window(iteration)
    assert result.total == end - start
