"""Multigrid: it converges at its textbook rate and with second order, for every box size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from simgpu.errors import InputError
from simgpu.workloads.solvers.multigrid import FIELDS, Level, Multigrid, Shape, _interpolated, _mean_of_eight


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 32, 64])
def test_a_v_cycle_reduces_the_residual_to_about_a_tenth(size: int) -> None:
    solver = Multigrid(size=size, box=8, steps=6)
    norms = [solver.residual(state) for state in solver.states()]
    assert all(later < 0.15 * earlier for earlier, later in pairwise(norms))


@pytest.mark.slow
def test_the_solution_converges_with_second_order() -> None:
    errors = []
    for size in (16, 32, 64):
        solver = Multigrid(size=size, box=16, steps=8)
        *_, last = solver.states()
        errors.append(solver.error(last))
    for coarse, fine in pairwise(errors):
        assert coarse / fine == pytest.approx(4, rel=0.05)


@pytest.mark.slow
def test_the_solution_does_not_depend_on_the_box_size() -> None:
    result = []
    for box in (4, 8, 32):
        solver = Multigrid(size=32, box=box, steps=3)
        *_, last = solver.states()
        level = Level(Shape(32 // box, box))
        level.data[:] = last["level0"]
        result.append(level.as_cube("u"))
    assert np.array_equal(result[0], result[1])
    assert np.array_equal(result[0], result[2])


def test_a_cube_is_split_into_boxes_and_restored() -> None:
    level = Level(Shape(2, 4))
    cube = np.arange(512.0).reshape(8, 8, 8)
    level.put("rhs", cube)
    assert np.array_equal(level.as_cube("rhs"), cube)


def test_ghost_cells_copy_the_neighbour_box_and_are_negated_at_the_boundary() -> None:
    level = Level(Shape(2, 4))
    cube = np.random.default_rng(1).random((8, 8, 8))
    level.put("u", cube)
    level.exchange()
    u = level.field("u")
    assert np.array_equal(u[0, 0, 0, 1:-1, 1:-1, -1], cube[:4, :4, 4])
    assert np.array_equal(u[1, 0, 1, 0, 1:-1, 1:-1], cube[3, :4, 4:])
    assert np.array_equal(u[0, 1, 0, 1:-1, -1, 1:-1], -cube[:4, 7, :4])


def test_the_operator_is_symmetric_positive_and_dinv_is_its_inverse_diagonal() -> None:
    cells, level = 4, Level(Shape(2, 2))
    columns = []
    for unit in np.eye(cells**3):
        level.put("u", unit.reshape((cells,) * 3))
        level.exchange()
        level.apply()
        columns.append(level.as_cube("temp").reshape(-1))
    full = np.array(columns).T
    np.testing.assert_allclose(full, full.T, atol=1e-10)
    assert np.linalg.eigvalsh(full).min() > 0
    np.testing.assert_allclose(np.diag(full), 1 / level.as_cube("dinv").reshape(-1), rtol=1e-12)


def test_the_field_valid_marks_the_cells_of_the_domain() -> None:
    """Each of the eight boxes has ghost layers on three sides that belong to other boxes."""
    level = Level(Shape(2, 4))
    assert level.field("valid").sum() == 8 * 5**3


def test_restriction_preserves_means_and_interpolation_preserves_lines() -> None:
    cube = np.random.default_rng(2).random((8, 8, 8))
    assert _mean_of_eight(cube).mean() == pytest.approx(cube.mean(), rel=1e-14)
    line = np.broadcast_to(np.arange(4.0) + 0.5, (4, 4, 4))
    fine = _interpolated(line)
    np.testing.assert_allclose(fine[2:-2, 2:-2, 1:-1], np.broadcast_to((np.arange(8) / 2 + 0.25)[1:-1], (4, 4, 6)))


def test_levels_halve_down_to_two_cells() -> None:
    shapes = Multigrid(size=256, box=32).shapes
    assert [shape.cells for shape in shapes] == [256, 128, 64, 32, 16, 8, 4, 2]
    assert [shape.side for shape in shapes] == [32, 16, 8, 4, 4, 4, 4, 2]


def test_each_box_stores_its_fields_one_after_another() -> None:
    state = next(Multigrid(size=16, box=8).states())
    assert state["level0"].shape == (2, 2, 2, len(FIELDS), 1008)
    assert (state["level0"][:, :, :, FIELDS.index("alpha"), :1000] == 1).all()
    assert not state["level0"][:, :, :, :, 1000:].any()


@pytest.mark.parametrize(("size", "box"), [(24, 8), (4, 4), (32, 3)])
def test_sizes_that_cannot_be_halved_are_refused(size: int, box: int) -> None:
    with pytest.raises(InputError, match=r"multigrid: (size|box): "):
        Multigrid(size=size, box=box)
