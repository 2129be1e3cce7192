"""`joint`: the optimum on small graphs, never slower than its start, and its distance to the lower bound."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.planning.evaluator import DOES_NOT_FIT, Evaluator
from simgpu.planning.options import Action, Decisions
from simgpu.planning.search.enumeration import exhaustive
from simgpu.planning.search.swarm import Swarm
from simgpu.policies.base import PlanContext
from simgpu.policies.joint.policy import Joint
from simgpu.simulation.run import simulate, task_graph
from simgpu.trace.chain import chain
from simgpu.trace.model import SparsitySample, Trace
from tests.policies.contract import PLENTY, node_of

RIVALS = (("vdnn", {}), ("vdnn", {"mode": "conv"}), ("superneurons", {}), ("capuchin", {}), ("home", {}))
RIVALS = (*RIVALS, ("capuchin", {"version": "published"}))

layers = st.integers(3, 12).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(1, most), min_size=n, max_size=n) for most in (60, 120, 400)))
)
budgets = st.floats(0.3, 1.0)


def chain_of(forward: list[int], backward: list[int], sizes: list[int]) -> Trace:
    return chain(forward, backward, sizes)


def peak_of_keeping(trace: Trace, node: NodeSpec) -> int:
    graph = task_graph(trace, node)
    decisions = Decisions.of(graph)
    return int(Evaluator(graph, node, PLENTY, decisions).costs([[0] * len(decisions.maps)]).peak[0])


def time_of(trace: Trace, node: NodeSpec, policy: str, budget: int, **parameters: object) -> int | None:
    try:
        return simulate(trace, node, policy, parameters=parameters, budget=budget).iteration_ns
    except OutOfMemoryError:
        return None


@settings(deadline=None, max_examples=25)
@given(layers, budgets)
def test_joint_finds_the_optimum_of_small_graphs(shape: tuple[list[int], list[int], list[int]], share: float):
    """Up to ten feature maps: compared with every placement of keep, swap and recompute."""
    trace, node = chain_of(*shape), node_of(PLENTY)
    budget = round(peak_of_keeping(trace, node) * share)
    graph = task_graph(trace, node)
    decisions = Decisions.of(graph)
    assume(len(decisions.maps) <= 10)
    best = exhaustive(decisions.choices, Evaluator(graph, node, budget, decisions).score)
    result = time_of(trace, node, "joint", budget, evaluations=1000, lower_bound=False)
    if best.cost < DOES_NOT_FIT:
        assert result is not None
        assert result <= best.cost


@settings(deadline=None, max_examples=25)
@given(layers, budgets)
def test_joint_finds_the_optimum_with_every_prefetch_moment(
    shape: tuple[list[int], list[int], list[int]], share: float
):
    """Compared with all placements, including every prefetch moment, on graphs small enough to try them all."""
    trace, node = chain_of(*shape), node_of(PLENTY)
    budget = round(peak_of_keeping(trace, node) * share)
    graph = task_graph(trace, node)
    context = PlanContext(graph, node, budget, None, np.random.default_rng(0))  # type: ignore[arg-type]
    decisions = Joint().decisions(context)
    assume(np.prod(decisions.choices) <= 1 << 16)
    best = exhaustive(decisions.choices, Evaluator(graph, node, budget, decisions).score)
    result = time_of(trace, node, "joint", budget, evaluations=1, lower_bound=False)
    if best.cost < DOES_NOT_FIT:
        assert result is not None
        assert result <= best.cost


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(layers, budgets)
def test_joint_is_never_slower_than_the_policies_it_starts_from(
    shape: tuple[list[int], list[int], list[int]], share: float
):
    trace, node = chain_of(*shape), node_of(PLENTY)
    budget = round(peak_of_keeping(trace, node) * share)
    result = time_of(trace, node, "joint", budget, evaluations=1, lower_bound=False)
    for policy, parameters in RIVALS:
        rival = time_of(trace, node, policy, budget, **parameters)
        if rival is not None:
            assert result is not None, f"{policy} fits"
            assert result <= rival, policy


def test_joint_is_not_slower_where_the_closed_form_is_inexact():
    trace, node = (
        chain([30, 5, 40, 5, 30, 10], [60, 10, 80, 10, 60, 20], [100, 140, 180, 100, 140, 180]),
        node_of(PLENTY),
    )
    half = replace(node, link=replace(node.link, duplex=Duplex.HALF))
    budget = round(peak_of_keeping(trace, node) * 0.75)
    result = time_of(trace, half, "joint", budget, lower_bound=False)
    rivals = [time_of(trace, half, policy, budget, **parameters) for policy, parameters in RIVALS]
    assert result is not None
    assert all(result <= rival for rival in rivals if rival is not None)


def test_the_gap_of_the_swarm_to_the_optimum_is_small_on_small_graphs(record_property: pytest.RecordProperty):
    """The gap is reported and never negative; the swarm only recombines random particles and may miss the optimum."""
    rng, gaps = np.random.default_rng(1), []
    node = node_of(PLENTY)
    for _ in range(20):
        forward, backward = rng.integers(1, 60, 10).tolist(), rng.integers(1, 120, 10).tolist()
        trace = chain_of(forward, backward, rng.integers(50, 400, 10).tolist())
        graph = task_graph(trace, node)
        decisions = Decisions.of(graph)
        score = Evaluator(graph, node, round(peak_of_keeping(trace, node) * 0.7), decisions).score
        best = exhaustive(decisions.choices, score)
        if best.cost < DOES_NOT_FIT:
            gaps.append(Swarm(decisions.choices, len(decisions.choices)).minimise(score).cost / best.cost - 1)
    record_property("swarm gap, mean and worst", f"{np.mean(gaps):.4f} {np.max(gaps):.4f}")
    assert len(gaps) > 10
    assert min(gaps) >= 0
    assert np.mean(gaps) < 0.05


def test_sparse_activations_are_encoded_if_that_is_faster():
    """With a slow link and fast codecs, activations that are mostly zeros are encoded, and the run is faster."""
    trace = chain([9_000_000] * 6, [18_000_000] * 6, [400_000_000] * 6)
    sparse = replace(
        trace,
        kernels=tuple(replace(k, op="relu") if k.phase == "forward" else k for k in trace.kernels),
        sparsity=tuple(SparsitySample(f"x{n}", 0, 0.9) for n in range(1, 7)),
    )
    node = node_of(10**12)
    budget = 1_700_000_000
    plain, encoded = (
        simulate(each, node, "joint", budget=budget, parameters={"lower_bound": False}) for each in (trace, sparse)
    )
    assert any("swapped encoded" in note for note in encoded.notes)
    assert encoded.iteration_ns < plain.iteration_ns


@pytest.mark.parametrize("share", [1.0, 0.8, 0.6])
def test_the_note_gives_the_distance_to_the_lower_bound(share: float):
    """The bound applies to every placement; with ample memory the distance is zero."""
    trace, node = (
        chain([30, 5, 40, 5, 30, 10], [60, 10, 80, 10, 60, 20], [100, 140, 180, 100, 140, 180]),
        node_of(PLENTY),
    )
    budget = round(peak_of_keeping(trace, node) * share)
    result = simulate(trace, node, "joint", budget=budget)
    note = next(note for note in result.notes if "over the best possible" in note)
    over = float(re.match(r"at most ([\d.]+)%", note).group(1))  # type: ignore[union-attr]
    assert over >= 0
    if share == 1.0:
        assert over == 0


def test_the_note_reports_that_no_placement_is_bounded():
    """There is no bound on a node with inexact times, nor if no placement of these actions fits."""
    trace, node = chain([5] * 8, [10] * 8, [100] * 8), node_of(PLENTY)
    half = replace(node, link=replace(node.link, duplex=Duplex.HALF))
    assert not any("best possible" in note for note in simulate(trace, half, "joint", budget=500).notes)
    passive = simulate(trace, node, "joint", budget=250).notes
    assert not any("best possible" in note for note in passive)
    assert any("No placement of feature maps alone fits (a kernel needs 300 B" in note for note in passive)
    assert any(note.startswith("at most") and "moves more than feature maps" in note for note in passive)


def test_actions_0_to_2_are_keep_swap_and_recompute_as_in_home():
    """So HOME's placements are also vectors of these decisions."""
    trace, node = chain([30] * 8, [60] * 8, [100] * 8), node_of(PLENTY)
    context = PlanContext(task_graph(trace, node), node, PLENTY, None, np.random.default_rng(0))  # type: ignore[arg-type]
    for own, basic in zip(Joint().decisions(context).options, Decisions.of(context.graph).options, strict=True):
        assert own[: len(basic)] == basic
        assert all(option.action is Action.SWAP for option in own[len(basic) :])
