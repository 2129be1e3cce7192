"""Capuchin as HOME reimplemented it: one feature map after the other, by the cost so far."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.options import Decisions
from simgpu.policies.capuchin.policy import Capuchin, first_to_current
from simgpu.program.verify import verify
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.policies.capuchin.test_passive import context_of
from tests.semantics.hand_made import BACKWARD, block, held, kernel, node, trace
from tests.semantics.random_traces import nodes, traces

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=25)
POLICY = Capuchin("home")


def decided(trace: Trace, budget: int) -> tuple[int, ...]:
    tasks = TaskGraph.of(trace)
    return first_to_current(tasks, node(), budget, Decisions.of(tasks))


def test_ample_memory_keeps_every_activation():
    assert decided(chain([50] * 8, [50] * 8, [60] * 8), 8 * 60) == (0,) * 6


def test_the_first_activations_are_evicted_until_the_iteration_fits():
    """Every 60 bytes less evict one more of x2 to x7; copies of 60 ns end during kernels of 100 ns."""
    network = chain([100] * 8, [100] * 8, [60] * 8)
    assert [decided(network, budget) for budget in (480, 479, 420, 419)] == [
        (0, 0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0, 0),
        (1, 1, 0, 0, 0, 0),
    ]


def test_each_tensor_takes_the_cheaper_of_swap_and_recompute():
    """Copies of 60 ns during kernels of 10 ns: recomputing costs only 10 ns."""
    vector = decided(chain([10] * 8, [10] * 8, [60] * 8), 300)
    assert vector[:3] == (2, 2, 2)


def test_each_map_is_decided_with_all_later_maps_kept():
    """Every entry is the cheaper action for its map with all later maps kept and unlimited memory."""
    network = chain([50, 20, 30, 70, 10, 40, 60], [30, 50, 20, 10, 70, 40, 20], [40, 90, 60, 30, 80, 50, 70])
    tasks = TaskGraph.of(network)
    decisions = Decisions.of(tasks)
    vector = first_to_current(tasks, node(), 250, decisions)
    assert any(vector)
    unlimited = Evaluator(tasks, node(), 10**12, decisions)
    for position, chosen in enumerate(vector):
        if chosen:
            rest = (0,) * (len(vector) - position - 1)
            swapped, again = unlimited.costs([(*vector[:position], way, *rest) for way in (1, 2)]).time_ns.tolist()
            assert chosen == (1 if swapped <= again else 2)


TIME = st.integers(5, 100)


@many
@given(
    layers=st.lists(st.tuples(TIME, TIME, TIME), min_size=3, max_size=9),
    nodes=st.lists(nodes(), min_size=1, max_size=2),
    budgets=st.lists(st.integers(50, 600), max_size=5),
)
def test_choices_that_a_graph_keeps_equal_those_of_a_new_graph(
    layers: list[tuple[int, int, int]], nodes: list[NodeSpec], budgets: list[int]
) -> None:
    """Budgets in any order, on two nodes in turn: some need more choices than the ones before, some fewer."""
    trace = chain(*map(list, zip(*layers, strict=True)))
    shared = TaskGraph.of(trace)
    for budget, own in product(budgets, nodes):
        new = TaskGraph.of(trace)
        vectors = [first_to_current(graph, own, budget, Decisions.of(graph)) for graph in (shared, new)]
        assert vectors[0] == vectors[1]
        costs = [Evaluator(graph, own, budget, Decisions.of(graph)).costs(vectors[:1]) for graph in (shared, new)]
        assert repr(costs[0]) == repr(costs[1])


def test_the_greedy_choice_may_be_slower_than_the_best_of_all_placements():
    """x2 is evicted because it is first, although evicting x3 (swap) and x4 (recompute) alone would be enough."""
    network = chain([20, 80, 80, 20, 60, 20], [70, 30, 10, 50, 70, 70], [40, 30, 30, 90, 80, 70])
    tasks = TaskGraph.of(network)
    decisions = Decisions.of(tasks)
    vectors = [first_to_current(tasks, node(), 255, decisions), (0, 1, 2, 0)]
    assert vectors[0] == (1, 1, 1, 0)
    evaluator = Evaluator(tasks, node(), 255, decisions)
    assert evaluator.costs(vectors).time_ns.tolist() == [690, 660]
    everything = evaluator.costs(list(product(*map(range, decisions.choices))))
    assert everything.time_ns[everything.short <= 0].min() == 660


def test_several_compute_streams_are_refused():
    two = trace([kernel("a", writes="x"), kernel("b", reads="x", stream=1)], [block("x", 10)])
    with pytest.raises(InputError, match="capuchin runs one layer at a time"):
        POLICY.plan(context_of(two, node(), 100))


@many
@given(st.data())
def test_any_trace_at_any_budget_gives_a_legal_program(data: st.DataObject):
    recorded, where = data.draw(traces()), data.draw(nodes())
    budget = data.draw(st.integers(0, 1 + 2 * sum(block.bytes for block in recorded.blocks)))
    context = context_of(recorded, where, budget)
    program = POLICY.plan(context)
    verify(program, context.graph)
    try:
        result = simulate(recorded, where, POLICY, budget=budget)
    except OutOfMemoryError:
        return
    assert max(result.timeline.memory("device").used, default=0) <= budget


def test_a_tensor_whose_recompute_does_not_fit_is_swapped():
    """Recomputing y's 40 bytes takes 1 ns, less than a swap; but f1 would also write s, next to the gradient g."""

    def network(saved_bytes: int) -> Trace:
        kernels = [
            kernel("f1", 1, reads="x", writes="y s", layer="f1"),
            kernel("f2", 1, reads="y", writes="z", layer="f2"),
            kernel("f3", 5, writes="t", layer="f3"),
            kernel("b3", 5, reads="z", writes="g", phase=BACKWARD, layer="f3"),
            kernel("b1", 5, reads="y g", phase=BACKWARD, layer="f1"),
        ]
        return trace(
            kernels,
            [
                held("x", 0),
                block("y", 40),
                block("z", 0),
                block("s", saved_bytes),
                block("t", 100),
                block("g", 10),
            ],
        )

    assert decided(network(89), 140) == (0,)
    assert decided(network(89), 139) == (2,)
    assert decided(network(90), 139) == (1,)
