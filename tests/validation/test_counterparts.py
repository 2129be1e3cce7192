"""Each method's policy, and what is read off its simulated run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.memory.transfer import stream_ns
from simgpu.policies.registry import describe, policy_names
from simgpu.validation.calibration import Calibration, calibrate, persistent_bytes
from simgpu.validation.comparison import POLICY_OF, Numbers, simulate_counterpart
from simgpu.validation.measured import MeasuredRun, Method
from tests.validation.example_recording import COPIES, MACHINE, MIB, SETTINGS, example_trace

MANAGED = [method for method in POLICY_OF if method is not Method.PLAIN]


def calibration(held: int = 3 * MIB, **machine: object) -> Calibration:
    trace, device = example_trace(), replace(MACHINE, **machine)
    before = persistent_bytes(trace, device.alignment) + held
    return calibrate(device, trace, MeasuredRun(Method.PLAIN, {}, (trace.compute_ns,), before, before, 0, 0))


@pytest.mark.parametrize("method", POLICY_OF)
def test_every_method_has_a_policy_whose_parameters_are_its_settings(method: Method) -> None:
    assert POLICY_OF[method] in policy_names()
    assert set(SETTINGS[method]) <= {each.name for each in describe(POLICY_OF[method]).parameters}


def test_the_plain_counterpart_has_the_computed_numbers():
    result = simulate_counterpart(calibration(), Method.PLAIN, {})
    assert result.numbers is not None and result.result is not None
    held = 3 * MIB + persistent_bytes(example_trace(), 512)
    peak = result.result.metrics.device_peak_used_bytes - persistent_bytes(example_trace(), 512)
    assert result.numbers == Numbers(example_trace().compute_ns, held + peak, 0, 0)


@pytest.mark.parametrize("method", POLICY_OF)
def test_reserved_memory_raises_the_peak_and_changes_nothing_else(method: Method) -> None:
    more, less = (simulate_counterpart(calibration(held), method, SETTINGS[method]).numbers for held in (5 * MIB, 0))
    assert more is not None and less is not None
    assert more == less._replace(peak_bytes=less.peak_bytes + 5 * MIB)


def test_save_on_cpu_waits_for_copies_out_to_return_and_for_the_next_launch_and_for_the_bytes_of_all():
    result = simulate_counterpart(calibration(), Method.SAVE_ON_CPU, {})
    assert result.result is not None and result.numbers is not None
    start, _ = result.result.timeline.window(-1)
    rates = {"copy_d2h": COPIES.d2h, "copy_h2d": COPIES.h2d}
    copies = [each for each in result.result.timeline if each.label in rates and each.start_ns >= start]
    assert {each.label for each in copies} == set(rates)
    bytes_alone = sum(stream_ns(each.bytes, rates[each.label]) for each in copies)
    count = sum(each.label == "copy_d2h" for each in copies)
    assert 2 * count == len(copies)
    waits = count * (COPIES.blocking_ns + MACHINE.launch_ns + COPIES.latency_ns)
    assert result.numbers.step_ns == example_trace().compute_ns + bytes_alone + waits


def test_on_a_cpu_the_host_waits_for_copies_in_both_directions():
    both, device = (simulate_counterpart(calibration(kind=kind), Method.SAVE_ON_CPU, {}) for kind in ("cpu", "cuda"))
    assert both.numbers is not None and device.numbers is not None and both.result is not None
    start, _ = both.result.timeline.window(-1)
    copies = [each for each in both.result.timeline if each.start_ns >= start and each.bytes]
    less = COPIES.blocking_ns - (COPIES.blocking_ns + MACHINE.launch_ns + COPIES.latency_ns) // 2
    assert both.numbers.step_ns - device.numbers.step_ns == len(copies) * less


def test_async_offload_copies_have_the_latency_of_asynchronous_copies():
    result = simulate_counterpart(calibration(), Method.ASYNC_OFFLOAD, SETTINGS[Method.ASYNC_OFFLOAD])
    assert result.result is not None
    copies = [each for each in result.result.timeline if each.label == "copy_d2h"]
    assert copies
    assert all(each.end_ns - each.start_ns == COPIES.latency_ns + stream_ns(each.bytes, COPIES.d2h) for each in copies)


@pytest.mark.parametrize("method", MANAGED)
def test_managed_counterparts_take_longer_than_the_plain_one(method: Method) -> None:
    result = simulate_counterpart(calibration(), method, SETTINGS[method]).numbers
    assert result is not None and result.step_ns > example_trace().compute_ns


def test_copied_bytes_are_those_of_the_last_iteration():
    result = simulate_counterpart(calibration(), Method.SAVE_ON_CPU, {})
    assert result.result is not None and result.numbers is not None
    last = len(result.result.timeline.iteration_ends_ns) - 1
    by_kind = {
        kind: sum(each.bytes for each in result.result.timeline if each.label == kind and each.iteration == last)
        for kind in ("copy_d2h", "copy_h2d")
    }
    assert (result.numbers.d2h_bytes, result.numbers.h2d_bytes) == tuple(by_kind.values())
    assert result.numbers.d2h_bytes > 0


def test_a_counterpart_out_of_memory_has_no_numbers():
    result = simulate_counterpart(calibration(memory=40 * MIB), Method.PLAIN, {})
    assert (result.numbers, result.result, result.failure) == (None, None, "out of memory")
    assert "kernel F1c" in result.reason and "37 MiB" in result.reason


def test_unknown_settings_of_a_counterpart_are_refused():
    result = simulate_counterpart(calibration(), Method.ASYNC_OFFLOAD, {"prefetsch": 2})
    assert (result.numbers, result.failure) == (None, "refused")
    assert "prefetsch" in result.reason and "prefetch" in result.reason
