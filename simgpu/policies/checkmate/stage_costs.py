"""What a schedule of single kernels keeps for each stage, and what that costs.

The arrays are for `simgpu.policies.checkmate.compiled_stages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.policies.common.node_schedule import NodeSchedule
from simgpu.policies.common.nodes import Nodes
from simgpu.program.instructions import COMPUTE, DEVICE, Launch, Program, Release

Ints = NDArray[np.int64]
#: What is kept for each stage, and nothing for the end: stages x values, 0 or 1.
KeptFlags = NDArray[np.uint8]

#: Values whose ways to be kept are chosen together, at most.
MOST_CHOSEN = 4


@dataclass(frozen=True)
class StageCosts:
    """What nodes of one kernel each keep within a budget in bytes."""

    nodes: Nodes
    budget: int

    @property
    def none(self) -> KeptFlags:
        """Nothing is kept."""
        return np.zeros((len(self.nodes.groups) + 1, len(self.blocks)), dtype=np.uint8)

    def of(self, program: Program) -> KeptFlags:
        """What a program of the nodes' graph keeps that only recomputes, without what it keeps for nothing."""
        kept = self.none
        there, again = self._followed(program)
        needed: set[int] = set()
        for t in range(len(there) - 1, -1, -1):
            needed.update(b for n in (*again[t], t) for b in self.nodes.inputs[n])
            needed = {b for b in there[t] & needed if t <= self.nodes.last[b]}
            kept[t, [self._place[b] for b in needed]] = 1
        return kept

    def _followed(self, program: Program) -> tuple[list[set[int]], list[list[int]]]:
        """For each stage, the values that are there before its first kernel runs, and what runs again in it."""
        maker, writes = self.nodes.maker, self.nodes.graph.writes
        now, there, again = set[int](), [set[int]()], [list[int]()]
        for instruction in (each for segment in program.segments for each in segment.streams[COMPUTE]):
            match instruction:
                case Launch(kernel, recompute, makes):
                    now.update(b for b in (makes if recompute else writes[kernel]) if b in maker)
                    if recompute:
                        again[-1].append(kernel)
                    else:
                        there.append(set(now))
                        again.append([])
                case Release(blocks, memory) if memory == DEVICE:
                    now.difference_update(blocks)
                    if not again[-1]:
                        there[-1].difference_update(blocks)
        return there[:-1], again[:-1]

    def schedule(self, kept: KeptFlags) -> NodeSchedule:
        """The schedule that keeps these values."""
        return NodeSchedule.of(
            self.nodes, [frozenset(self.blocks[v] for v in np.flatnonzero(row)) for row in kept[:-1]]
        )

    # --- costs ------------------------------------------------------------------------------------------------

    def stages(self, kept: KeptFlags) -> list[tuple[int, int]]:
        """For each stage the time of what runs again, ns, and the peak in bytes."""
        return [
            self._compiled.stage(t, kept[t], kept[t + 1], self.values, self.rows, *self._lists, self._work)
            for t in range(len(kept) - 1)
        ]

    def cost(self, kept: KeptFlags) -> float:
        """The time of what runs again, ns; a byte over the budget costs more than all that could run in its stage."""
        tables = self.values, self.rows, *self._lists, self._work
        result: Any = self._compiled.total(kept, self.budget, self.price, *tables)
        return float(result)

    def keep_best(self, kept: KeptFlags, chosen: Sequence[int] | Ints, rows: Ints | None = None) -> int:
        """Keeps a few values in the best way, with all others as they are; returns how many stages it computes at most.

        rows: of the nodes, for other times than theirs.
        """
        few = np.asarray(chosen, dtype=np.int64)
        tables = self.values, self.rows if rows is None else rows, *self._lists, self._work
        self._compiled.keep_best(kept, few, *self._paths, self.budget, self.price, *tables)
        makers, lasts = (self.values[few, column] for column in (self._compiled.MAKER, self._compiled.LAST))
        return int(lasts.max() - makers.min() + 1) * int(4 ** len(few))

    def rows_with_times(self, parts: NDArray[np.float64]) -> Ints:
        """The rows of the nodes, and the row after them, with times that are these parts of theirs."""
        rows, column = self.rows.copy(), self._compiled.DURATION
        rows[:, column] = rows[:, column] * parts
        return rows

    @cached_property
    def _compiled(self) -> ModuleType:
        from simgpu.policies.checkmate import compiled_stages

        return compiled_stages

    @cached_property
    def price(self) -> float:
        """Of a byte over the budget."""
        return float(sum(self.nodes.times) + 1)

    @cached_property
    def _work(self) -> Ints:
        return np.zeros((self._compiled.CLOCK + 1, max(len(self.blocks), len(self.nodes.groups)) + 1), dtype=np.int64)

    @cached_property
    def _paths(self) -> tuple[NDArray[np.float64], Ints, KeptFlags]:
        states = 2**MOST_CHOSEN
        came = np.zeros((len(self.nodes.groups) + 1, states), dtype=np.int64)
        return np.zeros((2, states)), came, np.zeros((2, len(self.blocks)), dtype=np.uint8)

    # --- tables -----------------------------------------------------------------------------------------------

    @cached_property
    def blocks(self) -> list[int]:
        """The values, as blocks of the graph; the arrays have them in this order."""
        return sorted(self.nodes.maker, key=lambda b: (self.nodes.maker[b], b))

    @cached_property
    def _place(self) -> dict[int, int]:
        return {b: v for v, b in enumerate(self.blocks)}

    @cached_property
    def values(self) -> Ints:
        """A row for each value."""
        nodes = self.nodes
        rows = [(nodes.maker[b], nodes.last[b], nodes.sizes[b]) for b in self.blocks]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def rows(self) -> Ints:
        """A row for each node, and one more for the ends of the lists."""
        nodes, count = self.nodes, len(self.nodes.groups)
        ends = np.cumsum([0, *map(len, nodes.inputs), *map(len, nodes.outputs)]).tolist()
        scratch = np.cumsum([0, *(len(self._scratch(n)) for n in range(count))]).tolist()
        rows = [
            (nodes.times[n], nodes.fixed[n], nodes.first_peak(n), ends[n], ends[count + n], scratch[n])
            for n in range(count)
        ]
        return np.array([*rows, (0, 0, 0, ends[count], ends[-1], scratch[-1])], dtype=np.int64)

    @cached_property
    def _lists(self) -> tuple[Ints, Ints]:
        """What nodes read and what they make, and what else they acquire."""
        nodes = self.nodes
        lists = [self._place[b] for each in (*nodes.inputs, *nodes.outputs) for b in each]
        scratch = [each for n in range(len(nodes.groups)) for each in self._scratch(n)]
        return np.array(lists, dtype=np.int64), np.array(scratch, dtype=np.int64).reshape(-1, 2)

    def _scratch(self, n: int) -> list[tuple[int, int]]:
        """Bytes that a node acquires besides values when it runs again, and the first stage in which it has to."""
        nodes, recomputation, found = self.nodes, self.nodes.recomputation, []
        for k in nodes.groups[n]:
            for b in recomputation.ancestry.outputs[k]:
                if b not in nodes.maker and nodes.sizes[b]:
                    release = recomputation.releases[b]
                    found.append((nodes.sizes[b], len(nodes.groups) if release is None else release + 1))
        return found
