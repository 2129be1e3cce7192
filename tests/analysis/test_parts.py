"""The parts of HOME's figure 7: closed forms on chains, and a count nanosecond by nanosecond."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.analysis.breakdown import PARTS, breakdown, shown_parts
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import StreamId, is_compute
from simgpu.trace.chain import chain
from tests.timeline.hand_made import HandSpan, timeline_of

K = SpanKind
#: One byte a nanosecond, each way.
NODE = NodeSpec("even", GpuSpec("gpu", 10**6), LinkSpec("link", 10**9, 10**9))


def parts(timeline: Timeline, gpu: int = 0) -> dict[str, int]:
    """The parts that took any time."""
    return {name: time for name, time in breakdown(timeline, gpu=gpu).parts.items() if time}


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Forward and backward times and sizes of a few layers."""
    layers = draw(st.integers(1, 6))
    times = st.lists(st.integers(0, 50), min_size=layers, max_size=layers)
    return draw(times), draw(times), draw(st.lists(st.integers(1, 80), min_size=layers, max_size=layers))


@given(chains())
def test_a_chain_without_copies_only_computes(layers: tuple[list[int], list[int], list[int]]) -> None:
    forward, backward, sizes = layers
    for policy in ("ideal", "none"):
        result = simulate(chain(forward, backward, sizes), NODE, policy).metrics.breakdown
        assert result.parts == dict.fromkeys(PARTS, 0) | {"computation": sum(forward) + sum(backward)}


@given(chains())
def test_each_layer_overlaps_by_the_shorter_of_compute_and_copy(
    layers: tuple[list[int], list[int], list[int]],
) -> None:
    """Offload n runs next to forward n, prefetch n next to backward n + 1; a step is as long as its longer side."""
    forward, backward, sizes = layers
    steps = [*zip(forward, sizes[:-1], strict=False), *zip(backward[1:], sizes, strict=False)]
    result = simulate(chain(forward, backward, sizes), NODE, "vdnn").metrics.breakdown.parts
    assert result["overlap"] == sum(min(step) for step in steps)
    assert result["computation"] == sum(forward) + sum(backward) - result["overlap"]
    assert result["swapping"] == sum(max(0, copied - computed) for computed, copied in steps)
    assert result["recomputation"] == result["codec"] == result["other"] == 0


def test_copies_in_both_directions_at_once_overlap_once() -> None:
    spans: list[HandSpan] = [
        ("compute", K.COMPUTE, "a", 0, 10),
        ("d2h", "copy_d2h", "x", 1, 6, 5, ""),
        ("h2d", "copy_h2d", "y", 4, 9, 5, ""),
    ]
    timeline = timeline_of(spans, [10])
    assert parts(timeline) == {"computation": 2, "overlap": 8}
    result = breakdown(timeline)
    assert result.copies["d2h"].hidden + result.copies["h2d"].hidden == 10, (
        "their sum would count two nanoseconds twice"
    )


def test_recomputation_and_codecs_are_separate_parts_with_or_without_copies() -> None:
    spans: list[HandSpan] = [
        ("compute", K.COMPUTE, "a", 0, 4),
        ("compute", K.RECOMPUTE, "a", 4, 9),
        ("compute", K.DECODE, "x", 9, 11),
        ("compute", "stall_device_memory", "b", 11, 14),
        ("compute", K.COMPUTE, "b", 14, 15),
        ("d2h", "copy_d2h", "x", 2, 14, 5, ""),
    ]
    assert parts(timeline_of(spans, [15])) == {
        "computation": 3,
        "overlap": 2,
        "swapping": 3,
        "recomputation": 5,
        "codec": 2,
    }


def test_copies_of_another_gpu_do_not_count_as_overlap() -> None:
    streams = ("compute", "d2h", "gpu1.compute", "gpu1.d2h")
    spans: list[HandSpan] = [
        ("compute", K.COMPUTE, "a", 0, 5),
        ("compute", K.STALL_EVENT, "b", 5, 8, 0, "gpu1.compute"),
        ("gpu1.compute", K.COMPUTE, "b", 0, 8),
        ("gpu1.d2h", "copy_d2h", "x", 1, 4, 3, ""),
    ]
    timeline = timeline_of(spans, [8], streams=streams)
    assert parts(timeline) == {"computation": 5, "other": 3}
    assert parts(timeline, gpu=1) == {"computation": 5, "overlap": 3}


