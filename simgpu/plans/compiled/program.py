"""What a compiled step may save and run again, as an integer program: the least time to run again within a budget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from simgpu.plans.compiled.graph import Call, Graph
from simgpu.plans.milp import IntegerProgram, solve
from simgpu.plans.rows import Chosen

#: Running an operator again costs at least this much, in nanoseconds, so that none does without need.
_NEEDLESS = 0.001
#: Bytes in one unit of memory, where the least memory is looked for.
_SCALE = 1 << 20


class Answer(NamedTuple):
    """again: the nodes that run again. bound: no choice within the budget takes less time, nanoseconds; or, where the
    least memory was asked for, none needs fewer bytes."""

    again: frozenset[str]
    bound: float


class Limit(NamedTuple):
    """At some moment before backward there is what is saved of `memories`, and `constant` bytes of other memory."""

    memories: frozenset[str]
    constant: int


class LateLimit(NamedTuple):
    """While kernel `node` of backward runs there is memory of forward's kernels, and `constant` bytes of other."""

    node: str
    constant: int


@dataclass(frozen=True)
class Choice:
    """The choice that PyTorch's partitioner leaves: which results of forward are saved, and which run again.

    joint: the graph of the whole step. sizes: bytes by memory. times: of kernels in nanoseconds, by node. fixed: nodes
    that may not run again. in_forward: nodes that the model's results need; others, which only backward needs, may run
    there or, at forward's end, for their results to be saved.
    """

    joint: Graph
    sizes: Mapping[str, int]
    times: Mapping[str, int]
    fixed: Collection[str]
    in_forward: Collection[str]

    @cached_property
    def made_by(self) -> dict[str, Call]:
        """The kernel of forward that makes a memory."""
        return {memory: call for call in self.forward for memory in call.writes if memory not in call.reads}

    @cached_property
    def forward(self) -> list[Call]:
        """The kernels that do not depend on gradients."""
        return [call for call in self.joint.calls if call.node not in self.late]

    @cached_property
    def late(self) -> dict[str, int]:
        """The positions of the kernels that depend on gradients of the model's results, by node, in backward's order.

        Kernels that run again do so where they are first needed.
        """
        given = {memory for memory in self.joint.root.values() if memory.startswith("tangents")}
        late = {}
        for place, call in enumerate(self.joint.calls):
            if given.intersection(call.reads):
                late[call.node] = place
                given.update(call.writes)
        return late

    @cached_property
    def placed(self) -> dict[str, int]:
        """The positions of kernels that neither depend on gradients nor are needed by the model's results, by node.

        Backward runs those whose results are not saved, in this order. Those that are before all that depends on
        gradients run again where they are first needed, as others do.
        """
        first = min(self.late.values(), default=len(self.joint.calls))
        calls = enumerate(self.joint.calls)
        return {
            call.node: place
            for place, call in calls
            if place > first and call.node not in self.late and call.node not in self.in_forward
        }

    @cached_property
    def uses(self) -> dict[str, tuple[int, ...]]:
        """The positions of the kernels that depend on gradients and read a memory of forward."""
        uses: defaultdict[str, list[int]] = defaultdict(list)
        for place, call in enumerate(self.joint.calls):
            if call.node in self.late:
                for memory in call.reads:
                    uses[memory].append(place)
        return {memory: tuple(places) for memory, places in uses.items() if memory in self.made_by}

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """The kernels of forward that read a memory of forward."""
        readers: defaultdict[str, list[str]] = defaultdict(list)
        for call in self.forward:
            for memory in call.reads:
                readers[memory].append(call.node)
        return {memory: tuple(nodes) for memory, nodes in readers.items() if memory in self.made_by}

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The memory of forward that kernels of backward read."""
        return tuple(self.uses)

    def run_again(self, saved: Collection[str]) -> frozenset[str]:
        """The nodes that run in backward if this memory is saved."""
        again: set[str] = set()
        waiting = [memory for memory in self.needed if memory not in saved]
        while waiting:
            call = self.made_by[waiting.pop()]
            if call.node not in again:
                again.add(call.node)
                waiting += [memory for memory in call.reads if memory in self.made_by and memory not in saved]
        return frozenset(again)

    def least(self, limits: Collection[Limit | LateLimit], budget: int | None) -> Answer | None:
        """The choice that takes the least time within the budget at all limits; None where there is none.

        budget: bytes; None for the choice that needs the least memory at the limits.
        """
        program = _Program(self, budget)
        for limit in limits:
            program.late(limit) if isinstance(limit, LateLimit) else program.limit(limit)
        solved = solve(program.program)
        if solved is None:
            return None
        memories = list(self.made_by)
        saved = {memories[each.number] for each in solved.chosen}
        return Answer(self.run_again(saved), solved.bound * (_SCALE if budget is None else 1))


@dataclass
class _Program:
    choice: Choice
    budget: int | None
    program: IntegerProgram = field(default_factory=IntegerProgram)

    def __post_init__(self) -> None:
        self.number = {memory: place for place, memory in enumerate(self.choice.made_by)}
        for call in self.choice.made_by.values():
            self._may_run_again(call)
        for memory in self.choice.needed:
            self.program.row(self._there(memory), 1.0)
        if self.budget is None:
            self._peak = self.program.number("peak")
            self.program.cost[self._peak] = 1.0

    def limit(self, limit: Limit) -> None:
        """Requires memory to be within a limit."""
        self._within({self._saved(memory): self.choice.sizes[memory] for memory in limit.memories}, limit.constant)

    def late(self, limit: LateLimit) -> None:
        """Requires the memory of forward's kernels to be within a limit while a kernel of backward runs.

        Memory that a later kernel reads is there if it is saved, or has been recomputed by then. Other memory is there
        if it is saved and a kernel that reads it has yet to run again.
        """
        place = self.choice.late[limit.node]
        done = self._run_by(place)
        sizes: dict[int, int] = {}
        for memory, call in self.choice.made_by.items():
            column = self.program.number(("there", memory, place), 1.0)
            if any(use >= place for use in self.choice.uses.get(memory, ())):
                self.program.row({column: 1.0, self._saved(memory): -1.0}, 0.0)
                if call.node in done:
                    self.program.row({column: 1.0, done[call.node]: -1.0}, 0.0)
            else:
                for reader in self.choice.readers.get(memory, ()):
                    self._waits(column, self._saved(memory), reader, done)
                    if call.node in done and self.choice.placed.get(reader, -1) > place:
                        self._waits(column, done[call.node], reader, done)
            sizes[column] = self.choice.sizes[memory]
        self._within(sizes, limit.constant)

    def _waits(self, column: int, there: int, reader: str, done: Mapping[str, int]) -> None:
        """Requires memory that is there to be kept for a kernel that reads it, and has yet to run."""
        terms = {column: 1.0, there: -1.0, self._again(reader): -1.0}
        if reader in done:
            terms[done[reader]] = terms.get(done[reader], 0.0) + 1.0
        self.program.row(terms, -1.0)

    def _within(self, sizes: Mapping[int, int], constant: int) -> None:
        """Requires memory to be within the budget, or the number that is minimized to be at least the memory."""
        room = max((self.budget or 0) - constant, 1)
        scale = _SCALE if self.budget is None else room
        row = {column: -size / scale for column, size in sizes.items()}
        if self.budget is None:
            row[self._peak] = 1.0
            self.program.row(row, constant / scale)
        else:
            self.program.row(row, (constant - self.budget) / scale)

    def _run_by(self, place: int) -> dict[str, int]:
        """By node, a number that is at least 1 if it has run again when a kernel of backward runs.

        It runs again before backward first reads what it makes, or before a kernel runs again that reads it unsaved.
        """
        done: dict[str, int] = {}
        for call in reversed(self.choice.forward):
            if call.node in self.choice.placed:
                if self.choice.placed[call.node] <= place:
                    done[call.node] = self._again(call.node)
                continue
            made = [memory for memory in call.writes if self.choice.made_by.get(memory) is call]
            if any(use <= place for memory in made for use in self.choice.uses.get(memory, ())):
                done[call.node] = self._again(call.node)
                continue
            before = [(m, r) for m in made for r in self.choice.readers.get(m, ()) if r in done]
            if before:
                column = done[call.node] = self.program.number(("done", call.node, place), 1.0)
                for memory, reader in before:
                    self.program.row({column: 1.0, done[reader]: -1.0, self._saved(memory): 1.0}, 0.0)
        return done

    def _saved(self, memory: str) -> int:
        return self.program.binary(Chosen("saved", self.number[memory]))

    def _again(self, node: str) -> int:
        return self.program.number(("again", node), 0.0 if node in self.choice.fixed else 1.0)

    def _there(self, memory: str) -> dict[int, float]:
        """Whether memory is there in backward: saved, or recomputed."""
        return {self._saved(memory): 1.0, self._again(self.choice.made_by[memory].node): 1.0}

    def _may_run_again(self, call: Call) -> None:
        """A kernel that runs again costs its time, and needs what it reads."""
        column = self._again(call.node)
        time = self.choice.times.get(call.node, 0) if call.node in self.choice.in_forward else 0
        self.program.cost[column] = 0.0 if self.budget is None else float(time) + _NEEDLESS
        is_extra = call.node not in self.choice.in_forward
        for memory in call.reads:
            if memory in self.number:
                row = self._there(memory)
                row[column] = row.get(column, 0.0) - 1.0
                self.program.row(row, 0.0)
                if is_extra:  # forward runs it only where all that it reads runs there alone
                    for made in (each for each in call.writes if each in self.number):
                        again = self._again(self.choice.made_by[memory].node)
                        self.program.row({self._saved(made): -1.0, again: -1.0}, -1.0)
