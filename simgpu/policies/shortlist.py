"""The few best vectors of a search, for where the closed form cannot say and the simulator decides.

Lives here: remembering them, and trying programs. Does not live here: searching (`simgpu.search`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import numpy as np

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.policies.base import PlanContext
from simgpu.program.instructions import Program
from simgpu.search.space import Costs, Score, Vectors

Label = TypeVar("Label")

#: How many are tried on the machine.
LENGTH = 16


class Shortlist:
    """Scores vectors as `score` does, and remembers the best ones, each once.

    >>> shortlist = Shortlist(lambda vectors: vectors.sum(axis=1), length=2)
    >>> shortlist(np.array([[1, 1], [0, 1], [0, 1], [1, 0]], dtype=np.int8)).tolist()
    [2, 1, 1, 1]
    >>> shortlist.vectors
    ((0, 1), (1, 0))
    """

    def __init__(self, score: Score, length: int = LENGTH) -> None:
        self._score = score
        self._length = length
        self._best: dict[tuple[int, ...], int] = {}

    def __call__(self, vectors: Vectors) -> Costs:
        costs = self._score(vectors)
        worst = max(self._best.values()) if len(self._best) == self._length else None
        # A swarm that has nearly converged holds the same vector many times: only different ones count.
        seen: set[bytes] = set()
        for row in np.argsort(costs, kind="stable").tolist():
            if len(seen) == self._length or (worst is not None and costs[row] >= worst):
                break
            if (vector := vectors[row].tobytes()) not in seen:
                seen.add(vector)
                self._best[tuple(vectors[row].tolist())] = int(costs[row])
        # Of equals the first seen stay: a dictionary keeps its order, and so does the sort.
        self._best = dict(sorted(self._best.items(), key=lambda each: each[1])[: self._length])
        return costs

    @property
    def vectors(self) -> tuple[tuple[int, ...], ...]:
        """The best ones, best first."""
        return tuple(self._best)


def tried(context: PlanContext, makers: Mapping[Label, Callable[[], Program]]) -> list[tuple[Label, Program, int]]:
    """Label, program and time (ns) of those that fit, as runs tell, in order.

    makers: what gives each program; one that refuses the trace gives none.
    """
    found, run = [], context.together or context.trial
    for number, (label, make) in enumerate(makers.items(), start=1):
        # Placements have no names, and are too long to be told.
        context.progress(f"trying {label if isinstance(label, str) else f'placement {number} of {len(makers)}'}")
        with suppress(InputError, OutOfMemoryError):
            program = make()
            found.append((label, program, run(program).iteration_ns))
    return found
