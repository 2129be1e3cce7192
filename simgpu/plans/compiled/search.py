"""The search for the split of a compiled step that takes the least time within a budget.

An integer program chooses what is saved and what runs again (`program.py`); PyTorch's partitioner makes a split of that
choice, whose iteration is built and looked at where it exceeds the budget. That adds a limit, until a split fits. The
splits of PyTorch's own solvers are tried too, and at last whether one operator less has to run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.plans.candidate import Trail, trail_of
from simgpu.plans.compiled.iteration import Planned
from simgpu.plans.compiled.partitions import Split
from simgpu.plans.compiled.program import LateLimit, Limit
from simgpu.plans.compiled.step import CompiledStep
from simgpu.policies.common.framework import plain_framework

#: Programs that are solved, and splits that are tried to run one operator less again: of graphs up to so many operators,
#: and of larger ones, whose splits take seconds each.
_LARGE, _ROUNDS, _ROUNDS_OF_LARGE, _LESS, _LESS_OF_LARGE = 2000, 24, 8, 48, 4
#: PyTorch's own solvers, and the budgets that they are tried with.
_SOLVERS, _BUDGETS = ("dp", "ilp"), tuple(n / 10 for n in range(1, 10))


class Tried(NamedTuple):
    """A split that was tried. again: the nodes that PyTorch was allowed to run again; None without a budget."""

    again: frozenset[str] | None
    split: Split
    planned: Planned
    trail: Trail

    @property
    def peak(self) -> int:
        """Peak of device memory, bytes."""
        return self.trail.peak

    @property
    def time_ns(self) -> int:
        """The step's time: of all kernels, nanoseconds."""
        return self.planned.trace.compute_ns


class FoundSplit(NamedTuple):
    """tried: the best split. bound_ns: no split within the budget is faster. number: of splits that were tried."""

    tried: Tried
    bound_ns: int
    number: int


