"""The critical path covers an iteration without gaps, and its steps determine the step time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu import load_node, load_scenario, load_trace
from simgpu.errors import OutOfMemoryError
from simgpu.explain.explanation import PathStep, by_kind, critical_path
from simgpu.hardware.spec import Duplex
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind as K
from simgpu.trace.model import Trace
from tests.semantics.random_traces import nodes, traces
from tests.semantics.test_random_runs import placed

many = settings(suppress_health_check=list(HealthCheck), max_examples=40)


def check(result: Result) -> tuple[PathStep, ...]:
    steps = critical_path(result.timeline)
    start, end = result.timeline.window(-1)
    edges = [start, *(step.end_ns for step in steps)]
    assert [step.start_ns for step in steps] == edges[:-1]
    assert edges[-1] == end
    assert sum(step.ns for step in steps) == result.iteration_ns
    return steps


@many
@given(st.data(), st.sampled_from(["counting", "addressed"]))
def test_the_critical_path_covers_the_iteration_with_work(data: st.DataObject, pool: str) -> None:
    trace, node = data.draw(traces()), data.draw(nodes(launches=True))
    most = sum(-(-block.bytes // node.gpu.alignment) for block in trace.blocks) * node.gpu.alignment
    budget = data.draw(st.one_of(st.just(most), st.integers(0, most)))
    try:
        result = simulate(trace, node, data.draw(placed(trace)), budget=budget, pool=pool)
    except OutOfMemoryError:
        return
    kinds = [step.kind for step in check(result)]
    assert all(kind is K.STALL_LAUNCH or (kind is not None and not kind.is_stall) for kind in kinds)
    assert K.STALL_LAUNCH not in kinds[1:], "launches on the path are those since the iteration began"


@many
@given(st.data())
def test_lengthening_a_kernel_on_the_critical_path_delays_the_end(data: st.DataObject) -> None:
    """A kernel that takes a nanosecond more moves the end of a single iteration by one for each time it is on the path.

    So it is where nothing can overtake anything: memory to spare, and an engine and a link for each direction.
    """
    trace, node = data.draw(traces()), data.draw(nodes(Duplex.FULL, launches=True))
    node = replace(node, gpu=replace(node.gpu, copy_engines=2))
    policy = data.draw(placed(trace))
    before = simulate(trace, node, policy, budget=10**9, iterations=1)
    on_path = Counter(step.name for step in check(before) if step.kind in (K.COMPUTE, K.RECOMPUTE))
    assume(on_path)
    name = data.draw(st.sampled_from(sorted(on_path)))
    after = simulate(_longer(trace, name), node, policy, budget=10**9, iterations=1)
    assert after.timeline.iteration_ends_ns[0] >= before.timeline.iteration_ends_ns[0] + on_path[name]


def _longer(trace: Trace, name: str) -> Trace:
    kernels = (replace(k, duration_ns=k.duration_ns + 1) if k.id == name else k for k in trace.kernels)
    return replace(trace, kernels=tuple(kernels))


@pytest.mark.parametrize(
    "policy",
    [
        "ideal",
        "vdnn",
        "superneurons",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("capuchin", "home", "modnn", "joint")),
    ],
)
def test_the_critical_path_of_a_recorded_network_contains_only_work(policy: str) -> None:
    scenario = load_scenario("quickstart")
    steps = check(simulate(scenario.trace, scenario.node, policy))
    assert all(step.kind is not None and not step.kind.is_stall for step in steps)


def test_the_critical_path_of_ideal_is_all_kernels() -> None:
    scenario = load_scenario("quickstart")
    steps = check(simulate(scenario.trace, scenario.node, "ideal"))
    assert by_kind(steps) == {("compute", "compute"): (scenario.trace.compute_ns, len(scenario.trace.kernels))}


@pytest.mark.slow
def test_the_critical_path_of_unified_memory_is_faults_pages_and_kernels() -> None:
    steps = check(simulate(load_trace("hpc-seismic"), load_node("buddy-gpu"), "um", budget="2 GiB"))
    kinds = set(by_kind(steps))
    assert kinds == {
        ("compute", "compute"),
        ("compute", "stall_device_memory"),  # the latency of faults
        ("h2d", "copy_h2d"),
        ("d2h", "copy_d2h"),
    }


@pytest.mark.slow
def test_kernels_reading_host_memory_are_critical_only_with_a_faster_link() -> None:
    """A kernel's bytes pass the link while it runs; the kernel ends after both."""
    trace, node = load_trace("hpc-seismic"), load_node("buddy-gpu")
    slow = check(simulate(trace, node, "um", parameters={"access": "pinned"}))
    assert set(by_kind(slow)) == {("h2d", "copy_h2d")}
    fast = replace(node, link=replace(node.link, d2h_bandwidth=10**13, h2d_bandwidth=10**13))
    quick = check(simulate(trace, fast, "um", parameters={"access": "pinned"}))
    assert set(by_kind(quick)) == {("compute", "compute")}


@pytest.mark.parametrize("exchange", ["host", "gather"])
def test_the_critical_path_crosses_gpus_and_the_host(exchange: str) -> None:
    scenario = load_scenario("quickstart", {"node": "k40-x4", "data_parallel.gpus": 4})
    steps = check(simulate(scenario.trace, scenario.node, "vdnn", gpus=4, exchange=exchange))
    assert {step.stream for step in steps} & ({"host1"} if exchange == "host" else {"gpu1.compute"})


@pytest.mark.slow
def test_a_wait_for_a_shared_copy_engine_leads_to_the_copy_that_occupies_it() -> None:
    scenario = load_scenario("quickstart", {"node.gpu.copy_engines": 1, "node.gpu.memory": "20 MiB"})
    steps = check(simulate(scenario.trace, scenario.node, "home"))
    assert all(step.kind is not None and not step.kind.is_stall for step in steps)
