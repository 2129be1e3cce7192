"""A recording without tensors has only times, one without reads only lifetimes; the rest is reported as unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.trace.chain import chain
from simgpu.trace.model import Origin, Trace
from simgpu.trace.stats import trace_stats


def without_blocks() -> Trace:
    trace = chain([5, 7], [10, 14], [100, 200])
    kernels = tuple(replace(kernel, reads=(), writes=()) for kernel in trace.kernels)
    return replace(trace, kernels=kernels, blocks=())


def test_ideal_reports_step_time_and_unknown_memory() -> None:
    result = simgpu.simulate(without_blocks(), simgpu.load_node("v100"), "ideal")
    assert result.iteration_ns == 36
    assert result.notes == ("the recording has no tensors: times are recorded, memory is unknown",)


@pytest.mark.parametrize("policy", ["none", "vdnn"])
def test_a_policy_that_needs_memory_is_refused(policy: str) -> None:
    with pytest.raises(InputError, match="the trace has no tensors") as caught:
        simgpu.simulate(without_blocks(), simgpu.load_node("v100"), policy)
    assert "run the policy ideal" in str(caught.value)


def without_reads() -> Trace:
    trace = chain([5, 7], [10, 14], [100, 200])
    blocks = tuple(replace(block, persistent=block.id == "x1") for block in trace.blocks)
    kernels = tuple(replace(kernel, reads=()) for kernel in trace.kernels)
    return replace(trace, kernels=kernels, blocks=blocks, info=replace(trace.info, origin=Origin.IMPORTED))


def test_lifetimes_alone_are_enough_for_none() -> None:
    assert simgpu.simulate(without_reads(), simgpu.load_node("v100"), "none").iteration_ns == 36


def test_a_policy_that_needs_reads_is_refused_if_they_are_not_recorded() -> None:
    with pytest.raises(InputError, match="does not state what kernels read") as caught:
        simgpu.simulate(without_reads(), simgpu.load_node("v100"), "vdnn")
    assert "import it with its execution trace" in str(caught.value)


def test_the_peak_over_needed_lifetimes_is_unknown_without_reads() -> None:
    stats = trace_stats(without_reads())
    assert stats.peak_needed is None
    assert ("peak, released at last use", "reads not recorded") in stats.summary_rows()
