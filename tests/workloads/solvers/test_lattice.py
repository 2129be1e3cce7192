"""Lattice Boltzmann: mass, momentum, the flow between two plates, and the streaming table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simgpu.workloads.solvers import lattice
from simgpu.workloads.solvers.lattice import DIRECTIONS, OPPOSITE, WEIGHTS, Lattice


def test_directions_and_weights_match_d3q19() -> None:
    assert len(set(DIRECTIONS)) == len(DIRECTIONS) == 19
    assert sum(WEIGHTS) == pytest.approx(1, abs=1e-15)
    for axis in range(3):
        for other in range(3):
            second = sum(w * d[axis] * d[other] for w, d in zip(WEIGHTS, DIRECTIONS, strict=True))
            assert second == pytest.approx(1 / 3 if axis == other else 0, abs=1e-15)
    assert all(OPPOSITE[OPPOSITE[number]] == number for number in range(19))


@settings(deadline=None, max_examples=30)
@given(arrays(bool, st.tuples(*[st.integers(3, 9)] * 3)).filter(lambda fluid: fluid.any()))
def test_pulling_moves_every_value_to_one_place(fluid: lattice.Fluid) -> None:
    """In every geometry: no value is lost or duplicated, so mass is conserved."""
    table = lattice.sources(fluid)
    sites = int(fluid.sum())
    assert sorted(table.reshape(-1).tolist()) == list(range(sites, 19 * sites))


@settings(deadline=None, max_examples=30)
@given(arrays(bool, st.tuples(*[st.integers(3, 9)] * 3)).filter(lambda fluid: fluid.any()))
def test_each_fluid_site_is_listed_once(fluid: lattice.Fluid) -> None:
    numbers = lattice.listed(fluid)
    assert (numbers[~fluid] == -1).all()
    assert sorted(numbers[fluid].tolist()) == list(range(int(fluid.sum())))


def test_request_counts_equal_the_counts_of_a_plain_loop() -> None:
    table = lattice.sources(lattice.spheres(8, 0.3))
    entries, sectors = set(), set()
    for direction, row in enumerate(table.tolist()):
        for site, place in enumerate(row):
            block = (direction, site // lattice.THREADS)
            entries.add((block, place * 8 // 128))
            sectors.add((block, place * 8 // 32))
    assert lattice.requests(table) == lattice.Requests(len(entries), len(sectors))


def test_mass_is_conserved_and_momentum_follows_the_force() -> None:
    solver = Lattice(size=12, steps=60)
    *_, last = solver.states()
    assert last["values_even"].sum() == pytest.approx(solver.sites, rel=1e-12)
    assert solver.velocity(last["values_even"]).mean() > 0


def test_without_a_force_fluid_at_rest_stays_at_rest() -> None:
    solver = Lattice(size=8, steps=10, force=0.0)
    *_, last = solver.states()
    assert np.abs(solver.velocity(last["values_even"])).max() < 1e-15


def test_in_a_free_domain_each_step_adds_the_force() -> None:
    solver = Lattice(size=8, steps=20, force=1e-4, geometry=np.ones((4, 4, 4), bool))
    *_, last = solver.states()
    # The velocity is that in the middle of the last step.
    np.testing.assert_allclose(solver.velocity(last["values_even"]), 1e-4 * (20 - 0.5), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("height", [5, 8])
@pytest.mark.parametrize("viscosity", [0.05, 0.3])
def test_the_flow_between_plates_has_the_poiseuille_profile(height: int, viscosity: float) -> None:
    """With these two relaxation times the parabola is exact; walls are half a link beyond the last sites."""
    steps = int(6 * height**2 / viscosity)
    solver = Lattice(
        size=8, steps=steps + steps % 2, viscosity=viscosity, force=1e-6, geometry=lattice.channel(4, height)
    )
    *_, last = solver.states()
    numbers = lattice.listed(solver.tile)
    result = solver.velocity(last["values_even"])[numbers[1:, 2, 2]]
    z = np.arange(height) + 0.5
    np.testing.assert_allclose(result, 1e-6 / (2 * viscosity) * z * (height - z), rtol=1e-6)


def test_each_tile_has_the_same_flow() -> None:
    one, two = Lattice(size=8, steps=6), Lattice(size=8, steps=6, tiles=(1, 1, 2))
    *_, single = one.states()
    *_, double = two.states()
    assert two.sites == 2 * one.sites
    np.testing.assert_allclose(
        np.sort(double["values_even"].reshape(19, -1)[3]),
        np.repeat(np.sort(single["values_even"].reshape(19, -1)[3]), 2),
        rtol=1e-13,
    )
