"""Integer programs: the parts that no row connects are solved one by one, and together they are the best solution."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

from simgpu.plans.milp import IntegerProgram, solve
from simgpu.plans.rows import Chosen

#: Costs of the choices of a part, and rows of it: coefficients and the least sum.
Part = tuple[list[int], list[tuple[list[int], int]]]


@st.composite
def parts(draw: st.DrawFn) -> Part:
    count = draw(st.integers(1, 4))
    numbers = st.lists(st.integers(-3, 5), min_size=count, max_size=count)
    return draw(numbers), draw(st.lists(st.tuples(numbers, st.integers(-4, 6)), max_size=3))


def best(part: Part) -> int | None:
    """The least cost, of all combinations."""
    costs, rows = part
    fitting = (
        values
        for values in product((0, 1), repeat=len(costs))
        if all(sum(a * b for a, b in zip(row, values, strict=True)) >= least for row, least in rows)
    )
    return min((sum(a * b for a, b in zip(costs, values, strict=True)) for values in fitting), default=None)


@given(st.lists(parts(), min_size=1, max_size=4), st.integers(0, 1000))
def test_parts_are_solved_as_well_as_all_combinations(given: list[Part], constant: int) -> None:
    program = IntegerProgram(constant=constant)
    for number, (costs, rows) in enumerate(given):
        choices = [program.binary(Chosen("region", 10 * number + place)) for place in range(len(costs))]
        program.cost |= dict(zip(choices, map(float, costs), strict=True))
        for row, least in rows:
            program.row({choice: float(each) for choice, each in zip(choices, row, strict=True) if each}, least)
    solved, expected = solve(program), [best(each) for each in given]
    if any(each is None for each in expected):
        assert solved is None
        return
    least = constant + sum(each for each in expected if each is not None)
    assert solved is not None
    # HiGHS may stop within a ten-thousandth of the whole cost.
    assert solved.value == pytest.approx(least, rel=1e-4, abs=1e-6)
    assert solved.bound <= least + 1e-6
