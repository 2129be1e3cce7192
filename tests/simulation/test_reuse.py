"""Runs of one trace reuse plans and checked programs, and give what they give alone."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, OutOfMemoryError, PolicyError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.machine.compiled_engine import Engine
from simgpu.machine.run import MachineRun
from simgpu.memory.pool import UNLIMITED
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.checkpoint import Checkpoint
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import COMPUTE, Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.simulation import reuse, run
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.semantics.random_traces import nodes, traces

FAST = NodeSpec("node", GpuSpec("gpu", 10**6), LinkSpec("wire", 10**9, 10**9))
SLOW = replace(FAST, link=LinkSpec("wire", 10**8, 3 * 10**8))


@pytest.fixture
def trace() -> Trace:
    return chain([50, 70, 90], [100, 140, 180], [1000, 2000, 3000])


def plans_of(monkeypatch: pytest.MonkeyPatch, policy: type[Policy]) -> list[PlanContext]:
    """The contexts of the plans that a policy makes from now on."""
    contexts: list[PlanContext] = []
    plan = policy.plan

    def noted(self: Policy, context: PlanContext) -> Program:
        contexts.append(context)
        return plan(self, context)

    monkeypatch.setattr(policy, "plan", noted)
    return contexts


def same(one: Result, other: Result) -> bool:
    return (list(one.timeline), one.metrics, one.notes) == (list(other.timeline), other.metrics, other.notes)


@pytest.mark.parametrize("policy", ["ideal", "vdnn", "superneurons", "modnn", "vdnn+", "capuchin", "um"])
def test_runs_on_other_nodes_are_those_of_a_trace_that_was_never_run(trace: Trace, policy: str) -> None:
    for node in (FAST, SLOW, replace(SLOW, gpu=replace(SLOW.gpu, alignment=64)), FAST):
        assert same(simulate(trace, node, policy), simulate(copy(trace), node, policy))


def test_a_plan_that_read_only_the_graph_is_made_once(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = plans_of(monkeypatch, Vdnn)
    for node in (FAST, SLOW):
        simulate(trace, node, "vdnn", budget=10**5)
    assert len(contexts) == 1
    simulate(trace, FAST, "vdnn", parameters={"mode": "conv"})
    simulate(copy(trace), FAST, "vdnn")
    assert len(contexts) == 3


def test_a_plan_that_read_graph_and_node_is_made_once_for_each_node(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = plans_of(monkeypatch, Checkpoint)
    several = [(node, budget) for node in (FAST, replace(FAST), SLOW) for budget in (10**5, 10**6)]
    results = [simulate(trace, node, "checkpoint", budget=budget) for node, budget in several]
    assert len(contexts) == 2
    for result, (node, budget) in zip(results, several, strict=True):
        assert same(result, simulate(copy(trace), node, "checkpoint", budget=budget))


def test_a_plan_that_made_trial_runs_is_made_again(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = plans_of(monkeypatch, Vdnn)
    for node in (FAST, SLOW):
        simulate(trace, node, "vdnn", parameters={"mode": "dynamic"})
    assert len(contexts) == 2


@dataclass(frozen=True)
class Outside(Policy):
    name, summary, source = "outside", "of a user", "here"

    def plan(self, context: PlanContext) -> Program:
        return lower(context.graph, Placement())


def test_a_plan_of_an_outside_policy_is_made_again(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = plans_of(monkeypatch, Outside)
    for _ in range(2):
        simulate(trace, FAST, Outside())
    assert len(contexts) == 2


def test_a_kept_program_must_still_fit_the_budget(trace: Trace) -> None:
    simulate(trace, FAST, "vdnn")
    with pytest.raises(OutOfMemoryError, match="alone"):
        simulate(trace, FAST, "vdnn", budget=1000)


def test_a_program_that_was_changed_since_is_planned_again(trace: Trace) -> None:
    result = simulate(trace, FAST, "vdnn")
    streams: dict[object, object] = result.program.segments[0].streams  # type: ignore[assignment]
    streams[COMPUTE] = ()
    assert same(simulate(trace, SLOW, "vdnn"), simulate(copy(trace), SLOW, "vdnn"))


def test_a_program_that_was_changed_since_is_checked_again(trace: Trace) -> None:
    @dataclass(frozen=True)
    class Same(Policy):
        name, summary, source = "same", "gives one program", "here"

        def plan(self, context: PlanContext) -> Program:
            return program

    program = simulate(trace, FAST, Outside()).program
    simulate(trace, FAST, Same())
    streams: dict[object, object] = program.segments[0].streams  # type: ignore[assignment]
    streams[COMPUTE] = program.segments[0].streams[COMPUTE][1:]
    with pytest.raises(PolicyError, match="holds no device memory"):
        simulate(trace, FAST, Same())


@seed(23)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_results_that_share_a_run_are_those_of_runs_of_their_own(data: st.DataObject) -> None:
    """Timelines, curves, metrics, notes and errors, in any order of budgets, on random traces and nodes."""
    trace, node = data.draw(traces()), data.draw(nodes())
    policy = data.draw(st.sampled_from(["none", "vdnn", "superneurons", "capuchin"]))
    unit = node.gpu.alignment
    total = sum(-(-block.bytes // unit) * unit for block in trace.blocks)
    engine = data.draw(st.sampled_from(["simpy", "compiled"]))
    for budget in data.draw(st.lists(st.integers(1, max(total, 1)), min_size=3, max_size=6)):
        budget = min(budget, node.budget)
        shared, alone = (_outcome(each, node, policy, budget, engine) for each in (trace, copy(trace)))
        assert shared == alone


def _outcome(trace: Trace, node: NodeSpec, policy: str, budget: int, engine: Engine) -> object:
    try:
        result = simulate(trace, node, policy, budget=budget, engine=engine)
    except (OutOfMemoryError, InputError) as error:
        return type(error), str(error), vars(error)
    curves = [
        (curve.memory, curve.gpu, curve.capacity, *(each.tolist() for each in (curve.time_ns, curve.live, curve.used)))
        for curve in result.timeline.memories
    ]
    return result.to_dict(), list(result.timeline), curves, result.metrics, result.high_water, result.phases


def test_a_budget_that_the_program_does_not_reach_needs_no_other_run(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[int | None] = []
    run_program = run.run_program

    def noted(*arguments: Any, budget: int | None, **named: Any) -> MachineRun:
        budgets.append(budget)
        return run_program(*arguments, budget=budget, **named)

    monkeypatch.setattr(run, "run_program", noted)
    for budget in (10**5, 90_000, 80_000, 70_000):
        assert simulate(trace, FAST, "vdnn", budget=budget).budget == budget
    assert budgets == [10**5, UNLIMITED]


def test_results_that_share_a_run_cannot_change_each_other(trace: Trace) -> None:
    first, second, third = (simulate(trace, FAST, "vdnn", budget=budget) for budget in (10**5, 90_000, 80_000))
    with pytest.raises(ValueError, match="read-only"):
        second.timeline.start_ns[0] = 7
    cast("dict[str, int]", second.metrics.copied_bytes)["d2h"] = 7
    assert third.metrics == first.metrics


def test_equal_plans_are_verified_once(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[object] = []
    check = reuse.check_program
    monkeypatch.setattr(reuse, "check_program", lambda *arguments: checks.append(arguments) or check(*arguments))
    for budget in (10**5, 90_000):
        simulate(trace, FAST, "capuchin", budget=budget)
    assert len(checks) == 1


def test_a_program_that_is_too_large_to_keep_is_verified_once_for_each_run(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[object] = []
    check = reuse.check_program
    monkeypatch.setattr(reuse, "check_program", lambda *arguments: checks.append(arguments) or check(*arguments))
    usual = simulate(copy(trace), FAST, "vdnn")
    checks.clear()
    monkeypatch.setattr(reuse, "_LARGEST", 0)
    large = simulate(copy(trace), FAST, "vdnn")
    assert len(checks) == 1
    assert list(large.timeline) == list(usual.timeline)
    assert large.metrics == usual.metrics


def test_a_trace_of_lists_that_changed_is_looked_at_again(trace: Trace) -> None:
    kernels = list(trace.kernels)
    changing = replace(trace, kernels=kernels)  # type: ignore[arg-type]
    node = load_node("v100")
    before = simulate(changing, node, "none").iteration_ns
    kernels[0] = replace(kernels[0], duration_ns=kernels[0].duration_ns + 1000)
    assert simulate(changing, node, "none").iteration_ns == before + 1000
