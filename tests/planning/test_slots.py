"""Swap planning over slots: its times are the machine's, its classes limit the memory, its victims are Belady's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.planning import slot_planner
from simgpu.planning.listing import BY_PRIORITY, FRUGAL, NEWEST
from simgpu.planning.slot_planner import SlotPlanner
from simgpu.planning.slots import LACKING, MOST_WEIGHT, Members
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.swapadvisor.program import program_of
from simgpu.program.instructions import Program
from simgpu.program.verify import verify
from simgpu.simulation.run import simulate
from simgpu.simulation.tasks import task_graph
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.planning.test_wide_bound import chains
from tests.semantics.random_traces import traces
from tests.semantics.random_training import trainings

some = settings(deadline=None, suppress_health_check=list(HealthCheck))


def node_of(memory: int, alignment: int = 1) -> NodeSpec:
    """7 bytes per nanosecond out, 3 in."""
    gpu = GpuSpec("gpu", memory, alignment=alignment)
    return NodeSpec("bench", gpu, LinkSpec("link", 7 * 10**9, 3 * 10**9, latency_ns=1))


@dataclass(frozen=True)
class Fixed(Policy):
    """A policy that returns a given program."""

    name = "fixed"
    summary = source = "for tests"

    program: Program

    def plan(self, context: PlanContext) -> Program:
        return self.program


@st.composite
def drawn_members(draw: st.DrawFn, planner: SlotPlanner) -> tuple[tuple[int, ...], ...]:
    """An order that picks any ready kernel at each position, and any allocation."""
    count, sizes = len(planner.graph.kernels), len(planner.sizes)
    picks = draw(st.lists(st.integers(-1, count), min_size=count, max_size=count))
    order = planner.listed(BY_PRIORITY, np.arange(count), np.array(picks, dtype=np.int64))
    tops = draw(st.lists(st.integers(0, 1), min_size=sizes, max_size=sizes))
    weights = draw(st.lists(st.integers(1, MOST_WEIGHT), min_size=sizes, max_size=sizes))
    return tuple(order.tolist()), tuple(tops), tuple(weights)


@some
@given(
    st.one_of(chains(), traces(max_kernels=14), trainings(max_layers=6)),
    st.floats(0.3, 1.1),
    st.sampled_from([1, 8]),
    st.booleans(),
    st.data(),
)
def test_planned_time_is_the_machine_s(
    trace: Trace, share: float, alignment: int, all_home: bool, data: st.DataObject
) -> None:
    node = node_of(10**6, alignment)
    graph = task_graph(trace, node)
    most = sum(graph.sizes) + alignment * len(graph.sizes)
    planner = SlotPlanner(graph, node, max(int(most * share), 1), all_home=all_home)
    assert planner.why_not is None
    member = data.draw(drawn_members(planner))
    planned = planner.planned(*member)
    assume(planned is not None)
    assert planned is not None
    program = program_of(planner, member[0], planned)
    verify(program, graph, capacity=planner.budget, alignment=alignment, node=node)
    result = simulate(trace, node, Fixed(program), budget=planner.budget)
    assert result.iteration_ns == planned.time_ns
    slots = sum(size * count for size, count in planned.slots)
    assert result.metrics.device_peak_bytes <= slots <= planner.budget
    assert not (all_home and planned.away)
