"""HOME's policy: the search of algorithms 1 to 3, and the asynchronous program of sections 3.6 and 3.7."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.options import Action, Decisions, Option
from simgpu.planning.search.enumeration import exhaustive
from simgpu.policies.base import PlanContext
from simgpu.policies.home import Home
from simgpu.simulation.run import simulate, task_graph
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.policies.contract import PLENTY, node_of
from tests.semantics.hand_made import node as bare_node

TIMES = [30, 5, 40, 5, 30, 10, 20, 10]


def trace_of(layers: int = 8) -> Trace:
    """A chain with expensive and cheap layers, and large and small feature maps."""
    return chain(TIMES[:layers], [2 * ns for ns in TIMES[:layers]], [100 + 40 * (n % 3) for n in range(layers)])


def context_of(trace: Trace, node: NodeSpec, budget: int, seed: int = 0) -> PlanContext:
    return PlanContext(task_graph(trace, node), node, budget, None, np.random.default_rng(seed))  # type: ignore[arg-type]


def keeping_peak(trace: Trace) -> int:
    node = node_of(PLENTY)
    graph = task_graph(trace, node)
    decisions = Decisions.of(graph)
    return int(Evaluator(graph, node, PLENTY, decisions).costs([[0] * len(decisions.maps)]).peak[0])


def test_with_ample_memory_everything_stays_resident():
    result = simulate(trace_of(), node_of(PLENTY), "home")
    assert result.iteration_ns == result.ideal_ns
    assert result.metrics.copied_bytes["d2h"] == 0


@pytest.mark.parametrize("update", ["full", "recombine"])
@pytest.mark.parametrize("share", [0.9, 0.8, 0.7, 0.6])
def test_the_swarm_approaches_the_optimum_of_a_small_graph(update: str, share: float):
    """Recombination draws nothing new after the start, so it may miss the optimum; it is never below it."""
    trace, node = trace_of(), node_of(PLENTY)
    budget = round(keeping_peak(trace) * share)
    decisions = Decisions.of(task_graph(trace, node))
    best = exhaustive(decisions.choices, Evaluator(task_graph(trace, node), node, budget, decisions).score)
    result = simulate(trace, node, "home", parameters={"update": update}, budget=budget)
    assert result.iteration_ns >= best.cost
    # 500 random particles of 3**6 vectors have seen most of them.
    assert result.iteration_ns <= 1.05 * best.cost


def test_the_same_seed_gives_the_same_program_and_another_may_not():
    trace, node = trace_of(), node_of(PLENTY)
    budget = round(keeping_peak(trace) * 0.7)
    few = {"particles": 5, "iterations": 2}
    programs = [
        simulate(trace, node, "home", parameters=few, budget=budget, seed=seed).program for seed in (1, 1, 2, 3, 4)
    ]
    assert programs[0] == programs[1]
    assert len({str(program.segments) for program in programs}) > 1


@settings(deadline=None, max_examples=30)
@given(st.floats(0.3, 1.0), st.integers(0, 100))
def test_fits_agrees_with_the_result_of_the_search(share: float, seed: int):
    """`fits` is true exactly if the placement found by a swarm of the same seed fits."""
    trace, node = trace_of(), node_of(PLENTY)
    budget = round(keeping_peak(trace) * share)
    small = Home(particles=8, iterations=5)
    says = small.fits(context_of(trace, node, budget, seed))
    try:
        simulate(trace, node, small, budget=budget, seed=seed)
        runs = True
    except OutOfMemoryError:
        runs = False
    assert says is runs


def test_the_evaluator_cost_equals_the_simulated_time():
    trace, node = trace_of(), node_of(PLENTY)
    budget = round(keeping_peak(trace) * 0.7)
    home = Home()
    context = context_of(trace, node, budget)
    decisions = home.decisions(context)
    evaluator = home.evaluator(context, decisions)
    result = home.search(context, evaluator)
    assert simulate(trace, node, "home", budget=budget).iteration_ns == result.cost


def test_a_note_explains_why_the_closed_form_does_not_apply():
    node = node_of(PLENTY)
    half = replace(node, link=replace(node.link, duplex=Duplex.HALF))
    trace = trace_of()
    budget = round(keeping_peak(trace) * 0.8)
    notes = simulate(trace, half, "home", budget=budget).notes
    assert any("not exact on this node: both directions share the link" in note for note in notes)


def test_without_a_closed_form_home_adopts_the_fastest_simulated_placement():
    """x2, x3 and x4 take 200 bytes together while F3 runs, so a budget of 199 bytes evicts x2.

    Recomputing x2 adds 10 ns to the 120 ns of all kernels, and x3 may stay. Swapping x2 costs far more: F1 ends at 10,
    the offload at 110, only then F3 has memory, and fetching x2 takes 100 ns.
    """
    trace = chain([10, 10, 10, 10], [20, 20, 20, 20], [0, 100, 40, 60])
    result = simulate(trace, bare_node(duplex=Duplex.HALF), "home", budget=199)
    assert result.iteration_ns == 120 + 10
    assert "2 feature maps: 1 kept, 0 swapped, 1 recomputed" in result.notes


def test_offloads_after_the_last_reader_never_begin_before_overlapping_ones():
    trace, node = trace_of(), node_of(PLENTY)
    budget = round(keeping_peak(trace) * 0.7)
    overlapped, after = (
        simulate(trace, node, "home", parameters={"offload": offload}, budget=budget).iteration_ns
        for offload in ("overlapped", "after")
    )
    assert overlapped <= after


def test_draining_never_makes_a_run_faster():
    """The same placement on a slow link; a fetch of a block that is still being offloaded waits for all copies."""
    trace, node = trace_of(), node_of(PLENTY)
    node = replace(node, link=replace(node.link, d2h_bandwidth=10**9))
    graph = task_graph(trace, node)
    decisions = Decisions.of(graph)
    # On a chain the block fetched first was offloaded last; only other prefetch moments add copies to wait for.
    decisions = decisions.with_options([[Option(Action.SWAP, 3), Option(Action.SWAP, 6)]] * len(decisions.maps))
    rng = np.random.default_rng(0)
    vectors = np.array([[rng.integers(count) for count in decisions.choices] for _ in range(200)], np.int8)
    plain, drained = (
        Evaluator(graph, node, PLENTY, decisions, drain=drain).costs(vectors).time_ns for drain in (False, True)
    )
    assert (plain <= drained).all()
    assert (plain < drained).any()
