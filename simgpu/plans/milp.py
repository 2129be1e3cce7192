"""The search for a plan as an integer program: the least time within a budget at a few moments, solved by HiGHS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.planning.highs import Optimum, minimize, require_scipy
from simgpu.plans.rows import ABSENT, Chosen, Held, Memory

if TYPE_CHECKING:
    from scipy.sparse import csr_array

#: HiGHS branches this often, for programs up to so many columns and for larger ones. Its answer before it branches is
#: within a few tenths of a percent of its bound on networks of thousands of choices.
_SMALL, _NODES, _NODES_OF_LARGE = 1500, 2000, 1
#: HiGHS stops where its answer is this close to its bound, as a part of it.
_GAP = 1e-4


class Solution(NamedTuple):
    """chosen: the variables that are 1. value: of the objective. bound: no solution is below it."""

    chosen: frozenset[Chosen]
    value: float
    bound: float


@dataclass
class IntegerProgram:
    """Minimises a sum of variables, each between its bounds; those in `binary` are 0 or 1.

    rows: (coefficients, least value) of sums that must reach at least that. tied: choices for which another one stands.
    constant: cost that no variable changes.

    >>> program = IntegerProgram()
    >>> cheap, dear = Chosen("region", 0), Chosen("region", 1)
    >>> program.cost |= {program.binary(cheap): 1.0, program.binary(dear): 3.0}
    >>> program.row({program.binary(cheap): 2.0, program.binary(dear): 5.0}, 4.0)
    >>> sorted(solve(program).chosen)
    [Chosen(kind='region', number=1, kernel=-1)]
    """

    columns: dict[Any, int] = field(default_factory=dict)
    upper: list[float] = field(default_factory=list)
    integral: list[int] = field(default_factory=list)
    cost: dict[int, float] = field(default_factory=dict)
    rows: list[tuple[Mapping[int, float], float]] = field(default_factory=list)
    tied: Mapping[Chosen, Chosen] = field(default_factory=dict)
    constant: float = 0.0

    def binary(self, variable: Chosen) -> int:
        """The column of a choice; of what is absent at a moment, a number from 0 to 1."""
        return self._column(self.tied.get(variable, variable), 1.0, 0 if variable.kind == ABSENT else 1)

    def number(self, name: Any, upper: float = np.inf) -> int:
        """The column of a number from 0 to `upper`."""
        return self._column(name, upper, 0)

    def relaxed(self) -> IntegerProgram:
        """The program; a large one with choices that may be made in part: its bound is lower, and soon found."""
        return replace(self, integral=[0] * len(self.integral)) if len(self.columns) > _SMALL else self

    def row(self, coefficients: Mapping[int, float], least: float) -> None:
        """Requires a sum to be at least `least`."""
        self.rows.append((coefficients, least))

    def within(self, memory: Memory, budget: int, unless: Chosen | None = None) -> None:
        """Requires memory to be within the budget; `unless` given: only if that variable is 1."""
        row, least = self._sum(memory, budget, unless)
        self.row(row, least - 1.0)

    def most(self, column: int, memory: Memory, budget: int, unless: Chosen | None = None) -> None:
        """Requires a number to be at least the memory, in parts of the budget; `unless` as in `within`."""
        row, least = self._sum(memory, budget, unless)
        self.row({**row, column: 1.0}, least)

    def _sum(self, memory: Memory, budget: int, unless: Chosen | None) -> tuple[dict[int, float], float]:
        """Less memory in parts of the budget, so that HiGHS's tolerances are relative; and its constant part."""
        budget = max(budget, 1)
        row: defaultdict[int, float] = defaultdict(float)
        most = memory.constant / budget
        for variable, bytes_ in memory.terms.items():
            row[self.binary(variable)] -= bytes_ / budget
            most += max(bytes_, 0) / budget
        for held in memory.held:
            row[self._held(held)] -= held.bytes / budget
            most += held.bytes / budget
        least = memory.constant / budget
        if unless is not None:
            row[self.binary(unless)] -= most
            least -= most
        return row, least

    def _column(self, name: Any, upper: float, integral: int) -> int:
        if name not in self.columns:
            self.columns[name] = len(self.columns)
            self.upper.append(upper)
            self.integral.append(integral)
        return self.columns[name]

    def _held(self, held: Held) -> int:
        """The column of a number that is at least each of the reasons."""
        known = held.reasons in self.columns
        column = self.number(held.reasons, 1.0)
        for terms, constant in () if known else held.reasons:
            row = defaultdict(float, {column: 1.0})
            for variable, factor in terms:
                row[self.binary(variable)] -= factor
            self.row(row, constant)
        return column


