"""Calibration from machine, trace and plain run: durations, links, reserved memory, and no use of managed runs."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.hardware.spec import Duplex
from simgpu.trace.chain import chain
from simgpu.trace.model import Block, BlockKind
from simgpu.validation.calibration import (
    bidirectional_bandwidths,
    blocking_latency,
    calibrate,
    duplex_of,
    persistent_bytes,
)
from simgpu.validation.comparison import compare_recording
from simgpu.validation.measured import Copies, MeasuredKind, MeasuredRun, MeasuredSpan, Method
from tests.validation.example_recording import COPIES, MACHINE, MIB, example_case, example_trace, recording_of

RATES = st.integers(1, 10**12)


def plain(*step_ns: int, initial: int = 0, spans: tuple[MeasuredSpan, ...] = ()) -> MeasuredRun:
    return MeasuredRun(Method.PLAIN, {}, step_ns, initial, initial, 0, 0, spans)


def spans(*calls: tuple[str, int, int]) -> tuple[MeasuredSpan, ...]:
    return tuple(
        MeasuredSpan("compute", MeasuredKind.KERNEL, op, op, number, start, end)
        for number, (op, start, end) in enumerate(calls)
    )


def times(result) -> list[int]:
    return [kernel.duration_ns for kernel in result.trace.kernels]


@given(st.integers(1, 10**12), st.lists(st.integers(0, 10**6), min_size=1, max_size=6).filter(any))
def test_without_a_timeline_trace_durations_are_scaled_to_the_median_step(step: int, own: list[int]) -> None:
    result = calibrate(MACHINE, chain(own, [0] * len(own), [100] * len(own)), plain(step))
    assert sum(times(result)) == step
    assert all(abs(time - step * mine / sum(own)) <= 1 for time, mine in zip(times(result), own, strict=False))


def test_with_a_timeline_kernels_keep_their_times_and_gaps_are_scaled():
    trace = chain([1, 1], [1, 1], [100, 100])
    calls = spans(("conv2d", 0, 10), ("conv2d", 14, 20), ("conv2d_backward", 20, 40), ("conv2d_backward", 46, 60))
    result = calibrate(MACHINE, trace, plain(55, 55, 90, spans=calls))  # 50 of kernels; gaps of 4 and 6 become 2 and 3
    assert times(result) == [12, 6, 23, 14]


def test_the_simulated_plain_step_equals_the_measured_one():
    case = example_case(methods=(Method.PLAIN,))
    slow = replace(case.runs[Method.PLAIN], step_ns=(90_000_007, 12_345_678, 12_345_679))
    result = compare_recording(recording_of(replace(case, runs={Method.PLAIN: slow})))
    assert result.runs[0].simulated is not None and result.runs[0].simulated.step_ns == 12_345_679


def test_recorded_starts_and_other_algorithms_are_of_another_clock_and_go():
    trace = example_trace()
    begun = replace(trace, kernels=tuple(replace(kernel, start_ns=7, iqr_ns=3) for kernel in trace.kernels))
    kernels = calibrate(MACHINE, begun, plain(1000)).trace.kernels
    assert {(kernel.start_ns, kernel.iqr_ns) for kernel in kernels} == {(None, None)}


def test_kernels_that_the_device_never_called_take_no_time_and_are_counted():
    result = calibrate(MACHINE, chain([1], [1], [100]), plain(50, spans=spans(("conv2d", 0, 10))))
    assert (times(result), result.unmatched) == ([50, 0], 1)
    assert "1 of 2 kernels have no call" in result.times_text


@pytest.mark.parametrize(
    ("run", "what"),
    [(plain(50), "no kernel takes time"), (plain(50, spans=spans(("aten::mm", 0, 9))), "no operator call")],
)
def test_a_case_that_cannot_be_scaled_to_the_measured_step_is_refused(run: MeasuredRun, what: str) -> None:
    with pytest.raises(InputError, match=what):
        calibrate(MACHINE, chain([0], [0], [100]), run)


def test_the_link_is_the_measured_one_and_waits_as_long_as_was_measured():
    result = calibrate(MACHINE, example_trace(), plain(1000))
    link = result.node.link
    assert (link.d2h_bandwidth, link.h2d_bandwidth, link.latency_ns) == (COPIES.d2h, COPIES.h2d, COPIES.latency_ns)
    assert result.blocking_node == replace(result.node, link=replace(link, latency_ns=blocking_latency(MACHINE)))
    gpu = result.node.gpu
    assert (gpu.memory, gpu.alignment, gpu.copy_engines) == (MACHINE.memory, MACHINE.alignment, MACHINE.copy_engines)


@pytest.mark.parametrize(
    ("bidirectional_d2h", "bidirectional_h2d", "duplex"),
    [
        (25, 24, Duplex.FULL),
        (12, 12, Duplex.HALF),
        # Nearer as a ratio, not as a difference: 18 is 1.39 times less than 25, and 1.44 times as much as 12.5.
        (18, 18, Duplex.FULL),
        (17, 17, Duplex.HALF),
        (25, 12, Duplex.FULL),
    ],
)
def test_the_duplex_model_is_the_closest_to_the_measurement(
    bidirectional_d2h: int, bidirectional_h2d: int, duplex: Duplex
) -> None:
    giga = 10**9
    copies = Copies(25 * giga, 24 * giga, bidirectional_d2h * giga, bidirectional_h2d * giga, 0, 0)
    assert duplex_of(copies) is duplex
    assert calibrate(replace(MACHINE, copies=copies), example_trace(), plain(1000)).node.link.duplex is duplex


@given(RATES, RATES)
def test_modelled_bidirectional_bandwidths(d2h: int, h2d: int) -> None:
    copies = Copies(d2h, h2d, d2h, h2d, 0, 0)
    assert bidirectional_bandwidths(copies, Duplex.FULL) == (d2h, h2d)
    assert duplex_of(copies) is Duplex.FULL
    shared = bidirectional_bandwidths(copies, Duplex.HALF)
    capacity, smaller = max(d2h, h2d), min(d2h, h2d)
    half = capacity // 2
    # Max-min fair: half each, unless the slower way cannot use its half, of which the other then has the rest.
    assert sorted(shared) == ([smaller, capacity - smaller] if smaller < half else [half, half])


def test_persistent_blocks_are_counted_as_the_allocator_rounds_them():
    blocks = (Block("w", 513, BlockKind.WEIGHT, persistent=True), Block("x", 9, BlockKind.ACTIVATION))
    trace = replace(chain([1], [1], [512]), blocks=(*chain([1], [1], [512]).blocks, *blocks))
    assert persistent_bytes(trace, 512) == 512 + 1024
    assert persistent_bytes(trace, 1) == 512 + 513


@given(st.integers(0, 10**9))
def test_unlisted_memory_is_reserved_and_unavailable(more: int) -> None:
    trace = example_trace()
    result = calibrate(MACHINE, trace, plain(1000, initial=persistent_bytes(trace, 512) + more))
    assert result.reserved == more
    assert result.node.budget == MACHINE.memory - more


def test_reserved_memory_may_be_negative():
    trace = example_trace()
    result = calibrate(MACHINE, trace, plain(1000, initial=persistent_bytes(trace, 512) - MIB))
    assert (result.reserved, result.node.budget) == (-MIB, MACHINE.memory)
    assert "1 MiB more persistent memory than a step starts with" in result.reserved_text


def test_calibration_is_given_the_machine_the_trace_and_the_plain_run_and_nothing_else():
    assert list(inspect.signature(calibrate).parameters) == ["machine", "trace", "plain"]


def test_counterparts_do_not_depend_on_the_measured_managed_runs():
    case = example_case()
    other = {
        method: run
        if method is Method.PLAIN
        else replace(
            run, step_ns=(1, 2, 3), peak_bytes=5, initial_bytes=7, d2h_bytes=11, h2d_bytes=13, spans=run.spans[:2]
        )
        for method, run in case.runs.items()
    }
    first, second = (compare_recording(recording_of(each)) for each in (case, replace(case, runs=other)))
    assert [run.simulated for run in first.runs] == [run.simulated for run in second.runs]
    assert first.cases[0].calibration == second.cases[0].calibration
