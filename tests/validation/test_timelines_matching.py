"""Calls on the device next to the kernels of a trace, and a step's time apportioned out to them."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.trace.entries import apportioned
from simgpu.validation.calibration import durations
from simgpu.validation.measured import MeasuredKind, MeasuredSpan
from simgpu.validation.timelines.matching import aligned, calls_of, match, matching_text
from tests.validation.example_timelines import kernel, one_after_another

OPS = st.lists(st.sampled_from(["aten::mm", "aten::relu", "aten::sum", "aten::mul"]), max_size=12)


def longest(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence, straight from its definition."""
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + longest(one[1:], other[1:])
    return max(longest(one[1:], other), longest(one, other[1:]))


@given(OPS)
def test_equal_orders_match_one_to_one(ops: list[str]) -> None:
    result = match(one_after_another(ops), ops)
    assert result.pairs == tuple((place, place) for place in range(len(ops)))
    assert result.is_complete
    assert result.unmatched_calls == result.unmatched_positions == ()


@given(OPS, st.data())
def test_an_unexpected_operator_is_the_only_unmatched_call(ops: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(ops)))
    result = match(one_after_another([*ops[:place], "aten::copy_", *ops[place:]]), ops)
    assert result.unmatched_calls == (place,)
    assert result.unmatched_positions == ()
    assert result.divergence == place
    assert [position for _, position in result.pairs] == list(range(len(ops)))


@given(OPS, st.data())
def test_an_operator_the_device_has_not_is_the_only_one_unmatched(ops: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(ops)))
    result = match(one_after_another(ops), [*ops[:place], "aten::zero_", *ops[place:]])
    assert result.unmatched_positions == (place,)
    assert result.unmatched_calls == ()
    assert result.divergence == place


