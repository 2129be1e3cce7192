"""Capuchin as published, from the measured iteration to the program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import PlanContext
from simgpu.policies.capuchin.hybrid import candidates_of
from simgpu.policies.capuchin.passive import demand, passive_program, passive_run
from simgpu.policies.capuchin.published import published
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.verify import verify
from simgpu.simulation.run import Result, simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from tests.policies.capuchin.test_passive import Fixed, context_of
from tests.semantics.hand_made import BACKWARD, block, graph, held, kernel, node
from tests.semantics.random_traces import nodes, traces

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)


def run(trace: Trace, where: NodeSpec, budget: int) -> Result:
    program = published(context_of(trace, where, budget))
    return simulate(trace, where, Fixed(program), budget=budget)


def kinds(result: Result) -> dict[str, list[str]]:
    """The blocks copied out and recomputed in the last iteration."""
    last = result.iterations - 1
    message: dict[str, list[str]] = {"out": [], "again": []}
    for span in result.timeline:
        if span.iteration == last and span.label in ("copy_d2h", "recompute"):
            message["out" if span.label == "copy_d2h" else "again"].append(span.name)
    return message


def test_with_ample_memory_nothing_is_evicted():
    trace = chain([5, 7, 9, 4], [10, 14, 18, 6], [100, 200, 300, 250])
    assert published(context_of(trace, node(), 850)) == lower(TaskGraph.of(trace), Placement())


def test_a_fully_overlapped_swap_costs_nothing():
    """x2 has a long gap on the host; its copies of 10 ns end during kernels of 100 ns."""
    trace = chain([100] * 6, [100] * 6, [10] * 6)
    result = run(trace, node(), 50)
    assert kinds(result) == {"out": ["x2"], "again": []}
    assert result.iteration_ns == result.ideal_ns == 1200


def test_on_a_slow_link_cheap_tensors_are_recomputed():
    trace = chain([1] * 6, [1] * 6, [100] * 6)
    result = run(trace, node(), 500)
    assert kinds(result)["again"] and not kinds(result)["out"]


def test_a_late_prefetch_is_triggered_earlier():
    """Stalls make the iteration differ from the measured one, so some prefetches are late; each run reports which."""
    trace = chain([87, 32, 45, 84, 68, 66], [47, 20, 21, 22, 94, 37], [48, 31, 101, 88, 109, 26])
    context = context_of(trace, node(), 322)
    fixed, adjusted = published(context, adjustments=0), published(context)
    times = [simulate(trace, node(), Fixed(program), budget=322).iteration_ns for program in (fixed, adjusted)]
    assert times[1] < times[0]


def test_capuchin_runs_in_passive_mode_if_evicting_activations_is_not_enough():
    """Only evicting the gradient g, which is no feature map, frees enough memory for w."""
    kernels = [
        kernel("f", reads="x", writes="y"),
        kernel("b", reads="y", writes="g", phase=BACKWARD),
        kernel("c", writes="w", phase=BACKWARD),
        kernel("d", reads="g", phase=BACKWARD),
    ]
    tasks = graph(kernels, [held("x", 10), block("y", 10), block("g", 10), block("w", 30)])
    program = published(context_of(tasks.trace, node(), 40))
    assert program == passive_program(tasks, 40)
    assert program.notes == ("no decisions make the iteration fit: it runs in passive mode",)


def test_a_released_source_is_recomputed_as_well():
    """y is needed until b2; z is recomputed from it for b1 through v, which forward has already released."""
    forward = [("f1", 3, "x", "y"), ("f2", 5, "y", "v"), ("f3", 7, "v", "z"), ("f4", 9, "z", "u"), ("f5", 9, "", "w")]
    backward = [("b0", 9, "u", ""), ("b1", 9, "z", ""), ("b2", 9, "y", "")]
    kernels = [kernel(name, ns, reads, writes, layer=name) for name, ns, reads, writes in forward]
    kernels += [kernel(name, ns, reads, writes, layer=name, phase=BACKWARD) for name, ns, reads, writes in backward]
    tasks = graph(kernels, [held("x", 10), *(block(name, 10) for name in "yvzu"), block("w", 50)])
    context = context_of(tasks.trace, node(), 80)
    _, result = candidates_of(passive_run(context), node(), 80)
    by_name = {tasks.blocks[each.number].id: each for each in result}
    assert (by_name["z"].recompute_ns, by_name["z"].sources) == (5 + 7, {tasks.block("y")})
    assert (by_name["y"].recompute_ns, by_name["y"].sources) == (3, frozenset())


def test_a_source_read_by_the_same_kernel_is_not_recomputed():
    """b1 reads y and z; f2 computes z from y. y is resident when z is recomputed, so f1 does not run again."""
    forward = [("f1", 3, "x", "y"), ("f2", 5, "y", "z"), ("f3", 9, "z", "u"), ("f4", 9, "", "w")]
    backward = [("b0", 9, "u", ""), ("b1", 9, "y z", "")]
    kernels = [kernel(name, ns, reads, writes, layer=name) for name, ns, reads, writes in forward]
    kernels += [kernel(name, ns, reads, writes, layer=name, phase=BACKWARD) for name, ns, reads, writes in backward]
    tasks = graph(kernels, [held("x", 10), *(block(name, 10) for name in "yzu"), block("w", 50)])
    _, result = candidates_of(passive_run(context_of(tasks.trace, node(), 80)), node(), 80)
    by_name = {tasks.blocks[each.number].id: each for each in result}
    assert (by_name["z"].recompute_ns, by_name["z"].sources) == (5, {tasks.block("y")})
    assert (by_name["y"].recompute_ns, by_name["y"].sources) == (3, frozenset())


@many
@given(st.data())
def test_any_trace_at_any_budget_fits_where_passive_mode_does(data: st.DataObject):
    trace, where = data.draw(traces()), data.draw(nodes())
    tasks = TaskGraph.of(trace)
    budget = data.draw(st.integers(0, max(demand(tasks, where.gpu.alignment)) + 1))
    passive = passive_program(tasks, budget, where.gpu.alignment)
    try:
        simulate(trace, where, Fixed(passive), budget=budget)
    except OutOfMemoryError:
        with pytest.raises(OutOfMemoryError):
            published(context_of(trace, where, budget))
        return
    program = published(context_of(trace, where, budget))
    verify(program, tasks)
    result = simulate(trace, where, Fixed(program), budget=budget)
    assert max(result.timeline.memory("device").used, default=0) <= budget
    assert result.iteration_ns >= result.ideal_ns


def test_a_recorded_network_runs_faster_than_in_passive_mode():
    trace = load_trace("resnet20-cifar-cpu")
    tasks = TaskGraph.of(trace)
    persistent = sum(block.bytes for block in trace.blocks if block.persistent)
    budget = persistent + (max(demand(tasks)) - persistent) * 3 // 4
    where = node(10**12)
    guided = run(trace, where, budget)
    passive = simulate(trace, where, Fixed(passive_program(tasks, budget)), budget=budget)
    assert guided.iteration_ns < passive.iteration_ns


def test_planning_twice_gives_the_same_program():
    trace = load_trace("resnet20-cifar-cpu")
    budget = max(demand(TaskGraph.of(trace))) * 3 // 4
    tried: list[Program] = []

    def trial(program: Program) -> Result:
        tried.append(program)
        return simulate(trace, node(10**12), Fixed(program), budget=budget)

    contexts = (PlanContext(TaskGraph.of(trace), node(10**12), budget, trial, np.random.default_rng(n)) for n in (0, 1))
    assert published(next(contexts)) == published(next(contexts))
    assert len(tried) % 2 == 0
