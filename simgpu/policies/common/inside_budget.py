"""Plan a policy whose program is then changed to that of a GPU which shares weights, gradients and optimizer state.

The policy inside plans for a graph in which what GPUs share takes no memory: shards, gathered weights and buckets take
another number of bytes at each kernel, which its program does not show. So the budget of the plan is that of the run,
less the most that they take while kernels run at which the changed plain iteration exceeds it. A trial run then decides
whether the changed program fits. Where it does not, or the policy finds no plan, a bisection looks for another budget;
where that finds none, the run of the program that needs least says what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import DEVICE
from simgpu.memory.pool import aligned
from simgpu.policies.base import PlanContext, Policy, Trial, no_progress
from simgpu.policies.calling import planned
from simgpu.policies.common.framework import plain_framework
from simgpu.program.instructions import Program
from simgpu.program.lifetimes import used_by_kernel
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
    shared: Callable[[TaskGraph], Collection[int]],
    sizes: Mapping[int, int],
) -> Program:
    """The changed program of a policy, within the budget where the policy can do that.

    context: of the changed program. changed: changes a program of the policy. shared: the blocks of a graph, perhaps
    with transforms of the policy, that GPUs share. sizes: bytes of other blocks that are smaller in the changed
    program. Raises as `planned` does, and as `changed`.
    """
    return _Inside(policy, context, changed, shared, sizes).planned()


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
    shared: Callable[[TaskGraph], Collection[int]]
    sizes: Mapping[int, int]
    was_read: bool = False

    def planned(self) -> Program:
        """The changed program."""
        program = self._first()
        if not self.was_read:
            assert program is not None, "only for lack of memory is there no program"
            return program
        budget, low = self.budget, 0
        high = max(budget, *self._own)
        least: Program | None = None
        for turn in range(_BUDGETS):
            if turn:
                budget = (low + high) // 2
                self.context.progress(f"planning for {format_bytes(budget)}")
                program = self._with(budget, may_refuse=least is not None)
            if program is None:
                low = budget
            elif self._fits(program):
                what = f"{self.policy.name} planned with {format_bytes(budget)} for what GPUs do not share"
                notes = (what,) if max(self._most.values()) > self.context.budget else ()
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
            graph=self._graph,
            budget=budget,
            trial=trial,
            rng=deepcopy(context.rng),
            chosen=no_progress,
            exactness_limit=context.exactness_limit or EXCHANGES,
            resident=self.shared,
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
        limit, own = self.context.budget, self._own
        others = {k: most - own[k] for k, most in self._most.items()}
        short = [others[k] for k, most in self._most.items() if most > limit]
        return max(limit - max(short), 0) if short else max(limit - max(others.values()), *own)

    @cached_property
    def _graph(self) -> TaskGraph:
        """The graph in which what GPUs share takes no memory."""
        graph, shared = self.context.graph, self.shared(self.context.graph)
        sizes = tuple(0 if b in shared else self.sizes.get(b, size) for b, size in enumerate(graph.sizes))
        # Where a policy gives a block new memory, that is as large as the block is in the trace.
        blocks = tuple(
            block if b in shared or b not in self.sizes else replace(block, bytes=self.sizes[b])
            for b, block in enumerate(graph.blocks)
        )
        return replace(graph, trace=replace(graph.trace, blocks=blocks), sizes=sizes)

    @cached_property
    def _own(self) -> list[int]:
        """By kernel, the bytes of the plain iteration in that graph."""
        alignment = self.context.node.gpu.alignment
        return used_by_kernel(self._graph, [aligned(size, alignment) for size in self._graph.sizes])

    @cached_property
    def _most(self) -> dict[int, int]:
        """By kernel, the most bytes up to its end in the changed plain iteration."""
        return self._used(replace(self.changed(plain_framework(self.context.graph)), unlimited_memory=True))

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
