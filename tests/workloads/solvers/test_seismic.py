"""Elastic waves: they travel at the speeds of the earth, keep their energy between walls, leave through the border."""

from __future__ import annotations

import numpy as np
import pytest

from simgpu.workloads.solvers.seismic import DERIVATIVES, MEMORIES, Seismic, memory_name

P, S = 3000.0, 1700.0
ONE_LAYER = ((1.0, P, S, 2200.0),)


def arrivals(solver: Seismic, offsets: list[tuple[int, int, int]], steps: int) -> list[int]:
    """At which step the vertical velocity is largest at points so far from the source."""
    z, y, x = solver.source
    seen = np.zeros((steps, len(offsets)))
    for step, state in zip(range(steps), solver.states(), strict=False):
        seen[step] = [abs(state["vz"][z + dz, y + dy, x + dx]) for dz, dy, dx in offsets]
    return [int(step) for step in seen.argmax(axis=0)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("direction", "speed"), [((1, 0, 0), P), ((0, 0, 1), S), ((0, 1, 0), S)], ids=["P down", "S along x", "S along y"]
)
def test_waves_of_a_vertical_force_travel_at_their_speed(direction: tuple[int, int, int], speed: float) -> None:
    """A vertical force sends P waves up and down and S waves to the sides; between two points far from it."""
    solver = Seismic(size=64, border=6, steps_per_point=3, points=20, earth=ONE_LAYER)
    (dz, dy, dx), near, far = direction, 14, 24
    points = [(dz * away, dy * away, dx * away) for away in (near, far)]
    first, second = arrivals(solver, points, steps=solver.steps)
    assert 10 * 10.0 / ((second - first) * solver.dt) == pytest.approx(speed, rel=0.06)


def test_no_value_changes_faster_than_the_grid_lets_it() -> None:
    """A step reaches the next point and no further: beyond, fields are exactly zero."""
    solver = Seismic(size=32, border=0)
    for step, state in zip(range(9), solver.states(), strict=False):
        touched = np.argwhere(state["vz"] != 0)
        assert np.abs(touched - np.array(solver.source)).max(initial=0) <= 2 * step


def test_energy_stays_between_reflecting_walls() -> None:
    """After the source is silent; each velocity is half a step off its stress, so energy trembles."""
    solver = Seismic(size=24, border=0, steps_per_point=8, earth=ONE_LAYER)
    silent = [step for step in range(solver.steps) if abs(solver.pulse(step)) > 1e-6][-1] + 1
    energies = [solver.energy(state) for state in solver.states()][silent:]
    assert len(energies) > 100
    assert max(energies) < 1.05 * min(energies)


@pytest.mark.slow
def test_waves_leave_through_the_absorbing_border() -> None:
    walls, border = (Seismic(size=32, border=width, steps_per_point=5, earth=ONE_LAYER) for width in (0, 8))
    left = [[solver.energy(state) for state in solver.states()][-1] for solver in (walls, border)]
    assert left[1] < 0.02 * left[0]


def test_memory_variables_are_zero_inside_the_border() -> None:
    solver = Seismic(size=20, border=4)
    *_, last = solver.states()
    for name in MEMORIES:
        axis = {"z": 0, "y": 1, "x": 2}[name[-1]]
        inside = np.moveaxis(last[name], axis, 0)[4:15]
        assert not inside.any()
        assert last[name].any()


def test_each_derivative_has_its_own_memory() -> None:
    terms = [(field, axis) for result in DERIVATIVES.values() for field, axis, _ in result]
    assert len(set(terms)) == len(terms) == 18
    assert sorted(memory_name(*term) for term in terms) == sorted(MEMORIES)


def test_fields_are_empty_at_first_and_full_at_last() -> None:
    first, *_, last = Seismic(size=32).snapshots(10)
    assert (first["vx"] == 0).mean() > 0.8
    assert (last["vx"] == 0).mean() < 0.01
