"""Where two timelines diverge: the first event that differs, not its consequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.experiments.regression.divergence import first_difference
from simgpu.timeline.model import Span, SpanKind, kind_of
from simgpu.trace.model import Kernel, Phase
from tests.experiments.regression.examples import CHAIN, example_timings, longer, node

EVENTS = example_timings(policies=["vdnn"])["vdnn"].events


def span(stream: str, label: str, name: str, start: int, end: int, **more: Any) -> Span:
    kind, resource = kind_of(label) or (SpanKind.COMPUTE, "")
    return Span(0, stream, kind, name, start, end, 0, "", 0, resource)._replace(**more)


@pytest.mark.parametrize("policy", ["ideal", "none", "vdnn"])
@pytest.mark.parametrize("kernel", [kernel.id for kernel in CHAIN.kernels])
def test_a_kernel_that_takes_a_nanosecond_more_differs_first(kernel: str, policy: str) -> None:
    """Also if a copy stream started waiting for it earlier and now waits longer."""
    result = first_difference(example_timings()[policy].events, example_timings(longer(kernel))[policy].events)
    assert result is not None
    assert result.stored is not None
    assert result.now is not None
    assert (result.stream, result.stored.kind, result.stored.name) == ("compute", SpanKind.COMPUTE, kernel)
    assert result.fields == ("end_ns",)
    assert result.now.end_ns - result.stored.end_ns == 1
    assert result.at_ns == result.stored.end_ns


def test_with_a_slower_link_the_first_copy_differs_first() -> None:
    result = first_difference(EVENTS, example_timings(on=node(99 * 10**8), policies=["vdnn"])["vdnn"].events)
    assert result is not None
    assert result.stored is not None
    assert (result.stream, result.stored.label, result.stored.name, result.equal) == ("d2h", "copy_d2h", "x1", 0)
    assert result.before == ()


def test_with_slower_fetches_the_first_fetch_differs_first() -> None:
    slower = replace(node(), link=replace(node().link, h2d_bandwidth=99 * 10**8))
    result = first_difference(EVENTS, example_timings(on=slower, policies=["vdnn"])["vdnn"].events)
    assert result is not None
    assert result.stored is not None
    assert (result.stream, result.stored.label) == ("h2d", "copy_h2d")
    assert result.stored in EVENTS


def test_swapped_kernels_diverge_at_the_first_of_them() -> None:
    side = (
        Kernel("A", "relu", Phase.FORWARD, 100, ("x1",), (), "L1", pure=True),
        Kernel("B", "relu", Phase.FORWARD, 100, ("x1",), (), "L1", pure=True),
    )
    first, *rest = CHAIN.kernels
    orders = [replace(CHAIN, kernels=(first, *pair, *rest)) for pair in (side, side[::-1])]
    stored, now = (example_timings(trace, policies=["none"])["none"].events for trace in orders)
    result = first_difference(stored, now)
    assert result is not None
    assert result.stored is not None
    assert result.now is not None
    assert (result.stored.name, result.now.name, result.fields, result.equal) == ("A", "B", ("name",), 1)
    assert [event.name for event in result.before] == ["F1"]


def test_a_shorter_timeline_diverges_at_the_next_event_of_the_other() -> None:
    stored, now = (example_timings(policies=["none"], iterations=count)["none"].events for count in (3, 2))
    for one, other in ((stored, now), (now, stored)):
        result = first_difference(one, other)
        assert result is not None
        assert result.stored is None or result.now is None
        event = result.stored or result.now
        assert event == stored[len(now)]
        assert result.equal == len(now)
        assert result.before == now[-3:]
        assert result.fields == ()


COPY = span("d2h", "copy_d2h", "x", 0, 10), span("d2h", "copy_d2h", "x", 0, 11)
FETCH = span("h2d", "copy_h2d", "y", 0, 10), span("h2d", "copy_h2d", "y", 0, 11)
WAIT = span("compute", "stall_event", "", 0, 10), span("compute", "stall_event", "", 0, 11)
NEXT = span("compute", "compute", "k", 10, 20), span("compute", "compute", "k", 11, 21)


@pytest.mark.parametrize(
    ("pairs", "first"),
    [
        ((WAIT, COPY), COPY),  # work before waiting
        ((NEXT, FETCH), FETCH),  # what ends before what begins
        ((FETCH, COPY), COPY),  # streams in their order
    ],
)
def test_of_simultaneous_differences_the_cause_is_first(
    pairs: tuple[tuple[Span, Span], ...], first: tuple[Span, Span]
) -> None:
    result = first_difference([stored for stored, _ in pairs], [now for _, now in pairs])
    assert result is not None
    assert (result.stored, result.now, result.at_ns) == (*first, 10)


def test_a_wait_with_another_cause_diverges_at_its_end() -> None:
    """The cause of a wait is known at its end, so an earlier difference is reported as the reason."""
    stall, work = "stall_event", "compute"
    stored = (span("d2h", stall, "k1", 0, 50, cause="compute"), span("compute", work, "k1", 20, 50))
    now = (span("d2h", stall, "k2", 0, 60, cause="compute"), span("compute", work, "k2", 20, 60))
    result = first_difference(stored, now)
    assert result is not None
    assert (result.stream, result.at_ns, result.fields) == ("compute", 20, ("name", "end_ns"))


@given(st.integers(0, len(EVENTS) - 1), st.sampled_from(Span._fields), st.integers(1, 10**6))
def test_a_change_of_any_cell_is_detected_and_named(row: int, field: str, more: int) -> None:
    event = EVENTS[row]
    changed = event._replace(**{field: _other(getattr(event, field), more)})
    result = first_difference(EVENTS, (*EVENTS[:row], changed, *EVENTS[row + 1 :]))
    assert result is not None
    if field == "stream":  # one stream lacks the event, the other has one more
        assert changed == result.now or event == result.stored
    else:
        assert (result.stored, result.now) == (event, changed)
        assert result.fields == ("kind" if field == "resource" else field,)
        on_stream = [each for each in EVENTS[:row] if each.stream == event.stream]
        assert result.equal == len(on_stream)
        assert result.before == tuple(on_stream[-3:])


@given(st.permutations(range(len({event.stream for event in EVENTS}))))
def test_the_order_of_streams_at_one_instant_does_not_matter(order: list[int]) -> None:
    streams = sorted({event.stream for event in EVENTS})
    grouped = [event for place in order for event in EVENTS if event.stream == streams[place]]
    assert first_difference(EVENTS, grouped) is None


def _other(value: object, more: int) -> Any:
    match value:
        case SpanKind():
            return SpanKind((value + 1 + more % 7) % 8)
        case int():
            return value + more
        case "compute" | "d2h" | "h2d":
            return "host"
    return f"{value}{more}"
