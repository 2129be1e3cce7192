"""Plan a policy whose program another policy changes, with the budget at which the changed program fits.

The policy inside plans for one GPU that has everything. What GPUs share takes other memory, at each kernel by another
number of bytes: weights are shards, and whole while a group of layers computes; buckets come on top. So the budget of
the plan is that of the run, plus what is saved while the kernels run at which the changed plain iteration exceeds it.
A trial run then decides whether the changed program fits. Where it does not, or the policy finds no plan, a bisection
looks for another budget; where that finds none, the run of the program that needs least says what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import DEVICE
from simgpu.policies.base import PlanContext, Policy, Trial, no_progress
from simgpu.policies.calling import planned
from simgpu.policies.common.framework import plain_framework
from simgpu.program.instructions import Program
from simgpu.timeline.model import SpanKind
from simgpu.units import format_bytes

#: Why times that are computed without a run are not exact.
EXCHANGES = "GPUs exchange data while kernels run"
#: Budgets that are tried.
_BUDGETS = 6


def planned_inside(
    policy: Policy,
    context: PlanContext,
    changed: Callable[[Program], Program],
    resident: Callable[[TaskGraph], Collection[int]],
) -> Program:
    """The changed program of a policy, within the budget where the policy can do that.

    context: of the changed program. changed: changes a program of the policy. resident: what the policy leaves alone.
    Raises as `planned` does, and as `changed`.
    """
    return _Inside(policy, context, changed, resident).planned()


class _Lazy(PlanContext):
    """A context that computes its budget when the policy reads it: many do not, and it takes two runs."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        """The field. A copy, as `replace` makes it, has a budget of its own."""
        value = object.__getattribute__(self, name)
        return value() if name == "budget" and callable(value) else value


@dataclass
class _Inside:
    """The inputs of `planned_inside`. was_read: whether the policy has read its budget."""

    policy: Policy
    context: PlanContext
    changed: Callable[[Program], Program]
    resident: Callable[[TaskGraph], Collection[int]]
    was_read: bool = False

    def planned(self) -> Program:
        """The changed program."""
        program = self._first()
        if not self.was_read:
            assert program is not None, "only for lack of memory is there no program"
            return program
        budget, alone = self.budget, self._peaks[0]
        low, high = min(alone.values()), max(budget, *alone.values())
        least: Program | None = None
        for turn in range(_BUDGETS):
            if turn:
                budget = (low + high) // 2
                self.context.progress(f"planning for {format_bytes(budget)}")
                program = self._with(budget, may_refuse=least is not None)
            if program is None:
                low = budget
            elif self._fits(program):
                what = f"{self.policy.name} planned as for one GPU alone with {format_bytes(budget)}"
                notes = (what,) if max(self._peaks[1].values()) > self.context.budget else ()
                return replace(program, notes=(*program.notes, *notes))
            else:
                least, high = program, budget
        return least or self.changed(planned(self.policy, self._inside(high)))

    def _first(self) -> Program | None:
        """The program with the first budget; None where the policy finds none within it."""
        inside = self._inside(0)
        lazy = _Lazy(**{field.name: getattr(inside, field.name) for field in fields(inside)})
        object.__setattr__(lazy, "budget", self._read)
        try:
            return self.changed(planned(self.policy, lazy))
        except OutOfMemoryError:
            if not self.was_read:
                raise
            return None

    def _read(self) -> int:
        self.was_read = True
        return self.budget

    def _with(self, budget: int, *, may_refuse: bool) -> Program | None:
        """The program with another budget; None where the policy finds none. may_refuse: whether this is so, too, where
        the program moves what it must not: with more memory it did not."""
        try:
            return self.changed(planned(self.policy, self._inside(budget)))
        except OutOfMemoryError:
            return None
        except InputError:
            if may_refuse:
                return None
            raise

    def _inside(self, budget: int) -> PlanContext:
        """The context of the policy. What it chooses for blocks is of no use to who asks for the changed program."""
        context = self.context

        def trial(program: Program) -> Trial:
            return context.trial(self.changed(program))

        return replace(
            context,
            budget=budget,
            trial=trial,
            rng=deepcopy(context.rng),
            chosen=no_progress,
            exactness_limit=context.exactness_limit or EXCHANGES,
            resident=self.resident,
            lower_bounds=False,
        )

    def _fits(self, program: Program) -> bool:
        try:
            self.context.trial(program)
        except OutOfMemoryError:
            return False
        return True

    @cached_property
    def budget(self) -> int:
        """The first budget, bytes."""
        limit, (alone, together) = self.context.budget, self._peaks
        saved = {k: alone[k] - most for k, most in together.items()}
        short = [saved[k] for k, most in together.items() if most > limit]
        return max(limit + min(short), 0) if short else max(limit + min(saved.values()), *alone.values())

    @cached_property
    def _peaks(self) -> tuple[dict[int, int], dict[int, int]]:
        """By kernel, the most bytes up to its end in the plain iteration, on one GPU alone and changed."""
        plain = plain_framework(self.context.graph)
        alone, together = (replace(each, unlimited_memory=True) for each in (plain, self.changed(plain)))
        return self._used(alone), self._used(together)

    def _used(self, program: Program) -> dict[int, int]:
        """By kernel of the trace, the most bytes of device memory from the end of the one before to its own end, in the
        last iteration; of the last kernel, to the end of the iteration."""
        timeline = self.context.trial(program).timeline
        curve, (start, end), number = timeline.memory(DEVICE), timeline.window(-1), self.context.graph.kernel_number
        ran = (timeline.kind == SpanKind.COMPUTE) & (timeline.iteration == len(timeline.iteration_ends_ns) - 1)
        ends = {
            k: int(ns)
            for name, ns in zip(timeline.name[ran].tolist(), timeline.end_ns[ran].tolist(), strict=True)
            if (k := number.get(timeline.names[name])) is not None
        }
        until = [*sorted(ends.values())[:-1], end]
        first = np.searchsorted(curve.time_ns, [start, *until[:-1]], side="right") - 1
        stop = np.searchsorted(curve.time_ns, until, side="left")
        most = (int(curve.used[max(a, 0) : max(b, a + 1)].max()) for a, b in zip(first, stop, strict=True))
        return dict(zip(sorted(ends, key=ends.__getitem__), most, strict=True))