#: The answers for parts of programs, by what the parts are.
Answers = dict[tuple[Any, ...], "Optimum | None"]


def solve(program: IntegerProgram, answers: Answers | None = None) -> Solution | None:
    """A solution; None where there is none. Parts that no row connects, as of micro-batches, are solved one by one.

    answers: what is known of parts of earlier programs, and to be known of later ones. Raises `MissingExtraError`
    without SciPy.
    """
    known: Answers = {} if answers is None else answers
    require_scipy("planning")
    if any(least > 0 and not row for row, least in program.rows):
        return None
    parts = _parts(program)
    values = np.zeros(len(program.columns))
    value = bound = program.constant if not parts else 0.0
    for part in parts:
        key = part.key(program.constant / len(parts))
        if key not in known:
            known[key] = _solved(part, program.constant / len(parts))
        answer = known[key]
        if answer is None:
            return None
        values[part.columns] = answer.x
        value += answer.value
        bound += answer.bound
    ones = {name for name, column in program.columns.items() if program.integral[column] and values[column] > 0.5}
    names = ones | {name for name, other in program.tied.items() if other in ones}
    return Solution(frozenset(names), value, bound)


class _Part(NamedTuple):
    """Some columns, and the rows that have them: coefficients (rows x columns), and the least value of each.

    cost, upper, integral: of each column.
    """

    columns: NDArray[np.int64]
    matrix: csr_array
    least: NDArray[np.float64]
    cost: NDArray[np.float64]
    upper: NDArray[np.float64]
    integral: NDArray[np.int64]

    def key(self, constant: float) -> tuple[Any, ...]:
        """The same for parts with the same answer."""
        matrix = self.matrix.indptr, self.matrix.indices, self.matrix.data
        return (constant, *(each.tobytes() for each in (*matrix, self.least, self.cost, self.upper, self.integral)))


def _parts(program: IntegerProgram) -> list[_Part]:
    """The parts of a program that no row connects, without those where nothing has to be chosen."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    shape = len(program.rows), len(program.columns)
    entries = [(r, c, v) for r, (row, _) in enumerate(program.rows) for c, v in row.items()]
    rows, columns, values = (list(each) for each in zip(*entries, strict=True)) if entries else ([], [], [])
    matrix = csr_array((values, (rows, columns)), shape=shape)
    least = np.array([least for _, least in program.rows])
    cost, upper, integral = _cost(program), np.array(program.upper), np.array(program.integral)
    # A graph of columns, and behind them rows, with an edge where a row has a column.
    behind, size = [shape[1] + r for r in rows], sum(shape)
    edges = csr_array((np.ones(len(values)), (columns, behind)), shape=(size, size))
    count, part = connected_components(edges, directed=False)
    part_of, row_of = part[: shape[1]], part[shape[1] :]
    parts = []
    for number in range(count):
        own, inside = np.flatnonzero(part_of == number), np.flatnonzero(row_of == number)
        if (least[inside] > 0).any() or (cost[own] < 0).any():
            parts.append(_Part(own, matrix[inside][:, own], least[inside], cost[own], upper[own], integral[own]))
    return parts


def _cost(program: IntegerProgram) -> NDArray[np.float64]:
    cost = np.zeros(len(program.columns))
    for column, value in program.cost.items():
        cost[column] = value
    return cost


def _solved(part: _Part, constant: float) -> Optimum | None:
    """What HiGHS finds for a part. constant: what is added to its cost, of which the gap is a part too."""
    from scipy.sparse import csr_array, hstack, vstack

    count = len(part.columns)
    # One more variable, which is 1, so that the constant has a place in the cost.
    one = csr_array(([1.0], ([0], [count])), shape=(1, count + 1))
    rows = vstack([hstack([part.matrix, csr_array((len(part.least), 1))], format="csr"), one], format="csr")
    found = minimize(
        np.append(part.cost, constant),
        rows,
        np.append(part.least, 1.0),
        np.append(part.upper, 1.0),
        np.append(part.integral, 0),
        nodes=_NODES if count <= _SMALL else _NODES_OF_LARGE,
        gap=_GAP,
    )
    return None if found is None else found._replace(x=found.x[:count])


def at_most_one(program: IntegerProgram, variables: Iterable[Chosen]) -> None:
    """Requires at most one of the choices."""
    row = {program.binary(variable): -1.0 for variable in variables}
    if len(row) > 1:
        program.row(row, -1.0)
