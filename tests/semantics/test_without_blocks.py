"""A recording without tensors has times alone: nothing about memory is made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace


def without_blocks() -> Trace:
    trace = chain([5, 7], [10, 14], [100, 200])
    kernels = tuple(replace(kernel, reads=(), writes=()) for kernel in trace.kernels)
    return replace(trace, kernels=kernels, blocks=())


def test_ideal_tells_the_time_and_that_memory_is_unknown() -> None:
    result = simgpu.simulate(without_blocks(), simgpu.load_node("v100"), "ideal")
    assert result.iteration_ns == 36
    assert result.notes == ("the recording has no tensors: times are its own, memory is not known",)


@pytest.mark.parametrize("policy", ["none", "vdnn"])
def test_a_policy_that_needs_memory_is_refused(policy: str) -> None:
    with pytest.raises(InputError, match="the recording has no tensors") as caught:
        simgpu.simulate(without_blocks(), simgpu.load_node("v100"), policy)
    assert "run the policy ideal" in str(caught.value)
