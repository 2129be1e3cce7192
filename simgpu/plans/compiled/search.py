"""The search for the split of a compiled step that takes the least time within a budget.

An integer program chooses what is saved and what runs again (`program.py`); PyTorch's partitioner makes a split of that
choice, whose iteration is built and looked at where it exceeds the budget. That adds a limit, until a split fits. What
PyTorch's own solvers choose is tried too. At last it is tried whether one operator less has to run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple

from simgpu.plans.candidate import Trail, plain_trail
from simgpu.plans.compiled.iteration import Planned
from simgpu.plans.compiled.own_solvers import BUDGETS, BUDGETS_OF_LARGE, SOLVERS
from simgpu.plans.compiled.partitions import Split
from simgpu.plans.compiled.program import LateLimit, Limit
from simgpu.plans.compiled.step import CompiledStep

#: Programs that are solved, and splits that are tried to run one operator less again: of graphs up to so many
#: operators, and of larger ones, whose splits take seconds each.
_LARGE, _ROUNDS, _ROUNDS_OF_LARGE, _LESS, _LESS_OF_LARGE = 2000, 24, 8, 24, 0
#: A smallest peak is looked for until it is this close to what an integer program says.
_SMALLEST_GAP = 0.002
#: The program's memory is narrowed down to this part of the budget; a split of a large graph that is this close to its
#: lower bound will do.
_NARROW = 0.003


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
    known: dict[frozenset[str] | None, Tried] = field(default_factory=dict)

    @cached_property
    def usual(self) -> Tried:
        """The split without a budget."""
        return self._tried(None, self.step.joint.usual())

    def run(self) -> FoundSplit | None:
        """The best split; None if none fits."""
        if self.usual.peak > self.budget and self.step.has_choice:
            self.progress("planning the compiled step")
            self._program()
            if self._best() is None:
                self.smallest()
            if not self._is_close():
                self._own_solvers()
            self._less()
        best = self._best()
        if best is None:
            return None
        return FoundSplit(best, min(self.lower_bound(), best.time_ns), len(self.known))

    def smallest(self) -> Tried:
        """The split with the smallest peak that was found."""
        limits: list[Limit | LateLimit] = [self._at_loss]
        for _ in range(self._rounds if self.step.has_choice else 0):
            answer = self.step.choice.least(limits, None)
            if answer is None:
                break
            tried = self.tried_with(answer.again)
            limit = self._limit(tried)
            if tried.peak <= answer.bound * (1 + _SMALLEST_GAP) or limit in limits:
                break
            limits.append(limit)
        return min(self.known.values(), key=lambda each: each.peak)

    def lower_bound(self) -> int:
        """No split within the budget is faster: while the loss is computed, all that is saved is in memory."""
        least = self._time_of(frozenset())
        answer = self.step.choice.least(self.limits, self.budget)
        return least if answer is None else least + int(answer.bound)

    def _best(self) -> Tried | None:
        fitting = (each for each in self.known.values() if each.peak <= self.budget)
        return min(fitting, key=lambda each: (each.time_ns, each.peak), default=None)

    def _program(self) -> None:
        """Tries the answers of integer programs, with a limit more each time.

        While something runs again it also needs what only other reruns use. That is not in the program: where a split
        exceeds the budget at a moment that has a limit, the program gets less memory.
        """
        budget, least, most = self.budget, 0, None
        for _ in range(self._rounds):
            answer = self.step.choice.least(self.limits, budget)
            tried = None if answer is None else self.tried_with(answer.again)
            if tried is not None and tried.peak > self.budget and self.add_limit(tried):
                continue
            if tried is not None and tried.peak > self.budget:
                most = budget
                lower = budget - (tried.peak - self.budget)
                budget = lower if lower > least else (least + most) // 2
            elif most is None or most - budget < self.budget * _NARROW or self._is_close():
                break
            else:
                least = budget
                budget = (least + most) // 2

    def _is_close(self) -> bool:
        """Whether a split of a large graph is so close to its lower bound that no other is looked for."""
        best = self._best()
        return not self._is_small and best is not None and best.time_ns <= self.lower_bound() * (1 + _NARROW)

    def _own_solvers(self) -> None:
        """Tries what PyTorch's own solvers choose: with each budget, of large graphs with two."""
        for solver, budget in product(SOLVERS, BUDGETS if self._is_small else BUDGETS_OF_LARGE):
            again = self.step.joint.by_solver(solver, budget).again
            self.tried_with(frozenset(node for node in again if node in self.step.choice.times))

    def add_limit(self, tried: Tried) -> bool:
        """Adds a limit at the moment at which a split needs the most memory, if there is none."""
        limit = self._limit(tried)
        is_new = limit not in self.limits
        if is_new:
            self.limits.append(limit)
        return is_new

    @property
    def _rounds(self) -> int:
        return _ROUNDS if self._is_small else _ROUNDS_OF_LARGE

    @cached_property
    def limits(self) -> list[Limit | LateLimit]:
        return [self._at_loss]

    def _less(self) -> None:
        """Tries to run one operator less again, the longest first."""
        left = _LESS if self._is_small else _LESS_OF_LARGE
        best = self._best()
        while best is not None and best.again and left > 0:
            before, again = best, best.again
            for node in sorted(again, key=lambda each: (-self.step.choice.times.get(each, 0), each))[:left]:
                left -= 1
                self.tried_with(again - {node})
            best = self._best()
            if best is before:
                break

    def _time_of(self, again: frozenset[str]) -> int:
        """The step's time if these nodes run again."""
        times, usual = self.step.iteration.time_ns, self.usual
        return usual.time_ns + sum(map(times, again)) - sum(map(times, usual.planned.again))

    @property
    def _is_small(self) -> bool:
        return len(self.step.choice.joint.calls) <= _LARGE

    @cached_property
    def _at_loss(self) -> Limit:
        """The limit on what is saved, from the moment between forward and backward that needs the most memory."""
        usual = self.usual
        choice, planned = self.step.choice, usual.planned
        roots = (planned.graphs[0].root.get(name) for name in usual.split.saved)
        saved = {memory for memory in roots if memory in choice.made_by}
        most = 0
        for each in planned.passes:
            stop = each.first + len(planned.graphs[0].calls)
            most = max(most, *(usual.trail.bytes[stop : each.second] or usual.trail.bytes[stop : stop + 1]))
        results = set(planned.results)
        memories = frozenset(memory for memory in choice.made_by if memory not in results)
        return Limit(memories, most - sum(choice.sizes[memory] for memory in saved & memories))

    def _limit(self, tried: Tried) -> Limit | LateLimit:
        """A limit from the moment at which a split needs the most memory."""
        planned, sizes, choice = tried.planned, self.step.choice.sizes, self.step.choice
        place = tried.trail.bytes.index(tried.peak)
        here = planned.pass_at(place)
        if place < here.second:
            # What operators that only backward needs keep until forward's end is not in the program.
            own = enumerate(planned.graphs[0].calls, here.first)
            last = {m: k for k, call in own if call.node in choice.in_forward for m in (*call.reads, *call.writes)}
            saved = {m for m in _live(planned, place) if last.get(m, -1) < place}
            memories = frozenset(saved & choice.made_by.keys())
            return Limit(memories, tried.peak - sum(sizes[each] for each in memories))
        calls = planned.graphs[1].calls
        late = (k for k in range(place - here.second, len(calls)) if calls[k].node in choice.late)
        then = next(late, None)
        if then is None:
            then = max(k for k, call in enumerate(calls) if call.node in choice.late)
        # While something runs again, it also needs what only other reruns use; that is not in the program.
        moment = here.second + then
        live = set(_live(planned, moment)) & choice.made_by.keys()
        return LateLimit(calls[then].node, tried.trail.bytes[moment] - sum(sizes[each] for each in live))

    def tried_with(self, again: frozenset[str]) -> Tried:
        """The split in which these nodes run again."""
        if again not in self.known:
            self.known[again] = self._tried(again, self.step.joint.split(again)[0])
        return self.known[again]

    def _tried(self, again: frozenset[str] | None, split: Split) -> Tried:
        planned = self.step.iteration.planned(split)
        self.known[again] = Tried(again, split, planned, plain_trail(planned.trace))
        return self.known[again]


def _live(planned: Planned, place: int) -> Iterator[str]:
    """The memory of the graphs' run that is there while one of its kernels runs."""
    memory = planned.pass_at(place).memory
    position = {kernel.id: k for k, kernel in enumerate(planned.trace.kernels)}
    born: dict[str, int] = {}
    for k, kernel in enumerate(planned.trace.kernels):
        for name in kernel.writes:
            born.setdefault(name, k)
    for block in planned.trace.blocks:
        end = position.get(block.release or "", len(position))
        if block.id in memory and born.get(block.id, 0) <= place <= end:
            yield memory[block.id]
