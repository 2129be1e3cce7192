"""Revolve: as few layers run again as dynamic programming finds possible, and the run takes that long."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.policies.revolve import stacks_of
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain


def node_of(memory: int) -> NodeSpec:
    return NodeSpec("bench", GpuSpec("gpu", memory), LinkSpec("link", 10**9, 10**9))


@cache
def fewest(layers: int, snapshots: int) -> int:
    """Layers that run to reach what each layer reads, the last layer's first; their backward not counted."""
    if layers == 1:
        return 0
    if not snapshots:
        return layers * (layers - 1) // 2
    return min(m + fewest(layers - m, snapshots - 1) + fewest(m, snapshots) for m in range(1, layers))


@pytest.mark.parametrize("layers", [1, 2, 5, 9, 16, 24])
def test_no_choice_of_snapshots_runs_fewer_layers(layers: int) -> None:
    for snapshots in range(6):
        stacks = list(stacks_of(layers, snapshots))
        ran, there = layers - 1, set(stacks[0])
        for layer, stack in zip(range(layers - 2, -1, -1), stacks[1:], strict=True):
            ran += layer - max((m for m in there if m <= layer), default=0)
            there = set(stack)
        assert ran == fewest(layers, snapshots)
        assert all(len(stack) <= snapshots for stack in stacks)


@pytest.mark.parametrize("snapshots", [1, 2, 3, 5])
def test_a_run_takes_the_time_of_these_layers(snapshots: int) -> None:
    """Forward runs all layers; backward runs again what is not there. What a layer's backward reads besides stays."""
    layers = 12
    trace = chain([10] * layers, [20] * layers, [100] * layers)
    result = simulate(trace, node_of(10**6), "revolve", parameters={"snapshots": snapshots})
    again = (result.iteration_ns - result.ideal_ns) // 10
    assert again == fewest(layers, snapshots) - (layers - 1)


def test_less_memory_has_fewer_snapshots_and_more_time() -> None:
    trace = chain([10] * 16, [20] * 16, [100] * 16)
    runs = [simulate(trace, node_of(memory), "revolve") for memory in (1600, 1200, 800, 600, 500)]
    assert [run.iteration_ns for run in runs] == sorted(run.iteration_ns for run in runs)
    assert runs[0].iteration_ns == runs[0].ideal_ns < runs[-1].iteration_ns


def test_a_network_that_is_no_chain_is_refused() -> None:
    trace = chain([10] * 4, [20] * 4, [100] * 4)
    kernels = list(trace.kernels)
    kernels[3] = replace(kernels[3], reads=(*kernels[3].reads, kernels[1].writes[0]))
    with pytest.raises(InputError, match=r"no chain: kernel F4 reads x\d, which is not of the layer before it"):
        simulate(replace(trace, kernels=tuple(kernels)), node_of(10**9), "revolve")
