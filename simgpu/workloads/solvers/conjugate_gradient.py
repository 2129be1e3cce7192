"""Conjugate gradients on a sparse matrix with a random pattern: NAS CG.

Similar to 354.cg. Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 2.4: finds the smallest distance of
an eigenvalue from a shift by inverse iteration, x <- z / |z|, where 25 steps of conjugate gradients from z = 0 solve
A z = x. The shifted matrix is definite, but may be negative definite; the method is the same. The product with the
matrix, which gathers vector values at random, takes most of the time. One step of the run is one conjugate gradient
step.

The matrix (section 2.4.3) is stored in compressed rows. It is the weighted sum of outer products of random sparse
vectors, with weights that decrease geometrically from 1 to `CONDITION`; `CONDITION` minus the shift is added to the
diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simgpu.trace.model import AccessOrder
from simgpu.workloads.solvers import nas_random
from simgpu.workloads.solvers.solver import Solver, State, check_size
from simgpu.workloads.solvers.work import ENTRY_BYTES, L2_BYTES, SECTOR_BYTES, Array, KernelWork, Touch, once
from simgpu.workloads.timemodel.operation import OperationKind

#: Conjugate gradient steps per step of inverse iteration, as in NAS.
INNER = 25


@dataclass(frozen=True)
class ConjugateGradient(Solver):
    """NAS CG with `size` rows; class S is ``ConjugateGradient(1400, nonzeros=7, shift=10.0, outer=15)``.

    nonzeros: nonzeros of each random vector whose outer product is added to the matrix. With the default of 3, the gaps
        between the columns of a row, which determine how well indices compress, are as close to those of the reference
        as a small matrix allows.
    outer: steps of inverse iteration.

    >>> solver = ConjugateGradient(1400, nonzeros=7, shift=10.0, outer=2)
    >>> *_, last = solver.states()
    >>> round(solver.eigenvalue(last), 2)
    8.57
    """

    name: ClassVar[str] = "cg"
    like: ClassVar[str] = "354.cg"
    what: ClassVar[str] = "conjugate gradients on a sparse matrix of random pattern (NAS CG)"
    measure: ClassVar[str] = "rows"
    usual_size: ClassVar[int] = 48_000
    smallest_size: ClassVar[int] = 32

    size: int = usual_size
    nonzeros: int = 3
    shift: float = 20.0
    outer: int = 4

    def __post_init__(self) -> None:
        check_size(type(self), self.size)

    @property
    def steps(self) -> int:
        """Conjugate gradient steps of the run."""
        return self.outer * INNER

    @cached_property
    def matrix(self) -> SparseRows:
        """The matrix, computed once."""
        return random_matrix(self.size, self.nonzeros, self.shift)

    def arrays(self) -> dict[str, Array]:
        """The matrix, with NAS's capacity for coinciding entries, and five vectors."""
        capacity = allocated_entries(self.size, self.nonzeros)
        return {
            "values": Array((capacity,), "float64"),
            "columns": Array((capacity,), "int32"),
            "row_starts": Array((self.size + 1,), "int32"),
            **{name: Array((self.size,), "float64") for name in ("x", "z", "p", "q", "r")},
        }

    def states(self) -> Iterator[State]:
        """Yields the state after each step; x is the right-hand side of the current system."""
        matrix = self.matrix
        state: State = {"values": matrix.values, "columns": matrix.columns, "row_starts": matrix.starts}
        state |= {name: np.zeros(self.size) for name in ("x", "z", "p", "q", "r")}
        state["x"][:] = 1.0
        for iteration in range(self.outer):
            if iteration:
                z = state["z"]
                state["x"][:] = z / np.sqrt(dot(z, z))
            state["z"][:] = 0.0
            state["r"][:] = state["x"]
            state["p"][:] = state["x"]
            for _ in range(INNER):
                _step(matrix, state)
                yield state

    def eigenvalue(self, state: State) -> float:
        """The estimate zeta that NAS verifies, for the state at the end of a step of inverse iteration."""
        return self.shift + 1 / dot(state["x"], state["z"])

    def work(self) -> tuple[KernelWork, ...]:
        """Kernels: sparse product, d = p.q, both updates, rho = r.r, the next direction.

        In the product, each thread processes a row. So the threads of a warp access different rows, and each requests
        the next sector of its own row; the paper states that most accesses of 354.cg need one sector (section 4.2).
        Concurrently processed rows exceed the L2 cache many times, so it does not retain the rest of an entry. For each
        entry of the matrix, the thread also reads a random value of p, which takes one sector unless it is in the part
        of p that fits into the L2 cache. Cache space used by other data is ignored.
        """
        arrays, rows = self.arrays(), self.size
        entries = expected_entries(rows, self.nonzeros)
        cached = min(1.0, L2_BYTES / arrays["p"].bytes)
        first = arrays["p"].bytes // 32  # each sector is fetched at least once
        gathers = max(first, round(entries * (1 - cached)))
        product = (
            _by_rows("values", 8 * entries, rows),
            _by_rows("columns", 4 * entries, rows),
            *once(arrays, ["row_starts"]),
            Touch("p", False, gathers, AccessOrder.RANDOM, sectors=1),
            *once(arrays, writes=["q"]),
        )
        elementwise, reduction = OperationKind.ELEMENTWISE, OperationKind.REDUCTION
        return (
            KernelWork("sparse_product", OperationKind.GATHER, 2 * entries, rows, True, product),
            KernelWork("dot", reduction, 2 * rows, 1, True, once(arrays, "pq")),
            KernelWork("update_z_r", elementwise, 4 * rows, 2 * rows, True, once(arrays, "pqzr", "zr")),
            KernelWork("dot", reduction, 2 * rows, 1, True, once(arrays, "r")),
            KernelWork("direction", elementwise, 2 * rows, rows, True, once(arrays, "rp", "p")),
        )

    def reference(self) -> ConjugateGradient:
        """1.22 GB: the number of rows of NAS class D, with the nonzeros of class S."""
        return ConjugateGradient(size=1_500_000, nonzeros=7, shift=self.shift, outer=self.outer)