@dataclass
class CompiledSearch:
    """budget: bytes. progress: receives a line of text at a time."""

    step: CompiledStep
    budget: int
    progress: Callable[[str], None] = lambda text: None
    _known: dict[frozenset[str] | None, Tried] = field(default_factory=dict)
    _exact: list[LateLimit] = field(default_factory=list)

    @cached_property
    def usual(self) -> Tried:
        """The split without a budget."""
        return self._tried(None, self.step.joint.usual())

    def run(self) -> FoundSplit | None:
        """The best split; None if none fits."""
        if self.usual.peak > self.budget:
            self.progress("planning the compiled step")
            self._program()
            self._solvers()
            self._less()
        best = self._best()
        if best is None:
            return None
        return FoundSplit(best, min(self.lower_bound(), best.time_ns), len(self._known))

    def smallest(self) -> Tried:
        """The split with the smallest peak among those that were tried."""
        return min(self._known.values(), key=lambda each: each.peak)

    def lower_bound(self) -> int:
        """No split within the budget is faster: while the loss is computed, all that is saved is in memory."""
        again = self.usual.planned.again
        least = self.usual.time_ns - sum(map(self.step.iteration.time_ns, again))
        answer = self.step.choice.least([self._at_loss, *self._exact])
        return least if answer is None else least + int(answer.bound)

    def _best(self) -> Tried | None:
        fitting = (each for each in self._known.values() if each.peak <= self.budget)
        return min(fitting, key=lambda each: (each.time_ns, each.peak), default=None)

    def _program(self) -> None:
        """Tries the answers of integer programs, with a limit more each time."""
        limits: list[Limit | LateLimit] = [self._at_loss]
        for _ in range(_ROUNDS if self._is_small else _ROUNDS_OF_LARGE):
            answer = self.step.choice.least(limits)
            if answer is None:
                break
            tried = self._try(answer.again)
            if tried.peak <= self.budget:
                break
            limit = self._limit(tried)
            if isinstance(limit, LateLimit) and limit.is_exact:
                self._exact.append(limit)
            limits.append(limit)
        self._try(frozenset(node.name for node in self.step.asked.banned))

    def _solvers(self) -> None:
        """Tries what PyTorch's own solvers choose, where that could be faster."""
        for solver in _SOLVERS:
            for budget in _BUDGETS if self._is_small else _BUDGETS[1::3]:
                again = self.step.joint.chosen_by(solver, budget)
                if again is not None:
                    self._try(again)

    def _less(self) -> None:
        """Tries to run one operator less again, the longest first."""
        left = _LESS if self._is_small else _LESS_OF_LARGE
        best = self._best()
        while best is not None and best.again and left > 0:
            before, again = best, best.again.intersection(best.planned.again)
            for node in sorted(again, key=lambda each: (-self.step.choice.times.get(each, 0), each))[:left]:
                left -= 1
                self._try(again - {node})
            best = self._best()
            if best is before:
                break

    @property
    def _is_small(self) -> bool:
        return len(self.step.choice.joint.calls) <= _LARGE

    @cached_property
    def _at_loss(self) -> Limit:
        """The limit on what is saved, from the moment between forward and backward that needs the most memory."""
        usual = self.usual
        choice, planned = self.step.choice, usual.planned
        stop = planned.first + len(planned.graphs[0].calls)
        roots = (planned.graphs[0].root.get(name) for name in usual.split.saved)
        saved = {memory for memory in roots if memory in choice.made_by}
        most = max(usual.trail.bytes[max(stop - 1, 0) : planned.second + 1])
        results = set(planned.results)
        memories = frozenset(memory for memory in choice.made_by if memory not in results)
        return Limit(memories, self.budget - most + sum(choice.sizes[memory] for memory in saved))

    def _limit(self, tried: Tried) -> Limit | LateLimit:
        """A limit from the moment at which a split needs the most memory."""
        planned, sizes, choice = tried.planned, self.step.choice.sizes, self.step.choice
        place = tried.trail.bytes.index(tried.peak)
        if place < planned.second:
            last = planned.graphs[0].last
            saved = {m for m in _live(planned, place) if planned.first + last.get(m, -1) < place}
            memories = frozenset(saved & choice.made_by.keys())
            return Limit(memories, self.budget - tried.peak + sum(sizes[each] for each in memories))
        calls = planned.graphs[1].calls
        late = (k for k in range(place - planned.second, len(calls)) if calls[k].node in choice.late)
        then = next(late, None)
        if then is None:
            then = max(k for k, call in enumerate(calls) if call.node in choice.late)
        # While something runs again, it also needs what only other reruns use; that is not in the program.
        memories = frozenset(set(_live(planned, planned.second + then)) & choice.made_by.keys())
        room = self.budget - tried.peak + sum(sizes[each] for each in memories)
        return LateLimit(calls[then].node, room, then == place - planned.second)

    def _try(self, again: frozenset[str]) -> Tried:
        if again not in self._known:
            self._known[again] = self._tried(again, self.step.joint.split(again)[0])
        return self._known[again]

    def _tried(self, again: frozenset[str] | None, split: Split) -> Tried:
        planned = self.step.iteration.planned(split)
        graph = TaskGraph.of(planned.trace)
        self._known[again] = Tried(again, split, planned, trail_of(plain_framework(graph), graph))
        return self._known[again]


def _live(planned: Planned, place: int) -> Iterator[str]:
    """The memory of the graphs that is there while a kernel runs."""
    position = {kernel.id: k for k, kernel in enumerate(planned.trace.kernels)}
    born: dict[str, int] = {}
    for k, kernel in enumerate(planned.trace.kernels):
        for name in kernel.writes:
            born.setdefault(name, k)
    for block in planned.trace.blocks:
        end = position.get(block.release or "", len(position))
        if block.id in planned.memory and born.get(block.id, 0) <= place <= end:
            yield planned.memory[block.id]
