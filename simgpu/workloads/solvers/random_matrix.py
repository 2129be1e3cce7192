"""The sparse matrix of NAS CG: random pattern, condition number as wished, in compressed rows.

Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 2.4.3: the weighted sum of outer products of random
sparse vectors, with weights that fall geometrically from 1 to `CONDITION`, plus `CONDITION` and less a shift on the
diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgpu.workloads.solvers import nas_random

CONDITION = 0.1
_SEED = 314159265
_DIAGONAL_VALUE = 0.5


@dataclass(frozen=True, slots=True)
class SparseRows:
    """A square matrix: row i has values[starts[i]:starts[i + 1]], columns in rising order; arrays may be longer."""

    values: NDArray[np.float64]
    columns: NDArray[np.int32]
    starts: NDArray[np.int32]

    def times(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """The product with a vector; every row has an entry, its diagonal."""
        used = int(self.starts[-1])
        products = self.values[:used] * vector[self.columns[:used]]
        return np.add.reduceat(products, self.starts[:-1])


def room_for(rows: int, nonzeros: int) -> int:
    """Entries that NAS allocates: those of all outer products, as if none coincided.

    >>> room_for(1400, 7)
    89600
    """
    return rows * (nonzeros + 1) ** 2


def expected_entries(rows: int, nonzeros: int) -> int:
    """Entries of a large matrix: outer products coincide on its diagonal, and hardly anywhere else.

    >>> expected_entries(150_000, 15)  # NAS's class C has 36,121,058
    36150000
    """
    return rows * (nonzeros * (nonzeros + 1) + 1)


def random_matrix(rows: int, nonzeros: int, shift: float) -> SparseRows:
    """The matrix of NAS CG with so many rows and nonzeros in a random vector.

    >>> matrix = random_matrix(1400, 7, 10.0)
    >>> int(matrix.starts[-1]), matrix.values.size, matrix.values.nbytes
    (78148, 89600, 716800)
    """
    places, values = _vectors(rows, nonzeros)
    held = places >= 0
    left, right = np.nonzero(held)[0], places[held]
    kept = values[held]
    counts = held.sum(axis=1)
    # Each element of a vector meets all elements of it: the outer product, vector by vector.
    partners = counts[left]
    first = np.repeat(np.arange(left.size), partners)
    offsets = np.arange(partners.sum()) - np.repeat(np.cumsum(partners) - partners, partners)
    starts = (np.cumsum(counts) - counts)[left[first]]
    second = starts + offsets
    weights = (CONDITION ** (1 / rows)) ** np.arange(rows)
    row, column = right[first], right[second]
    product = kept[second] * (weights[left[first]] * kept[first])
    product[(row == column) & (row == left[first])] += CONDITION - shift
    return _in_rows(rows, room_for(rows, nonzeros), row, column, product)


def _in_rows(
    rows: int, room: int, row: NDArray[np.int64], column: NDArray[np.int64], value: NDArray[np.float64]
) -> SparseRows:
    """Sums what falls on one place, in the order given."""
    key = row * rows + column
    order = np.argsort(key, kind="stable")
    key, value = key[order], value[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    values, columns = np.zeros(room), np.zeros(room, np.int32)
    values[: first.size] = np.add.reduceat(value, first)
    columns[: first.size] = key[first] % rows
    starts = np.searchsorted(key[first], np.arange(rows + 1) * rows).astype(np.int32)
    return SparseRows(values, columns, starts)


def _vectors(rows: int, nonzeros: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each row a random sparse vector with 0.5 at the row itself: places (-1 for none), and values; NAS's draws.

    A place beyond the last row or drawn before is drawn again, with its value, so where a vector begins in the sequence
    depends on all vectors before it.
    """
    below = 1 << (rows - 1).bit_length()
    places = np.full((rows, nonzeros + 1), -1, np.int64)
    values = np.zeros((rows, nonzeros + 1))
    # NAS draws one number before the matrix.
    draws = _Draws(below)
    for row in range(rows):
        found: dict[int, float] = {}
        while len(found) < nonzeros:
            value, place = draws.pair()
            if place < rows and place not in found:
                found[place] = value
        found[row] = _DIAGONAL_VALUE
        places[row, : len(found)] = list(found)
        values[row, : len(found)] = list(found.values())
    return places, values


class _Draws:
    """Pairs of a value and a place below a power of two, made many at a time."""

    _MANY = 2**16

    def __init__(self, below: int) -> None:
        self._below = below
        self._seed = int(nas_random.sequence(_SEED, 1)[0])
        self._left: list[tuple[float, int]] = []

    def pair(self) -> tuple[float, int]:
        if not self._left:
            seeds = nas_random.sequence(self._seed, 2 * self._MANY)
            self._seed = int(seeds[-1])
            numbers = nas_random.uniform(seeds)
            places = (numbers[1::2] * self._below).astype(np.int64)
            self._left = list(zip(numbers[0::2].tolist(), places.tolist(), strict=True))[::-1]
        return self._left.pop()
