"""Elastic waves: their speeds, energy between reflecting walls, and absorption at the border."""

from __future__ import annotations

import numpy as np
import pytest

from simgpu.workloads.solvers.seismic import DERIVATIVES, MEMORIES, Seismic, memory_name

P, S = 3000.0, 1700.0
ONE_LAYER = ((1.0, P, S, 2200.0),)


def arrivals(solver: Seismic, offsets: list[tuple[int, int, int]], steps: int) -> list[int]:
    """The steps at which the vertical velocity is largest at points this far from the source."""
    z, y, x = solver.source
    seen = np.zeros((steps, len(offsets)))
    for step, state in zip(range(steps), solver.states(), strict=False):
        seen[step] = [abs(state["vz"][z + dz, y + dy, x + dx]) for dz, dy, dx in offsets]
    return [int(step) for step in seen.argmax(axis=0)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("direction", "speed"), [((1, 0, 0), P), ((0, 0, 1), S), ((0, 1, 0), S)], ids=["P down", "S along x", "S along y"]
)
def test_p_and_s_waves_travel_at_their_speeds(direction: tuple[int, int, int], speed: float) -> None:
    """A vertical force sends P waves up and down and S waves sideways; speeds are measured between two far points."""
    solver = Seismic(size=64, border=6, steps_per_point=3, points=20, earth=ONE_LAYER)
    (dz, dy, dx), near, far = direction, 14, 24
    points = [(dz * away, dy * away, dx * away) for away in (near, far)]
    first, second = arrivals(solver, points, steps=solver.steps)
    assert 10 * 10.0 / ((second - first) * solver.dt) == pytest.approx(speed, rel=0.06)


def test_fields_are_zero_beyond_the_reach_of_the_stencil() -> None:
    """A step reaches only the neighbouring points: beyond them, fields are exactly zero."""
    solver = Seismic(size=32, border=0)
    for step, state in zip(range(9), solver.states(), strict=False):
        touched = np.argwhere(state["vz"] != 0)
        assert np.abs(touched - np.array(solver.source)).max(initial=0) <= 2 * step


def test_energy_stays_between_reflecting_walls() -> None:
    """After the source has stopped; velocity and stress are half a step apart, so energy oscillates slightly."""
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


def test_each_derivative_has_its_own_memory_variable() -> None:
    terms = [(field, axis) for result in DERIVATIVES.values() for field, axis, _ in result]
    assert len(set(terms)) == len(terms) == 18
    assert sorted(memory_name(*term) for term in terms) == sorted(MEMORIES)


def test_velocities_are_mostly_zero_at_first_and_nonzero_at_the_end() -> None:
    first, *_, last = Seismic(size=32).snapshots(10)
    assert (first["vx"] == 0).mean() > 0.8
    assert (last["vx"] == 0).mean() < 0.01
