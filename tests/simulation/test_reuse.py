"""Runs of one trace reuse plans and checked programs, and give what they give alone."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import pytest

from simgpu.errors import OutOfMemoryError, PolicyError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import COMPUTE, Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace

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
