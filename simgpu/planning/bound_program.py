"""A linear program with integer coefficients, and a lower bound of its minimum that is exact despite solver rounding.

Weak duality: for rows A y >= b, multipliers m >= 0 and variables within bounds, no y that satisfies the rows has an
objective below m b + min over the bounds of (c - m A) y. This holds for any m >= 0; a solver's rounding only lowers the
value a little. So the multipliers are floats, and the value is computed in integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import MissingExtraError

Floats = NDArray[np.float64]

#: Multipliers are rounded to multiples of 1 / 2**44, since coefficients reach about 10**10.
_ROUNDED_TO = 1 << 44


class Unit(Enum):
    """The unit of a row or a variable."""

    NS = "ns"
    BYTES = "bytes"
    PART = "part"


@dataclass(frozen=True)
class Solved:
    """values: of the variables, as floats. multipliers: of the rows, not negative."""

    values: Floats
    multipliers: Floats


@dataclass
class LinearProgram:
    """Minimise variable 0 subject to rows: sum of coefficient times variable >= right-hand side.

    lower, upper: bounds of each variable. scales: the approximate size of numbers of each unit, for HiGHS.

    >>> program = LinearProgram()
    >>> program.variable(0, 100, Unit.NS), program.variable(0, 1)
    (0, 1)
    >>> program.row({0: 1, 1: 7}, 10)
    >>> program.proven(Solved(np.zeros(2), np.array([1.0])))
    Fraction(3, 1)
    """

    lower: list[int] = field(default_factory=list)
    upper: list[int] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    rows: list[tuple[Mapping[int, int], int, Unit]] = field(default_factory=list)
    scales: dict[Unit, int] = field(default_factory=lambda: dict.fromkeys(Unit, 1))

    def variable(self, lower: int = 0, upper: int = 1, unit: Unit = Unit.PART) -> int:
        """Add a variable; returns its number."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.units.append(unit)
        return len(self.lower) - 1

    def row(self, coefficients: Mapping[int, int], minimum: int, unit: Unit = Unit.NS) -> None:
        """Add a row: sum of coefficient times variable >= minimum."""
        self.rows.append((coefficients, minimum, unit))

    def solve(self) -> Solved | None:
        """A solution by HiGHS; None if there is none."""
        try:
            from scipy.optimize import linprog
            from scipy.sparse import csr_matrix
        except ImportError:
            raise MissingExtraError("bounding the iteration time by a linear program", "scipy", "calibrate") from None
        of_variable = np.array([float(self.scales[unit]) if unit is Unit.NS else 1.0 for unit in self.units])
        of_row = np.array([float(self.scales[unit]) for _, _, unit in self.rows])
        starts = np.cumsum([0, *(len(row) for row, _, _ in self.rows)])
        columns = np.fromiter((j for row, _, _ in self.rows for j in row), np.int64, starts[-1])
        numbers = np.fromiter((a for row, _, _ in self.rows for a in row.values()), np.float64, starts[-1])
        numbers *= of_variable[columns] / np.repeat(of_row, np.diff(starts))
        minimum = np.array([float(b) for _, b, _ in self.rows]) / of_row
        objective = np.zeros(len(self.lower))
        objective[0] = 1.0
        solution = linprog(
            objective,
            A_ub=-csr_matrix((numbers, columns, starts), shape=(len(self.rows), len(self.lower))),
            b_ub=-minimum,
            bounds=np.array([self.lower, self.upper], np.float64).T / of_variable[:, None],
            method="highs",
        )
        if solution.x is None:
            return None
        multipliers = np.maximum(-solution.ineqlin.marginals, 0.0) * of_variable[0] / of_row
        return Solved(solution.x * of_variable, multipliers)

    def proven(self, solved: Solved) -> Fraction:
        """The lower bound of the minimum that the multipliers prove, exact for any multipliers."""
        reduced = [0] * len(self.lower)
        reduced[0] = _ROUNDED_TO
        value = 0
        for (row, minimum, _), multiplier in zip(self.rows, solved.multipliers.tolist(), strict=True):
            if weight := round(max(multiplier, 0.0) * _ROUNDED_TO):
                value += weight * minimum
                for j, a in row.items():
                    reduced[j] -= weight * a
        for cost, low, high in zip(reduced, self.lower, self.upper, strict=True):
            value += cost * (low if cost > 0 else high)
        return Fraction(value, _ROUNDED_TO)


def total(terms: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Coefficients by variable; terms of the same variable are added up."""
    sums: dict[int, int] = {}
    for j, a in terms:
        sums[j] = sums.get(j, 0) + a
    return sums
