"""Compiled or plain Python, one vector or many, one thread or several: the results are equal."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.planning import clocks, plain
from simgpu.planning.columns import RESULTS
from simgpu.planning.evaluator import DOES_NOT_FIT, Evaluator, compiled_evaluate_all
from simgpu.planning.options import Decisions
from simgpu.planning.tables import scratch_for
from simgpu.trace.chain import chain
from tests.planning.evaluated import Case, tight_cases
from tests.semantics.hand_made import node

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
FOUR = TaskGraph.of(chain([5, 7, 9, 9, 4], [10, 14, 18, 18, 9], [100, 200, 300, 400, 50]))


def several(data: st.DataObject, case: Case) -> np.ndarray:
    choices = case.evaluator.decisions.choices
    row = st.tuples(*(st.integers(0, count - 1) for count in choices))
    rows = data.draw(st.lists(row, min_size=1, max_size=20))
    return np.array(rows, np.int8).reshape(len(rows), len(choices))


@many
@given(st.data(), tight_cases())
def test_plain_python_and_compiled_code_give_equal_results(data: st.DataObject, case: Case):
    tables, vectors = case.evaluator.tables, several(data, case)
    result = []
    for evaluate in (clocks.evaluate_all, plain.evaluate_all, compiled_evaluate_all()):
        out = np.zeros((len(vectors), len(RESULTS)), np.int64)
        scratch = scratch_for(tables, 1000)
        evaluate(tables, scratch, vectors, out)
        result.append((out.tobytes(), scratch.states.tobytes()))
    assert result[0] == result[1] == result[2]


@pytest.mark.slow
@many
@given(st.data(), tight_cases())
def test_vectors_cost_the_same_in_a_batch_and_alone(data: st.DataObject, case: Case):
    vectors = several(data, case)
    together = astuple(case.evaluator.costs(vectors))
    alone = [astuple(case.evaluator.costs(vectors[i : i + 1])) for i in range(len(vectors))]
    assert [column.tolist() for column in together] == [[one[c][0] for one in alone] for c in range(len(together))]


def test_the_number_of_threads_does_not_change_costs():
    decisions = Decisions.of(FOUR)
    rng = np.random.default_rng(0)
    vectors = rng.integers(0, 3, (1000, len(decisions.maps)), dtype=np.int8)
    evaluators = [Evaluator(FOUR, node(900), 900, decisions, threads=threads) for threads in (1, 2, 7)]
    columns = [[column.tobytes() for column in astuple(each.costs(vectors))] for each in evaluators]
    assert columns[0] == columns[1] == columns[2]


def test_an_empty_batch_and_a_graph_without_activations_can_be_evaluated():
    decisions = Decisions.of(FOUR)
    assert Evaluator(FOUR, node(), 10**6, decisions).costs(np.zeros((0, len(decisions.maps)))).time_ns.tolist() == []
    short = TaskGraph.of(chain([5], [7], [100]))
    costs = Evaluator(short, node(), 10**6, Decisions.of(short)).costs(np.zeros((1, 0)))
    assert (costs.time_ns.tolist(), costs.peak.tolist()) == ([12], [100])


@pytest.mark.parametrize("vectors", [[[0, 0]], [[0, 0, 3]], [[0, 0, -1]], [0, 0, 0], [[0, 0, 256]]])
def test_vectors_of_wrong_length_or_with_unknown_options_are_refused(vectors: list[object]):
    evaluator = Evaluator(FOUR, node(), 10**6, Decisions.of(FOUR))
    assert len(evaluator.decisions.maps) == 3
    with pytest.raises((ValueError, OverflowError)):
        evaluator.costs(vectors)


def test_vectors_that_do_not_fit_score_worst_ordered_by_missing_bytes():
    decisions = Decisions.of(FOUR)
    evaluator = Evaluator(FOUR, node(), 10**6, decisions)
    vectors = np.array([[0] * 3, [1] * 3], np.int8)
    peak = int(evaluator.costs(vectors).peak[0])
    less = [replace(evaluator, budget=budget).score(vectors)[0] for budget in (peak, peak - 1, peak - 2)]
    assert less == [FOUR.ideal_ns(), DOES_NOT_FIT + 1, DOES_NOT_FIT + 2]


def test_tables_that_budgets_share_are_those_of_a_graph_of_their_own() -> None:
    """Also after other links and decisions, and the one budget does not change the other."""
    trace = chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400])
    graph, fast = TaskGraph.of(trace), NodeSpec("node", GpuSpec("gpu", 10**4), LinkSpec("wire", 10**10, 10**10))
    slow = replace(fast, link=LinkSpec("wire", 10**9, 10**9))
    seen = []
    for each, budget, early in product((fast, slow), (1000, 900), (True, False)):
        alone = TaskGraph.of(trace)
        new = Evaluator(alone, each, budget, Decisions.of(alone), early=early).tables
        seen.append((Evaluator(graph, each, budget, Decisions.of(graph), early=early).tables, new))
    for shared, new in seen:
        assert all(np.array_equal(one, other) for one, other in zip(shared, new, strict=True))
