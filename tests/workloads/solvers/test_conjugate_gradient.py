"""NAS CG: its matrix compared with a plain construction, its published eigenvalues, and convergence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from simgpu.workloads.solvers import nas_random
from simgpu.workloads.solvers.conjugate_gradient import (
    CONDITION,
    INNER,
    ConjugateGradient,
    SparseRows,
    allocated_entries,
    expected_entries,
    random_matrix,
)


def dense(matrix: SparseRows) -> NDArray[np.float64]:
    rows = matrix.starts.size - 1
    result = np.zeros((rows, rows))
    for row in range(rows):
        part = slice(matrix.starts[row], matrix.starts[row + 1])
        result[row, matrix.columns[part]] = matrix.values[part]
    return result


def by_outer_products(rows: int, nonzeros: int, shift: float) -> NDArray[np.float64]:
    """The matrix as the specification defines it, vector by vector."""
    numbers = iter(nas_random.uniform(nas_random.sequence(314159265, 100 * rows * nonzeros))[1:].tolist())
    below = 1
    while below < rows:
        below *= 2
    result, weight = np.zeros((rows, rows)), 1.0
    for row in range(rows):
        vector: dict[int, float] = {}
        while len(vector) < nonzeros:
            value, place = next(numbers), int(next(numbers) * below)
            if place < rows and place not in vector:
                vector[place] = value
        vector[row] = 0.5
        full = np.zeros(rows)
        full[list(vector)] = list(vector.values())
        result += weight * np.outer(full, full)
        weight *= CONDITION ** (1 / rows)
    return result + np.diag(np.full(rows, CONDITION - shift))


@pytest.mark.parametrize(("rows", "nonzeros"), [(40, 3), (64, 5), (100, 2)])
def test_the_matrix_is_the_sum_of_its_outer_products(rows: int, nonzeros: int) -> None:
    matrix = random_matrix(rows, nonzeros, shift=7.0)
    np.testing.assert_allclose(dense(matrix), by_outer_products(rows, nonzeros, 7.0), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_the_matrix_is_symmetric_and_definite_and_its_rows_are_in_order() -> None:
    matrix = random_matrix(300, 5, shift=20.0)
    full = dense(matrix)
    np.testing.assert_allclose(full, full.T, rtol=1e-14)
    assert np.linalg.eigvalsh(full).max() < 0
    for row in range(300):
        columns = matrix.columns[matrix.starts[row] : matrix.starts[row + 1]]
        assert (np.diff(columns) > 0).all()


def test_the_sparse_product_equals_the_dense_product() -> None:
    matrix = random_matrix(200, 4, shift=9.0)
    vector = np.linspace(-1, 1, 200)
    np.testing.assert_allclose(matrix.times(vector), dense(matrix) @ vector, rtol=1e-12)


def test_matrix_arrays_end_with_zeroed_unused_capacity() -> None:
    matrix = random_matrix(1400, 7, shift=10.0)
    used = int(matrix.starts[-1])
    assert matrix.values.size == allocated_entries(1400, 7) == 1400 * 64
    assert not matrix.values[used:].any()
    assert not matrix.columns[used:].any()
    assert used == pytest.approx(expected_entries(1400, 7), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "nonzeros", "shift", "published"),
    [(1400, 7, 10.0, 8.5971775078648), (7000, 8, 12.0, 10.362595087124)],
    ids=["class S", "class W"],
)
def test_eigenvalues_match_the_published_values_of_nas_cg(
    rows: int, nonzeros: int, shift: float, published: float
) -> None:
    """NPB verifies them to 1e-10."""
    solver = ConjugateGradient(rows, nonzeros=nonzeros, shift=shift, outer=15)
    *_, last = solver.states()
    assert solver.eigenvalue(last) == pytest.approx(published, abs=1e-10)


def test_residuals_fall_and_equal_the_residuals_of_the_linear_system() -> None:
    solver = ConjugateGradient(2000, nonzeros=5, outer=1)
    norms = []
    for state in solver.states():
        r = state["x"] - solver.matrix.times(state["z"])
        np.testing.assert_allclose(state["r"], r, atol=1e-10)
        norms.append(float(np.linalg.norm(r)))
    assert len(norms) == INNER == solver.steps
    assert norms[-1] < 1e-9 * norms[0]
    assert all(later < 1.01 * earlier for earlier, later in pairwise(norms) if earlier > 1e-9)