def test_empty_parts_are_shown_only_if_they_are_standard() -> None:
    nothing = dict.fromkeys(PARTS, 0)
    assert shown_parts([]) == shown_parts([nothing]) == ("computation", "overlap", "swapping", "recomputation")
    every = [nothing, *(nothing | {name: 1} for name in ("other", "codec", "launches"))]
    assert shown_parts(every) == PARTS


# An independent reference: every nanosecond of every stream, by the words of the docstring alone.


def _slowly(timeline: Timeline, gpu: int) -> Counter[str]:
    count: Counter[str] = Counter()
    for instant in range(*timeline.window(-1)):
        now = [span for span in timeline if span.start_ns <= instant < span.end_ns]
        own = [span for span in now if StreamId.of(span.stream).gpu == gpu]
        running = {span.kind for span in own if is_compute(span.stream)}
        if K.COMPUTE in running:
            copied = any(span.kind is SpanKind.COPY for span in own)
            count["overlap" if copied else "computation"] += 1
        elif K.RECOMPUTE in running:
            count["recomputation"] += 1
        elif running & {K.ENCODE, K.DECODE}:
            count["codec"] += 1
        else:
            count["idle"] += 1
    return count


_DOES = {
    "compute": (K.COMPUTE, K.COMPUTE, K.RECOMPUTE, K.ENCODE, K.DECODE, "stall_device_memory"),
    "d2h": ("copy_d2h", "stall_host_memory"),
    "h2d": ("copy_h2d", "stall_device_memory"),
    "data": ("copy_d2h", "copy_h2d"),
}
_SETS = (
    ("compute", "d2h", "h2d"),
    ("compute", "compute1", "d2h", "h2d"),
    ("compute", "data"),
    ("compute", "h2d", "gpu1.compute", "gpu1.compute1", "gpu1.d2h"),
)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Small timelines of one to three compute streams on one or two GPUs, in one or two iterations."""
    streams = draw(st.sampled_from(_SETS))
    spans: list[HandSpan] = []
    for stream in streams:
        at = 0
        for number in range(draw(st.integers(0, 7))):
            at += draw(st.integers(0, 3))
            length = draw(st.integers(0, 7))
            kind = draw(st.sampled_from(_DOES[StreamId.of(stream).role]))
            spans.append((stream, kind, f"{stream}{number}", at, at + length))
            at += length
    return timeline_of(spans, sorted(draw(st.lists(st.integers(0, 40), min_size=1, max_size=2))), streams=streams)


@given(timelines(), st.sampled_from([0, 1]))
def test_parts_equal_a_count_nanosecond_by_nanosecond_and_add_up(timeline: Timeline, gpu: int) -> None:
    result, slow = breakdown(timeline, gpu=gpu).parts, _slowly(timeline, gpu)
    assert tuple(result) == PARTS
    start, end = timeline.window(-1)
    assert sum(result.values()) == end - start
    assert result["swapping"] + result["other"] == slow.pop("idle", 0)
    assert {name: time for name, time in result.items() if time and name in PARTS[:2] + PARTS[3:5]} == slow


@pytest.mark.parametrize("waits_for", ["d2h", "h2d", "host"])
def test_waits_for_copies_memory_and_the_host_count_as_swapping(waits_for: str) -> None:
    work = {"d2h": "copy_d2h", "h2d": "copy_h2d", "host": K.DECODE}[waits_for]
    spans: list[HandSpan] = [
        ("compute", K.STALL_EVENT, "x", 0, 4, 0, waits_for),
        ("compute", "stall_device_memory", "a", 4, 6),
        ("compute", K.COMPUTE, "a", 6, 7),
        (waits_for, work, "x", 0, 4, 4, ""),
    ]
    assert parts(timeline_of(spans, [7])) == {"computation": 1, "swapping": 6}
