"""moDNN respects every budget above its memory lower bound, and its programs take the planned time (section 5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.graph.bounds import lower_bound
from simgpu.graph.split import split
from simgpu.graph.tdfg import Tdfg
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import PlanContext
from simgpu.policies.modnn.policy import Modnn, Plan
from simgpu.simulation.run import Result, simulate, task_graph
from simgpu.trace.model import AlgorithmChoice, Phase, Trace
from tests.semantics.random_traces import nodes, traces

many = settings(max_examples=60, deadline=None)


@st.composite
def networks(draw: st.DrawFn) -> Trace:
    """Random traces of six samples, whose convolutions have algorithms."""
    trace = draw(traces(max_kernels=14))
    trace = replace(trace, info=replace(trace.info, batch=6))
    phases = {Phase.OPTIMIZER: draw(st.sampled_from([Phase.BACKWARD, Phase.OPTIMIZER]))}
    kernels = tuple(replace(kernel, phase=phases.get(kernel.phase, kernel.phase)) for kernel in trace.kernels)
    names = ["gemm", "winograd", "fft"]
    algorithms = [
        AlgorithmChoice(kernel.id, name, draw(st.integers(0, 500)), draw(st.sampled_from([0, 0, 1, 64, 300, 900])))
        for kernel in kernels
        if kernel.op == "conv2d"
        for name in names[: draw(st.integers(0, 3))]
    ]
    return replace(trace, kernels=kernels, algorithms=tuple(algorithms))


def bound_of(trace: Trace, node: NodeSpec, sub_batch: int) -> int:
    """Equation 7 for sub-batches of this size (bytes)."""
    return lower_bound(Tdfg.of(split(task_graph(trace, node), sub_batch), node.gpu.alignment)).bytes


def plan_of(trace: Trace, node: NodeSpec, budget: int, **parameters: object) -> Plan:
    def no_trial(program: object) -> Result:
        raise AssertionError("moDNN plans without running anything")

    context = PlanContext(task_graph(trace, node), node, budget, no_trial, np.random.default_rng(0))
    return Modnn(**parameters).planned(context)  # type: ignore[arg-type]


def ran(trace: Trace, node: NodeSpec, budget: int, **parameters: object) -> Result:
    return simulate(trace, node, "modnn", parameters=parameters, budget=budget)


@many
@given(st.data(), networks(), nodes())
def test_every_budget_above_the_bound_is_respected_in_the_planned_time(
    data: st.DataObject, trace: Trace, node: NodeSpec
) -> None:
    sub_batch = data.draw(st.sampled_from([1, 2, 4, 6]))
    bound = bound_of(trace, node, sub_batch)
    most = sum(-(-block.bytes // node.gpu.alignment) for block in trace.blocks) * node.gpu.alignment + 1000
    budget = data.draw(st.one_of(st.just(bound), st.integers(bound, max(bound, most))))
    choice = data.draw(st.sampled_from(["gain", "gain", "fastest", "smallest"]))
    parameters = {"sub_batch": sub_batch, "algorithms": choice}
    result, plan = ran(trace, node, budget, **parameters), plan_of(trace, node, budget, **parameters)
    assert result.high_water <= budget
    assert result.iteration_ns == plan.finish_ns
    assert result.steady
    assert result.program == plan.program


@many
@given(networks(), nodes(), st.sampled_from([1, 4, 6]))
def test_a_byte_less_than_the_bound_is_refused(trace: Trace, node: NodeSpec, sub_batch: int) -> None:
    bound = bound_of(trace, node, sub_batch)
    if bound:
        with pytest.raises(OutOfMemoryError, match=r"kernel .* with all persistent blocks"):
            plan_of(trace, node, bound - 1, sub_batch=sub_batch)