def _by_rows(array: str, size: int, rows: int) -> Touch:
    """Accesses to the sectors of each row, one at a time, with neighbouring rows processed concurrently."""
    stride = max(1, round(size / rows / ENTRY_BYTES))
    return Touch(array, False, -(-size // SECTOR_BYTES), AccessOrder.STRIDED, sectors=1, stride=stride)


def dot(left: NDArray[Any], right: NDArray[Any]) -> float:
    """The scalar product, summed in NumPy's fixed order."""
    return float(np.add.reduce(left * right))


def _step(matrix: SparseRows, state: State) -> None:
    z, p, q, r = (state[name] for name in "zpqr")
    rho = dot(r, r)
    q[:] = matrix.times(p)
    alpha = rho / dot(p, q)
    z += alpha * p
    r -= alpha * q
    p *= dot(r, r) / rho
    p += r


CONDITION = 0.1
_SEED = 314159265
_DIAGONAL_VALUE = 0.5


@dataclass(frozen=True, slots=True)
class SparseRows:
    """A square matrix: row i has values[starts[i]:starts[i + 1]], columns in ascending order; arrays may be longer."""

    values: NDArray[np.float64]
    columns: NDArray[np.int32]
    starts: NDArray[np.int32]

    def times(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """The product with a vector. Requires an entry in every row; the diagonal is one."""
        used = int(self.starts[-1])
        products = self.values[:used] * vector[self.columns[:used]]
        return np.add.reduceat(products, self.starts[:-1])


def allocated_entries(rows: int, nonzeros: int) -> int:
    """Entries that NAS allocates: those of all outer products, as if no entries coincided.

    >>> allocated_entries(1400, 7)
    89600
    """
    return rows * (nonzeros + 1) ** 2


def expected_entries(rows: int, nonzeros: int) -> int:
    """Entries of a large matrix: outer products coincide on the diagonal, and rarely elsewhere.

    >>> expected_entries(150_000, 15)  # NAS's class C has 36,121,058
    36150000
    """
    return rows * (nonzeros * (nonzeros + 1) + 1)


def random_matrix(rows: int, nonzeros: int, shift: float) -> SparseRows:
    """The matrix of NAS CG. nonzeros: nonzeros of each random vector.

    >>> matrix = random_matrix(1400, 7, 10.0)
    >>> int(matrix.starts[-1]), matrix.values.size, matrix.values.nbytes
    (78148, 89600, 716800)
    """
    places, values = _vectors(rows, nonzeros)
    is_used = places >= 0
    left, right = np.nonzero(is_used)[0], places[is_used]
    retained = values[is_used]
    counts = is_used.sum(axis=1)
    # The outer product of each vector pairs each of its elements with all of its elements.
    partners = counts[left]
    first = np.repeat(np.arange(left.size), partners)
    offsets = np.arange(partners.sum()) - np.repeat(np.cumsum(partners) - partners, partners)
    starts = (np.cumsum(counts) - counts)[left[first]]
    second = starts + offsets
    weights = (CONDITION ** (1 / rows)) ** np.arange(rows)
    row, column = right[first], right[second]
    product = retained[second] * (weights[left[first]] * retained[first])
    product[(row == column) & (row == left[first])] += CONDITION - shift
    return _in_rows(rows, allocated_entries(rows, nonzeros), row, column, product)


def _in_rows(
    rows: int, capacity: int, row: NDArray[np.int64], column: NDArray[np.int64], value: NDArray[np.float64]
) -> SparseRows:
    """Builds the matrix from triplets; sums values at the same position in input order."""
    key = row * rows + column
    order = np.argsort(key, kind="stable")
    key, value = key[order], value[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    values, columns = np.zeros(capacity), np.zeros(capacity, np.int32)
    values[: first.size] = np.add.reduceat(value, first)
    columns[: first.size] = key[first] % rows
    starts = np.searchsorted(key[first], np.arange(rows + 1) * rows).astype(np.int32)
    return SparseRows(values, columns, starts)


def _vectors(rows: int, nonzeros: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each row, a random sparse vector with 0.5 at the row's own position: positions (-1 for none), and values.

    Draws as NAS does: a position beyond the last row, or already in the vector, is drawn again together with its value.
    So the start of a vector in the random sequence depends on all vectors before it.
    """
    below = 1 << (rows - 1).bit_length()
    places = np.full((rows, nonzeros + 1), -1, np.int64)
    values = np.zeros((rows, nonzeros + 1))
    # NAS draws one number before the matrix.
    draws = _Draws(below)
    for row in range(rows):
        result: dict[int, float] = {}
        while len(result) < nonzeros:
            value, place = draws.pair()
            if place < rows and place not in result:
                result[place] = value
        result[row] = _DIAGONAL_VALUE
        places[row, : len(result)] = list(result)
        values[row, : len(result)] = list(result.values())
    return places, values


class _Draws:
    """Random pairs of a value and a position below a power of two, generated in batches."""

    _MANY = 2**16

    def __init__(self, below: int) -> None:
        self._below = below
        self._seed = int(nas_random.sequence(_SEED, 1)[0])
        self._pairs: list[tuple[float, int]] = []

    def pair(self) -> tuple[float, int]:
        if not self._pairs:
            seeds = nas_random.sequence(self._seed, 2 * self._MANY)
            self._seed = int(seeds[-1])
            numbers = nas_random.uniform(seeds)
            places = (numbers[1::2] * self._below).astype(np.int64)
            self._pairs = list(zip(numbers[0::2].tolist(), places.tolist(), strict=True))[::-1]
        return self._pairs.pop()
