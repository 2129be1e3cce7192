"""The best vectors of a search, which are run on the machine where the evaluator is not exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.planning.search.space import Costs, Score, Vectors
from simgpu.policies.base import PlanContext
from simgpu.program.instructions import Program
from simgpu.timeline.model import SpanKind
from simgpu.units import format_bytes, format_time

Label = TypeVar("Label")

#: Vectors that are run on the machine.
LENGTH = 16


class Shortlist:
    """Scores vectors with `score` and remembers the best ones, each once.

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
        # The sort is stable: of equal vectors the first seen stay.
        self._best = dict(sorted(self._best.items(), key=lambda each: each[1])[: self._length])
        return costs

    @property
    def vectors(self) -> tuple[tuple[int, ...], ...]:
        """The best ones, best first."""
        return tuple(self._best)


class Tried(NamedTuple, Generic[Label]):
    """A program that fits. time_ns: its step time. peak_bytes: its peak memory. copies: whether it offloads or fetches
    anything."""

    label: Label
    program: Program
    time_ns: int
    peak_bytes: int
    copies: bool

    @property
    def cost(self) -> str:
        """Step time and peak memory as text."""
        return f"{format_time(self.time_ns)}, peak {format_bytes(self.peak_bytes)}"


def run_of(context: PlanContext, label: Label, program: Program) -> Tried[Label]:
    """The result of running a program, on all GPUs with data parallelism. Raises what the run raises."""
    trial = (context.parallel_trial or context.trial)(program)
    peak = max(int(memory.used.max(initial=0)) for memory in trial.timeline.device_memories)
    copies = (trial.timeline.kind == SpanKind.COPY).any()
    return Tried(label, program, trial.iteration_ns, peak, bool(copies))


def tried(context: PlanContext, makers: Mapping[Label, Callable[[], Program]]) -> list[Tried[Label]]:
    """The programs that run within the budget, in order.

    makers: functions that create the programs; those that raise `InputError` for the trace are left out.
    """
    runs = []
    for number, (label, make) in enumerate(makers.items(), start=1):
        # A placement has no name and is too long to print.
        context.progress(f"trying {label if isinstance(label, str) else f'placement {number} of {len(makers)}'}")
        with suppress(InputError, OutOfMemoryError):
            runs.append(run_of(context, label, make()))
    return runs
