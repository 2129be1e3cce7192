"""For any placement, kernels run in the trace's order and read the same values as without offloading."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.verify import verify
from tests.machine.test_against_reference import compare
from tests.semantics.random_traces import (
    careless_placements,
    encoded_graphs,
    mixed_placements,
    nodes,
    repeatable_traces,
)
from tests.semantics.random_training import trainings
from tests.semantics.symbolic import Symbolic

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)


def same_values(graph: TaskGraph, placement: Placement, choice: Random) -> None:
    plain = Symbolic(graph, lower(graph, Placement()), choice).run()
    program = lower(graph, placement)
    verify(program, graph)
    moved = Symbolic(graph, program, choice).run()
    assert moved.order == [(iteration, k) for iteration in range(2) for k in range(len(graph.kernels))]
    assert moved.contents == plain.contents
    assert moved.ends == plain.ends


@pytest.mark.slow
@many
@given(st.data(), st.randoms(use_true_random=False))
def test_swaps_and_recomputes_of_training_do_not_change_values(data: st.DataObject, choice: Random):
    graph = data.draw(encoded_graphs(of=trainings()))
    same_values(graph, data.draw(mixed_placements(graph)), choice)


@pytest.mark.slow
@many
@given(st.data(), st.randoms(use_true_random=False))
def test_swaps_and_recomputes_of_any_kernels_do_not_change_values(data: st.DataObject, choice: Random):
    graph = data.draw(encoded_graphs(of=repeatable_traces()))
    same_values(graph, data.draw(mixed_placements(graph)), choice)


@many
@given(st.data(), st.randoms(use_true_random=False))
def test_random_recompute_requests_are_refused_by_the_lowering_or_computed_correctly(
    data: st.DataObject, choice: Random
):
    graph = TaskGraph.of(data.draw(st.one_of(trainings(), repeatable_traces())))
    placement = data.draw(careless_placements(graph))
    try:
        lower(graph, placement)
    except ProgramError:
        return
    same_values(graph, placement, choice)


@many
@given(st.data(), st.booleans())
def test_every_event_happens_when_the_reference_model_predicts(data: st.DataObject, tight: bool):
    """The machine compared with the reference, with relaunches and with offloads during the last reader."""
    graph = data.draw(encoded_graphs(of=st.one_of(trainings(max_layers=5), repeatable_traces())))
    program = lower(graph, data.draw(mixed_placements(graph)))
    node, budget = data.draw(nodes(launches=True)), None
    if tight:
        unit = node.gpu.alignment
        resident = sum(-(-graph.sizes[b] // unit) * unit for b in program.resident)
        budget = resident + data.draw(st.integers(0, sum(graph.sizes)))
    compare(program, graph, node, budget)
