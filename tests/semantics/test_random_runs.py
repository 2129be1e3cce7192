"""Properties of any trace, node, placement and pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.policies.base import PlanContext, Policy
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.simulation.run import Result, simulate
from simgpu.trace.model import Trace
from tests.semantics.random_traces import nodes, placements, traces

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=50)
pools = st.sampled_from(["counting", "addressed"])


@dataclass(frozen=True)
class Placed(Policy):
    """A policy with a fixed placement."""

    name = "placed"
    summary = "carries out a given placement"
    source = "tests"

    placement: Placement
    recorded: bool

    def plan(self, context: PlanContext) -> Program:
        return lower(context.graph, self.placement, recorded_lifetimes=self.recorded)


@st.composite
def placed(draw: st.DrawFn, trace: Trace, *, barrier: bool | None = None) -> Placed:
    layer_barrier = draw(st.booleans()) if barrier is None else barrier
    placement = draw(placements(TaskGraph.of(trace), layer_barrier=layer_barrier))
    return Placed(placement, recorded=not placement.swaps and draw(st.booleans()))


def link_ns(result: Result, node: NodeSpec) -> int:
    """The minimum time in which the link can transfer all bytes copied in the run."""
    link = node.link
    bytes_of = {label: sum(s.bytes for s in result.timeline if s.label == label) for label in ("copy_d2h", "copy_h2d")}
    out, back = bytes_of["copy_d2h"], bytes_of["copy_h2d"]
    if link.duplex is Duplex.HALF and node.gpu.copy_engines == 2:
        return (out + back) * 10**9 // max(link.d2h_bandwidth, link.h2d_bandwidth)
    one_way = out * 10**9 // link.d2h_bandwidth, back * 10**9 // link.h2d_bandwidth
    return sum(one_way) if node.gpu.copy_engines == 1 else max(one_way)


@many
@given(st.data(), pools)
def test_an_iteration_is_never_shorter_than_its_compute(data: st.DataObject, pool: str):
    trace = data.draw(traces())
    result = simulate(trace, data.draw(nodes(launches=True)), data.draw(placed(trace)), pool=pool)
    lengths = [end - start for start, end in map(result.timeline.window, range(3))]
    assert min(lengths) >= trace.compute_ns


@many
@given(st.data())
def test_a_run_is_never_shorter_than_its_traffic_over_the_link(data: st.DataObject):
    trace, node = data.draw(traces()), data.draw(nodes(launches=True))
    result = simulate(trace, node, data.draw(placed(trace)))
    assert result.timeline.iteration_ends_ns[-1] >= link_ns(result, node)


@many
@given(st.data(), pools)
def test_a_run_within_a_budget_respects_it_or_runs_out_of_memory(data: st.DataObject, pool: str):
    trace, node = data.draw(traces()), data.draw(nodes(launches=True))
    most = sum(-(-block.bytes // node.gpu.alignment) for block in trace.blocks) * node.gpu.alignment
    budget = data.draw(st.integers(0, most))
    try:
        result = simulate(trace, node, data.draw(placed(trace)), budget=budget, pool=pool)
    except OutOfMemoryError as error:
        assert error.capacity == budget
        assert error.requested > error.largest_hole or error.requested > error.free
        return
    curve = result.timeline.memory("device")
    assert max(curve.used, default=0) <= result.high_water <= budget
    assert (curve.live <= curve.used).all()
    assert min(curve.live, default=0) >= 0


@many
@given(st.data(), pools)
def test_memory_for_all_blocks_is_always_enough_in_the_counting_pool(data: st.DataObject, pool: str):
    trace, node = data.draw(traces()), data.draw(nodes(launches=True))
    most = sum(-(-block.bytes // node.gpu.alignment) for block in trace.blocks) * node.gpu.alignment
    policy = data.draw(placed(trace))
    simulate(trace, node, policy, budget=most, pool="counting")
    simulate(trace, node, policy, budget=most * (len(trace.blocks) + 1), pool=pool)


@many
@given(st.data(), st.integers(1, 3))
def test_the_breakdown_adds_up_to_the_iteration(data: st.DataObject, streams: int):
    trace = data.draw(traces(streams=streams))
    policy = data.draw(placed(trace)) if streams == 1 else "none"
    result = simulate(trace, data.draw(nodes(launches=True)), policy)
    assert result.metrics.breakdown.total == result.iteration_ns
    if streams == 1:
        assert result.metrics.breakdown.compute == trace.compute_ns


@many
@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_with_a_layer_barrier_more_bandwidth_never_slows_a_run(data: st.DataObject, out: int, back: int):
    trace, node = data.draw(traces()), data.draw(nodes(launches=True))
    link = node.link
    faster = replace(link, d2h_bandwidth=link.d2h_bandwidth * out, h2d_bandwidth=link.h2d_bandwidth * back)
    policy = data.draw(placed(trace, barrier=True))
    before = simulate(trace, node, policy)
    after = simulate(trace, replace(node, link=faster), policy)
    assert after.iteration_ns <= before.iteration_ns


@many
@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_without_a_layer_barrier_more_bandwidth_never_delays_the_end(data: st.DataObject, out: int, back: int):
    """With an engine for each direction no copy can overtake another, so the run ends no later."""
    trace, node = data.draw(traces()), data.draw(nodes(launches=True))
    link = replace(node.link, duplex=Duplex.FULL)
    node = replace(node, gpu=replace(node.gpu, copy_engines=2), link=link)
    faster = replace(link, d2h_bandwidth=link.d2h_bandwidth * out, h2d_bandwidth=link.h2d_bandwidth * back)
    policy = data.draw(placed(trace, barrier=False))
    before = simulate(trace, node, policy).timeline.iteration_ends_ns
    after = simulate(trace, replace(node, link=faster), policy).timeline.iteration_ends_ns
    assert all(then <= now for now, then in zip(before, after, strict=True))


@many
@given(st.data(), st.sampled_from(["all", "conv", "dynamic"]))
def test_vdnn_runs_any_trace_with_one_compute_stream(data: st.DataObject, mode: str):
    trace = data.draw(traces())
    result = simulate(trace, data.draw(nodes(launches=True)), "vdnn", parameters={"mode": mode})
    assert result.iteration_ns >= result.ideal_ns


@many
@given(st.data(), st.sampled_from(["all", "conv", "dynamic"]))
def test_vdnn_within_a_budget_runs_or_runs_out_of_memory(data: st.DataObject, mode: str):
    trace = data.draw(traces())
    budget = data.draw(st.integers(0, 1 + sum(block.bytes for block in trace.blocks)))
    node = replace(data.draw(nodes(launches=True)))
    try:
        result = simulate(trace, node, "vdnn", parameters={"mode": mode}, budget=budget)
    except OutOfMemoryError:
        return
    assert max(result.timeline.memory("device").used, default=0) <= budget


@many
@given(st.data(), st.integers(1, 3))
def test_ideal_takes_the_ideal_time_of_the_graph(data: st.DataObject, streams: int):
    trace = data.draw(traces(streams=streams))
    result = simulate(trace, data.draw(nodes(launches=True)), "ideal", budget=10**9)
    assert result.iteration_ns == result.ideal_ns


@many
@given(st.data(), st.integers(1, 3))
def test_none_with_ample_memory_equals_ideal(data: st.DataObject, streams: int):
    trace, node = data.draw(traces(streams=streams)), data.draw(nodes(launches=True))
    ideal, plain = simulate(trace, node, "ideal"), simulate(trace, node, "none")
    assert plain.timeline.iteration_ends_ns == ideal.timeline.iteration_ends_ns
    assert plain.high_water == ideal.high_water
