"""SwapAdvisor: what a searched order and searched classes give, and where they do not help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.reordered import Reordered
from simgpu.hardware.spec import HostSpec, NodeSpec
from simgpu.planning.slot_planner import SlotPlanner
from simgpu.policies.registry import make_policy
from simgpu.policies.swapadvisor.members import Mutation, crossed, first_members, needed_classes, rows_of
from simgpu.policies.swapadvisor.policy import SwapAdvisor
from simgpu.program.instructions import HOST, InitialContents
from simgpu.simulation.run import plan_context, simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from tests.policies.contract import node_of
from tests.semantics.hand_made import BACKWARD, block, held, kernel, node, trace
from tests.semantics.random_training import trainings

few = settings(deadline=None, suppress_health_check=list(HealthCheck))
QUICK = {"population": 8, "generations": 3}


def branches(count: int) -> Trace:
    """An inception block: each branch expands y to 300 bytes and reduces these to 20; recorded layer by layer."""
    numbers = range(count)
    return trace(
        [
            kernel("S", 10, "x", "y"),
            *(kernel(f"E{n}", 10, "y", f"e{n}") for n in numbers),
            *(kernel(f"R{n}", 10, f"e{n}", f"r{n}") for n in numbers),
            kernel("J", 10, " ".join(f"r{n}" for n in numbers), "z"),
        ],
        [
            held("x", 100),
            block("y", 100),
            *(block(f"e{n}", 300) for n in numbers),
            *(block(f"r{n}", 20) for n in numbers),
            block("z", 20),
        ],
    )


def test_a_searched_order_runs_branch_after_branch_without_swaps() -> None:
    """In the recorded order four blocks of 300 bytes are alive at once; branch by branch, one is."""
    inception = branches(4)
    recorded = simulate(inception, node(), SwapAdvisor(**QUICK, order="recorded"), budget=800)
    result = simulate(inception, node(), SwapAdvisor(**QUICK), budget=800)
    assert recorded.iteration_ns > 2 * recorded.ideal_ns
    assert result.iteration_ns == result.ideal_ns == 100
    assert sum(result.metrics.copied_bytes.values()) == 0
    assert result.metrics.device_peak_bytes <= 800
    (order,) = (each for each in result.program.transforms if isinstance(each, Reordered))
    ran = [each.id for each in result.graph.kernels]
    assert ran == [inception.kernels[k].id for k in order.order] != [each.id for each in inception.kernels]


def test_what_fits_in_the_recorded_order_is_not_searched() -> None:
    result = simulate(branches(4), node(), SwapAdvisor(**QUICK), budget=1400)
    assert result.iteration_ns == result.ideal_ns and result.program.transforms == ()
    assert "everything fits: nothing was searched" in result.notes


@few
@given(trainings(max_layers=6), st.floats(0.4, 0.9), st.integers(0, 9))
def test_it_is_never_slower_than_a_first_member_and_runs_as_planned(trace: Trace, share: float, seed: int) -> None:
    policy = SwapAdvisor(**QUICK)
    machine = node_of(10**6)
    budget = max(int(sum(each.bytes for each in trace.blocks) * share), 1)
    context = plan_context(trace, machine, policy, budget=budget, seed=seed)
    planner = SlotPlanner(context.graph, machine, budget)
    assume(needed_classes(planner).bytes <= budget)
    first = planner.times(rows_of(first_members(planner, 8, orders=True, rng=np.random.default_rng(seed))))
    result = simulate(trace, machine, policy, budget=budget, seed=seed)
    assert result.ideal_ns <= result.iteration_ns <= first.min()
    again = simulate(trace, machine, policy, budget=budget, seed=seed)
    assert (again.program, again.notes) == (result.program, result.notes)


@few
@given(trainings(max_layers=6), st.integers(0, 99))
def test_children_run_every_kernel_once_and_within_the_dependencies(trace: Trace, seed: int) -> None:
    context = plan_context(trace, node_of(10**6), SwapAdvisor())
    planner = SlotPlanner(context.graph, context.node, 1)
    rng = np.random.default_rng(seed)
    one, two = first_members(planner, 20, orders=True, rng=rng)[-2:]
    child = crossed(one, two, rng)
    for member in (child, Mutation(planner, orders=True)(child, rng)):
        Reordered(tuple(member.order.tolist())).apply(context.graph)
        assert len(member.tops) == len(member.shares) == len(planner.sizes)
    kept = Mutation(planner, orders=False)(child, rng)
    assert kept.order is child.order


def test_weights_may_exceed_the_memory() -> None:
    """Eight layers whose weights take 800 bytes, in 500."""
    layers = range(8)
    forward = [kernel(f"F{n}", 200, f"w{n} y{n}", f"y{n + 1}") for n in layers]
    backward = [kernel(f"B{n}", 400, f"w{n} y{n} y{n + 1}", f"w{n}", phase=BACKWARD) for n in reversed(layers)]
    network = trace(
        [*forward, *backward],
        [*(held(f"w{n}", 100) for n in layers), held("y0", 50), *(block(f"y{n + 1}", 50) for n in layers)],
    )
    result = simulate(network, node(), SwapAdvisor(**QUICK), budget=500)
    (away,) = result.program.other_contents
    assert isinstance(away, InitialContents) and away.memory == HOST and len(away.blocks) >= 3
    assert result.metrics.device_peak_bytes <= 500
    assert result.iteration_ns < 1.3 * result.ideal_ns


def test_a_budget_without_enough_slots_names_what_they_need() -> None:
    """E0 needs 300 and 100 bytes; J four slots of 20 bytes and one more for its result."""
    with pytest.raises(OutOfMemoryError) as caught:
        simulate(branches(4), node(), SwapAdvisor(**QUICK), budget=499)
    error = caught.value
    assert (error.requested, error.capacity) == (2 * 100 + 300 + 5 * 20, 499)
    assert error.holders[0] == ("1 x 300 B", 300)


@pytest.mark.parametrize("budget", [499, 600, 800, 1400])
def test_fits_agrees_with_the_plan(budget: int) -> None:
    policy = SwapAdvisor(**QUICK)
    context = plan_context(branches(4), node(), policy, budget=budget)
    fits = policy.fits(context)
    try:
        policy.plan(context)
        assert fits is True
    except OutOfMemoryError:
        assert fits is False


@pytest.mark.parametrize(
    ("machine", "how", "why"),
    [
        (node(), {"pool": "addressed"}, "the addressed pool has holes"),
        (node(engines=1), {}, "one copy engine serves both directions"),
        (node(host=599), {}, "pinned host memory may run short"),
    ],
    ids=["holes", "one engine", "little host memory"],
)
def test_where_times_are_not_exact_runs_choose(machine: NodeSpec, how: dict[str, str], why: str) -> None:
    network = chain([10] * 6, [20] * 6, [100] * 6)
    result = simulate(network, machine, SwapAdvisor(**QUICK), budget=450, **how)
    assert f"planned with times that are not exact on this node: {why}" in result.notes
    assert result.metrics.device_peak_bytes <= 450
    policy = SwapAdvisor(**QUICK)
    assert policy.fits(plan_context(network, machine, policy, budget=450, **how)) is None


def test_several_streams_and_wrong_parameters_are_refused() -> None:
    kernels = branches(2).kernels
    streams = replace(branches(2), kernels=(kernels[0], replace(kernels[1], stream=1), *kernels[2:]))
    with pytest.raises(InputError, match="compute streams"):
        simulate(streams, node(), SwapAdvisor(**QUICK), budget=500)
    with pytest.raises(InputError) as caught:
        make_policy("swapadvisor", {"population": 1, "generations": -1, "patience": 0})
    assert [problem.place for problem in caught.value.problems] == ["population", "generations", "patience"]


def test_gpus_that_train_together_cannot_exchange_weights_that_move() -> None:
    two = replace(node_of(10**9), gpus=2, host=HostSpec(accumulate_bandwidth=10**10))
    with pytest.raises(InputError, match="so it cannot be exchanged"):
        simulate(load_trace("digits-cnn-cpu"), two, SwapAdvisor(**QUICK), budget=20 * 2**20, gpus=2)
