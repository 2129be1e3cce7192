"""No placement is faster than the lower bound, and none fits if the bound reports that none does."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu.errors import MissingExtraError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.planning.bound import Bound, lower_bound, peak_lower_bound, quick_bound
from simgpu.planning.bound_program import LinearProgram, Solved, Unit
from simgpu.planning.evaluator import Costs, Evaluator
from simgpu.planning.options import Decisions
from simgpu.trace.chain import chain
from simgpu.units import format_bytes
from tests.planning.evaluated import cases

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=50)


def all_costs(evaluator: Evaluator) -> Costs:
    """The costs of every vector."""
    return evaluator.costs(list(itertools.product(*map(range, evaluator.decisions.choices))))


def best_ns(evaluator: Evaluator) -> int | None:
    """The time of the fastest vector that fits; None if none fits."""
    costs = all_costs(evaluator)
    return int(costs.time_ns[costs.short == 0].min()) if (costs.short == 0).any() else None


@st.composite
def small(draw: st.DrawFn) -> Evaluator:
    """An evaluator small enough to try every vector, with a budget from just enough to ample."""
    case = draw(cases(slow=draw(st.booleans())))
    vectors = int(np.prod(case.evaluator.decisions.choices))
    assume(1 < vectors <= 2500)
    costs = all_costs(case.within(0).evaluator)
    smallest, most = int(costs.short.min()), int(costs.peak.max())
    budgets = [
        smallest // 2,
        smallest,
        smallest,
        smallest + 1,
        (smallest + most) // 2,
        (3 * smallest + most) // 4,
        most,
        draw(st.integers(0, most)),
    ]
    return case.within(draw(st.sampled_from(budgets))).evaluator


def chained(bandwidth: int, budget: int) -> Evaluator:
    graph = TaskGraph.of(chain([5, 7, 9, 4, 8], [10, 14, 18, 9, 11], [100, 200, 300, 150, 250]))
    node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", bandwidth, bandwidth))
    return Evaluator(graph, node, budget, Decisions.of(graph))


@pytest.mark.slow
def test_no_placement_of_a_random_iteration_beats_the_lower_bound():
    seen: Counter[str] = Counter()

    @settings(many, max_examples=300, derandomize=True)  # so that the counts below are reproducible
    @given(small())
    def check(evaluator: Evaluator) -> None:
        result, best = lower_bound(evaluator.tables), best_ns(evaluator)
        assert quick_bound(evaluator.tables).ns <= result.ns
        seen["does not fit"] += not result.fits
        if best is None:
            return
        assert result.fits
        assert result.compute_ns <= result.ns <= best
        seen["fits"] += 1
        seen["more than the kernels"] += result.ns > result.compute_ns
        seen["sharp"] += result.ns == best > result.compute_ns

    check()
    assert seen["does not fit"] > 0, seen
    assert seen["more than the kernels"] > 10, seen
    assert seen["sharp"] > 0, seen


@many
@given(small())
def test_every_placement_needs_at_least_the_minimum_peak(evaluator: Evaluator):
    costs = all_costs(evaluator)
    assert peak_lower_bound(evaluator.tables)[0] <= costs.peak.min()


@pytest.mark.parametrize("bandwidth", [10**9, 3 * 10**9, 10**10])
def test_on_a_chain_the_bound_is_below_the_best_and_never_rises_with_memory(bandwidth: int):
    bounds = []
    minimum, _ = peak_lower_bound(chained(bandwidth, 10**4).tables)
    for budget in range(minimum, 1101, 25):
        evaluator = chained(bandwidth, budget)
        result, best = lower_bound(evaluator.tables), best_ns(evaluator)
        assert best is None or result.ns <= best
        bounds.append(result.ns)
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]


def test_with_enough_memory_the_bound_is_the_ideal_time():
    evaluator = chained(10**9, 10**4)
    result = lower_bound(evaluator.tables)
    assert result.ns == best_ns(evaluator) == result.compute_ns == evaluator.graph.ideal_ns()
    assert result.pressure == ()


def test_a_budget_below_the_minimum_peak_does_not_fit_and_names_the_kernel():
    minimum, kernel = peak_lower_bound(chained(10**9, 10**4).tables)
    evaluator = chained(10**9, minimum - 1)
    bound = lower_bound(evaluator.tables)
    assert not bound.fits
    assert bound.kernel == kernel
    assert f"a kernel needs {format_bytes(minimum)}" in bound.how
    assert best_ns(evaluator) is None


def test_a_faster_link_never_raises_the_bound():
    bounds = [lower_bound(chained(bandwidth, 800).tables).ns for bandwidth in (10**9, 2 * 10**9, 10**10, 10**11)]
    assert bounds == sorted(bounds, reverse=True)


def test_no_multipliers_prove_more_than_the_minimum():
    """Minimise t subject to t >= 10 - 7 x, t >= 4 x, t <= 100 and x <= 1: t = 40/11 at x = 10/11."""
    program = LinearProgram()
    t, x = program.variable(0, 100, Unit.NS), program.variable()
    program.row({t: 1, x: 7}, 10)
    program.row({t: 1, x: -4}, 0)
    result = program.solve()
    assert result is not None
    assert Fraction(40, 11) - Fraction(1, 10**9) < program.proven(result) <= Fraction(40, 11)
    for first, second in itertools.product([-1.0, 0.0, 0.2, 0.5, 3.0], repeat=2):
        assert program.proven(Solved(np.zeros(2), np.array([first, second]))) <= Fraction(40, 11)


@many
@given(st.data())
def test_proven_bounds_are_below_every_feasible_point(data: st.DataObject):
    """Checked at integer points, independently of the duality that the proof uses."""
    numbers = st.integers(-20, 20)
    program = LinearProgram()
    for _ in range(3):
        program.variable(0, data.draw(st.integers(1, 5)))
    points = list(itertools.product(*(range(high + 1) for high in program.upper)))
    for _ in range(data.draw(st.integers(1, 4))):
        program.row(dict(enumerate(data.draw(st.tuples(numbers, numbers, numbers)))), data.draw(numbers), Unit.PART)
    stored = [
        p for p in points if all(sum(a * p[j] for j, a in row.items()) >= smallest for row, smallest, _ in program.rows)
    ]
    assume(stored)
    drawn = data.draw(st.lists(st.floats(-1, 3), min_size=len(program.rows), max_size=len(program.rows)))
    solved = program.solve()
    assert solved is not None
    for multipliers in (np.array(drawn), solved.multipliers):
        assert program.proven(Solved(np.zeros(3), multipliers)) <= min(p[0] for p in stored)


def test_without_scipy_the_error_names_the_extra_and_the_quick_bound_works(
    monkeypatch: pytest.MonkeyPatch,
):
    evaluator = chained(10**9, 800)
    expected = quick_bound(evaluator.tables)
    for name in ("scipy", "scipy.optimize", "scipy.sparse"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match="calibrate"):
        lower_bound(evaluator.tables)
    assert quick_bound(evaluator.tables).ns == expected.ns <= best_ns(evaluator)


def test_a_smaller_budget_gives_a_larger_bound():
    evaluator = chained(10**9, 800)
    tight: Bound = lower_bound(evaluator.tables)
    ample: Bound = lower_bound(replace(evaluator, budget=10**4).tables)
    assert tight.ns > ample.ns
