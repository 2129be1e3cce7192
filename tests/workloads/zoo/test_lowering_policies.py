"""Modelled traces under policies: properties that do not depend on durations."""

from __future__ import annotations

import pytest

import simgpu
from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.trace.model import Phase, Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.modelled import build_trace
from tests.workloads.zoo.networks import Choice, Flat, inception, lowered, residual, vgg11_cifar

V100 = load_node("v100")


@pytest.fixture(scope="module")
def trace(request: pytest.FixtureRequest) -> Trace:
    return build_trace(request.param, batch=8, gpu=V100.gpu)


def each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("trace", names, indirect=True)


NETWORKS = ("vgg16", "alexnet", "googlenet", "resnet50")


@each(*NETWORKS)
def test_layers_of_the_trace_are_the_layers_of_the_network(trace: Trace) -> None:
    layers = TaskGraph.of(trace).layers
    assert not layers.derived
    # Every layer with backward has it in the same steps as forward, once each.
    forward = [step.layer for step in layers.steps if step.phase is Phase.FORWARD]
    assert len(forward) == len(set(forward))
    convolutions = {kernel.layer for kernel in trace.kernels if kernel.op == "conv2d"}
    assert {name for name, has in zip(layers.names, layers.convolution, strict=True) if has} == convolutions


@each(*NETWORKS)
def test_ideal_takes_the_compute_time_and_none_has_the_recorded_peak(trace: Trace) -> None:
    ideal = simgpu.simulate(trace, V100, "ideal")
    none = simgpu.simulate(trace, V100, "none")
    peak = trace_stats(trace).peak_recorded
    assert peak is not None
    assert ideal.metrics.iteration_ns == none.metrics.iteration_ns == trace.compute_ns
    assert none.metrics.device_peak_bytes == peak.bytes


@each(*NETWORKS)
@pytest.mark.parametrize("algorithms", ["fastest", "smallest"])
@pytest.mark.parametrize("mode", ["all", "conv"])
def test_vdnn_needs_no_more_memory_and_no_less_time(trace: Trace, mode: str, algorithms: str) -> None:
    result = simgpu.simulate(trace, V100, "vdnn", parameters={"mode": mode, "algorithms": algorithms})
    peak = trace_stats(trace).peak_needed
    assert peak is not None
    # Where the fastest algorithm's workspace makes the peak late in backward, offloading cannot lower it.
    assert result.metrics.device_peak_bytes <= peak.bytes
    assert algorithms == "fastest" or result.metrics.device_peak_bytes < peak.bytes
    assert result.metrics.iteration_ns >= trace.compute_ns


@each("vgg16", "googlenet")
def test_vdnn_dynamic_fits_where_none_does_not(trace: Trace) -> None:
    peak = trace_stats(trace).peak_recorded
    smallest = simgpu.simulate(trace, V100, "vdnn", parameters={"mode": "all", "algorithms": "smallest"})
    assert peak is not None
    free = (peak.bytes + smallest.metrics.device_peak_bytes) // 2
    node = load_node("v100", {"gpu.memory": f"{free} B"})
    with pytest.raises(OutOfMemoryError):
        simgpu.simulate(trace, node, "none")
    result = simgpu.simulate(trace, node, "vdnn", parameters={"mode": "dynamic"})
    assert result.metrics.device_peak_bytes <= free


@pytest.mark.slow
def test_vdnn_with_fastest_algorithms_equals_vdnn_with_recorded_ones() -> None:
    for make in (vgg11_cifar, residual, inception):
        prices = Flat((Choice("winograd", 5, 100), Choice("implicit_gemm", 9, 0)))
        result = lowered(make(), 4, prices)
        recorded, fastest = (
            simgpu.simulate(result, V100, "vdnn", parameters={"algorithms": which}) for which in ("recorded", "fastest")
        )
        assert recorded.timeline.frame().equals(fastest.timeline.frame())
