"""Checkmate's integer program: which values are kept between nodes, and which nodes run again before each.

Stage t ends with the first run of node t. In it, nodes before t may run again, in order (Jain et al., MLSys 2020,
section 4: the frontier-advancing form). A value that is there when the stage begins is kept from the stage before, or
was made in it. Memory is followed from node to node within each stage; a value is freed when nothing else in the stage
uses it and the next stage does not keep it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simgpu.planning.highs import Optimum, minimize, require_scipy
from simgpu.policies.common.node_schedule import Kept, NodeSchedule
from simgpu.policies.common.nodes import Nodes

#: HiGHS branches so often at most, and stops this close to its bound.
_NODES, _GAP = 100, 1e-5
#: Parts of the budget for which the program is solved, one after the other, until the schedule fits: HiGHS may exceed a
#: budget by a millionth; of the relaxed program, which may keep a part of a value, the paper suggests nine tenths.
_OPTIMAL, _ROUNDED = (1.0, 1 - 2e-6, 1 - 1e-5), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


class FittingSchedule(NamedTuple):
    """A schedule that fits. bound_ns: no schedule of the nodes within the budget is faster. is_timed_out: as in
    `simgpu.planning.highs.Optimum`."""

    schedule: NodeSchedule
    bound_ns: int
    is_timed_out: bool


def first_fitting(nodes: Nodes, budget: int, method: str) -> FittingSchedule | None:
    """The schedule for the largest part of the budget that fits, by `optimal` or `rounding`; None where there is none.

    Raises `MissingExtraError` without SciPy.
    """
    bound = None
    for part in _OPTIMAL if method == "optimal" else _ROUNDED:
        program = CheckmateProgram(nodes, int(budget * part))
        solved = program.optimal() if method == "optimal" else program.rounded(0.5)
        if solved is None:
            return None
        # That of the whole budget.
        bound = solved.bound_ns if bound is None else bound
        schedule = NodeSchedule.of(nodes, solved.kept)
        if schedule.peak() <= budget:
            return FittingSchedule(schedule, bound, solved.is_timed_out)
    return None


class KeptValues(NamedTuple):
    """kept: by stage. bound_ns: no schedule of these nodes within the budget is faster, as far as HiGHS has proved.
    is_timed_out: as in `simgpu.planning.highs.Optimum`."""

    kept: Kept
    bound_ns: int
    is_timed_out: bool


def relaxed_ns(nodes: Nodes, budget: int) -> int | None:
    """The bound of the relaxed program: no schedule of the nodes within the budget is faster; None where none fits."""
    relaxed = CheckmateProgram(nodes, budget).rounded(0.5)
    return None if relaxed is None else relaxed.bound_ns


@dataclass
class CheckmateProgram:
    """The program of some nodes and a budget in bytes."""

    nodes: Nodes
    budget: int
    columns: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    rows: list[tuple[Mapping[int, float], float]] = field(default_factory=list)

    def optimal(self) -> KeptValues | None:
        """The fastest schedule; None where HiGHS finds none. Raises `MissingExtraError` without SciPy."""
        found = self._solved(is_relaxed=False)
        return None if found is None else self._values(found, 0.5)

    def rounded(self, threshold: float) -> KeptValues | None:
        """The schedule that keeps what the relaxed program keeps in at least this part (section 5); None if none."""
        found = self._solved(is_relaxed=True)
        return None if found is None else self._values(found, threshold)

    def _solved(self, is_relaxed: bool) -> Optimum | None:
        require_scipy("policy checkmate")
        from scipy.sparse import csr_array

        self.columns, self.rows = {}, []
        for t in range(len(self.nodes.groups)):
            self._stage(t)
        if not self.columns:
            fits = all(least <= 0 for _, least in self.rows)
            return Optimum(np.zeros(0), 0.0, 0.0) if fits else None
        entries = [(r, c, v) for r, (row, _) in enumerate(self.rows) for c, v in row.items()]
        rows, columns, values = (list(each) for each in zip(*entries, strict=True)) if entries else ([], [], [])
        matrix = csr_array((values, (rows, columns)), shape=(len(self.rows), len(self.columns)))
        cost, upper = np.zeros(len(self.columns)), np.ones(len(self.columns))
        integral = np.zeros(len(self.columns), dtype=np.int64)
        for (kind, _, n, _), column in self.columns.items():
            if kind == "again":
                cost[column] = self.nodes.times[n]
            integral[column] = kind in ("again", "kept") and not is_relaxed
        least = np.array([least for _, least in self.rows], dtype=np.float64)
        return minimize(cost, matrix, least, upper, integral, nodes=_NODES, gap=_GAP)

    def _values(self, found: Optimum, threshold: float) -> KeptValues:
        bound = sum(self.nodes.times) + max(int(found.bound), 0)
        return KeptValues(self._kept(found, threshold), bound, found.is_timed_out)

    def _kept(self, found: Optimum, threshold: float) -> Kept:
        kept: list[set[int]] = [set() for _ in self.nodes.groups]
        for (kind, t, b, _), column in self.columns.items():
            if kind == "kept" and found.x[column] >= threshold:
                kept[t].add(b)
        return [frozenset(each) for each in kept]

    # --- variables --------------------------------------------------------------------------------------------

    def _column(self, kind: str, t: int, n: int, b: int = -1) -> int:
        return self.columns.setdefault((kind, t, n, b), len(self.columns))

    def _keeps(self, t: int, b: int) -> int | None:
        """The variable of a value that is kept for stage t; None where it cannot be, or nothing needs it."""
        nodes = self.nodes
        if nodes.maker[b] < t <= nodes.last[b]:
            return self._column("kept", t, b)
        return None

    def _again(self, t: int, n: int) -> int | None:
        """The variable of a node that runs again in stage t; None where it cannot, or nothing needs that."""
        if n < t and any(t <= self.nodes.last[b] for b in self.nodes.outputs[n]):
            return self._column("again", t, n)
        return None

    # --- rows -------------------------------------------------------------------------------------------------

    def _at_least(self, terms: Mapping[int | None, float], least: float) -> None:
        self.rows.append(({column: factor for column, factor in terms.items() if column is not None}, least))

    def _stage(self, t: int) -> None:
        nodes = self.nodes
        running = [n for n in range(t) if self._again(t, n) is not None]
        for b, maker in nodes.maker.items():
            if (kept := self._keeps(t, b)) is not None:
                if maker < t - 1:
                    self._at_least({kept: -1.0, self._keeps(t - 1, b): 1.0, self._again(t - 1, maker): 1.0}, 0.0)
                self._at_least({kept: -1.0, self._again(t, maker): -1.0}, -1.0)
        for n in (*running, t):
            own = None if n == t else self._again(t, n)
            for b in nodes.inputs[n]:
                there: dict[int | None, float] = {self._keeps(t, b): 1.0, self._again(t, nodes.maker[b]): 1.0}
                there |= {} if own is None else {own: -1.0}
                self._at_least(there, 1.0 if own is None else 0.0)
        self._memory(t, running)

    def _memory(self, t: int, running: list[int]) -> None:
        """Memory within the budget while each node of a stage runs; all in parts of the budget."""
        nodes, sizes, budget = self.nodes, self.nodes.sizes, max(self.budget, 1)
        used: defaultdict[int, float] = defaultdict(float)
        for b in nodes.maker:
            if (kept := self._keeps(t, b)) is not None:
                used[kept] += sizes[b] / budget
        for n in running:
            own = self._again(t, n)
            assert own is not None
            peak = nodes.rerun_peak(n, t) / budget
            self._within({**used, own: used.get(own, 0.0) + peak}, nodes.fixed[t] / budget)
            for b in nodes.outputs[n]:
                used[own] += sizes[b] / budget
            for b, freed in self._freed(t, n, running):
                used[freed] -= sizes[b] / budget
        self._within(used, nodes.first_peak(t) / budget)

    def _within(self, used: Mapping[int, float], constant: float) -> None:
        self.rows.append(({column: -factor for column, factor in used.items() if factor}, constant - 1.0))

    def _freed(self, t: int, n: int, running: list[int]) -> Iterator[tuple[int, int]]:
        """The values that may be freed once node n has run again in stage t, and the variables of that."""
        nodes = self.nodes
        for b in dict.fromkeys((*nodes.inputs[n], *nodes.outputs[n])):
            later = [each for each in nodes.users[b] if n < each <= t]
            if t in later:
                continue
            column = self._column("freed", t, n, b)
            blockers = [self._again(t, each) for each in later if each in running]
            if t + 1 < len(nodes.groups):
                blockers.append(self._keeps(t + 1, b))
            self._at_least({column: -1.0, self._again(t, n): 1.0}, 0.0)
            for blocker in blockers:
                if blocker is not None:
                    self._at_least({column: -1.0, blocker: -1.0}, -1.0)
            yield b, column