@given(OPS, OPS)
def test_the_matching_in_order_is_as_large_as_possible(one: list[str], other: list[str]) -> None:
    pairs = aligned(one, other)
    assert len(pairs) == longest(one, other)
    assert all(one[i] == other[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(pairs))


@given(OPS, OPS)
def test_the_first_parting_is_where_the_orders_first_differ(one: list[str], other: list[str]) -> None:
    place = match(one_after_another(one), other).divergence
    if place is None:
        assert one == other
    else:
        assert one[:place] == other[:place]
        assert one[place : place + 1] != other[place : place + 1]


def test_recomputations_among_two_thousand_operators_are_the_only_ones_unmatched() -> None:
    built = random.Random(3)
    ops = ["aten::mm", "aten::gelu", "aten::add", "aten::native_layer_norm"]
    blocks = [[built.choice(ops) for _ in range(100)] for _ in range(12)]
    forward = [op for block in blocks for op in block]
    backward = [[f"{op}_backward" for op in reversed(block)] for block in reversed(blocks)]
    again = zip(reversed(blocks), backward, strict=True)
    pairs = aligned(
        [*forward, *(op for both in again for part in both for op in part)],
        [*forward, *(op for block in backward for op in block)],
    )
    assert [place for _, place in pairs] == list(range(2400))


def test_working_in_place_is_the_same_work() -> None:
    result = match(one_after_another(["aten::mm", "aten::add"]), ["aten::mm", "aten::add_"])
    assert result.is_complete


def test_a_call_is_all_its_kernels_with_the_gaps_between_them() -> None:
    spans = [kernel("aten::mm", 0, 0, 2), kernel("aten::mm", 0, 5, 6), kernel("aten::mm", 1, 8, 9)]
    copy = MeasuredSpan("d2h", MeasuredKind.COPY_D2H, "Memcpy", "", -1, 1, 99, 64)
    assert [(call.start_ns, call.end_ns) for call in calls_of([*reversed(spans), copy])] == [(0, 6), (8, 9)]


# --- a step's time apportioned out ----------------------------------------------------------------------------------


@st.composite
def timelines(draw: st.DrawFn) -> tuple[list[MeasuredSpan], list[str]]:
    """Calls with gaps between them, some without a kernel in the trace, and the trace's operators."""
    spans, expected, at = [], [], 0
    for call in range(draw(st.integers(1, 8))):
        at += draw(st.integers(0, 9))
        takes, is_surplus = draw(st.integers(0, 9)), draw(st.booleans())
        op = "aten::copy_" if is_surplus and call else f"aten::op{call}"
        expected += [op] if op != "aten::copy_" else []
        spans.append(kernel(op, call, at, at + takes))
        at += takes
    return spans, expected


@given(timelines(), st.integers(0, 200))
def test_durations_add_up_to_the_step(built: tuple[list[MeasuredSpan], list[str]], step: int) -> None:
    spans, expected = built
    result = durations(spans, match(spans, expected), step)
    assert len(result) == len(expected)
    assert sum(result) == step
    assert min(result) >= 0


@given(timelines(), st.integers(0, 100))
def test_calls_keep_their_times_and_gaps_their_proportion(
    built: tuple[list[MeasuredSpan], list[str]], more: int
) -> None:
    """Against exact fractions, from each call's start to the next expected one's."""
    spans, expected = built
    stored = [span for span in spans if span.op != "aten::copy_"]
    busy = [span.end_ns - span.start_ns for span in stored]
    starts = [span.start_ns for span in stored]
    end = max(span.end_ns for span in spans)
    gaps = [after - span.end_ns for after, span in zip([*starts[1:], end], stored, strict=True)]
    result = durations(spans, match(spans, expected), sum(busy) + more)
    share = Fraction(more, sum(gaps)) if sum(gaps) else Fraction(0)
    exact = [device + gap * share for device, gap in zip(busy, gaps, strict=True)]
    if not sum(gaps):
        exact[-1] += more
    assert all(abs(time - wanted) < 1 for time, wanted in zip(result, exact, strict=True))


@given(timelines())
def test_gaps_are_not_scaled_if_the_step_is_as_long_as_the_timeline(
    built: tuple[list[MeasuredSpan], list[str]],
) -> None:
    spans, expected = built
    first = [span.start_ns for span in spans if span.op != "aten::copy_"]
    end = max(span.end_ns for span in spans)
    result = durations(spans, match(spans, expected), end - first[0])
    assert result == tuple(after - start for start, after in zip(first, [*first[1:], end], strict=True))


def test_a_step_shorter_than_its_calls_scales_them_and_has_no_gaps() -> None:
    spans = [kernel("aten::a", 0, 0, 20), kernel("aten::b", 1, 25, 35)]
    assert durations(spans, match(spans, ["aten::a", "aten::b"]), 15) == (10, 5)


def test_a_surplus_call_counts_into_the_gap_before_it() -> None:
    spans = [kernel("aten::a", 0, 0, 10), kernel("aten::copy_", 1, 12, 18), kernel("aten::b", 2, 20, 30)]
    assert durations(spans, match(spans, ["aten::a", "aten::b"]), 30) == (20, 10)


def test_time_before_the_first_kernel_belongs_to_the_last_gap() -> None:
    copy = MeasuredSpan("h2d", MeasuredKind.COPY_H2D, "Memcpy", "", -1, 0, 4, 64)
    spans = [copy, kernel("aten::a", 0, 5, 10), kernel("aten::b", 1, 12, 20)]
    assert durations(spans, match(spans, ["aten::a", "aten::b"]), 20) == (7, 13)


def test_common_time_is_counted_once() -> None:
    spans = [kernel("aten::a", 0, 0, 10), kernel("aten::b", 1, 8, 12), kernel("aten::c", 2, 9, 11)]
    assert durations(spans, match(spans, ["aten::a", "aten::b", "aten::c"]), 12) == (10, 2, 0)


def test_a_kernel_without_a_call_takes_no_time_and_is_reported() -> None:
    spans = one_after_another(["aten::a", "aten::b"])
    result = match(spans, ["aten::a", "aten::zero_", "aten::b"])
    assert durations(spans, result, 5) == (3, 0, 2)
    assert matching_text(result) == (
        "1 of 3 kernels have no call on the device, and 0 of 2 calls have no kernel. The first difference is at "
        "position 1: the device ran aten::b, expected aten::zero_."
    )


def test_a_timeline_of_another_model_is_refused() -> None:
    spans = one_after_another(["aten::a"])
    with pytest.raises(InputError, match="no operator call on the device matches a kernel of the trace"):
        durations(spans, match(spans, ["aten::b"]), 5)


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1).filter(any))
def test_apportioned_parts_are_within_one_of_their_share(total: int, weights: list[int]) -> None:
    result = apportioned(weights, total)
    assert sum(result) == total
    assert all(
        abs(part * sum(weights) - total * weight) < sum(weights) for part, weight in zip(result, weights, strict=True)
    )
