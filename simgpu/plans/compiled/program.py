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


class Answer(NamedTuple):
    """again: the nodes that run again. bound: no choice within the budget takes less time, nanoseconds."""

    again: frozenset[str]
    bound: float


class Limit(NamedTuple):
    """At some moment before backward, what is saved of `memories` is at most `bytes`."""

    memories: frozenset[str]
    bytes: int


class LateLimit(NamedTuple):
    """While a kernel of backward runs, the memory of forward's kernels is at most `bytes`. node: that kernel. is_exact:
    whether no choice can have less memory than it says."""

    node: str
    bytes: int
    is_exact: bool


@dataclass(frozen=True)
class Choice:
    """The choice that PyTorch's partitioner leaves: which results of forward are saved, and which run again.

    joint: the graph of the whole step. sizes: bytes by memory. times: of kernels in nanoseconds, by node. fixed: nodes
    that may not run again. in_forward: nodes that forward runs in any case; running others later costs nothing.
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
        """The kernels that do not depend on gradients of results."""
        return [call for call in self.joint.calls if call.node not in self.late]

    @cached_property
    def late(self) -> dict[str, int]:
        """The positions of the kernels that depend on gradients, by node: backward runs them in this order."""
        nodes = self._late
        return {call.node: place for place, call in enumerate(self.joint.calls) if call.node in nodes}

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
    def _late(self) -> frozenset[str]:
        """The kernels that depend on gradients of the model's results."""
        late = {memory for memory in self.joint.root.values() if memory.startswith("tangents")}
        nodes = set()
        for call in self.joint.calls:
            if late.intersection(call.reads):
                nodes.add(call.node)
                late.update(call.writes)
        return frozenset(nodes)

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The memory of forward that kernels of backward read."""
        return tuple(self.uses)

    def run_again(self, saved: Collection[str]) -> frozenset[str]:
        """The nodes that run again if this memory is saved."""
        again: set[str] = set()
        waiting = [memory for memory in self.needed if memory not in saved]
        while waiting:
            call = self.made_by[waiting.pop()]
            if call.node not in again:
                again.add(call.node)
                waiting += [memory for memory in call.reads if memory in self.made_by and memory not in saved]
        return frozenset(again)

    def least(self, limits: Collection[Limit | LateLimit]) -> Answer | None:
        """The choice that takes the least time within the limits; None where there is none."""
        program = _Program(self)
        for limit in limits:
            program.late(limit) if isinstance(limit, LateLimit) else program.limit(limit)
        solved = solve(program.program)
        if solved is None:
            return None
        memories = list(self.made_by)
        saved = {memories[each.number] for each in solved.chosen}
        return Answer(self.run_again(saved), solved.bound)


@dataclass
class _Program:
    choice: Choice
    program: IntegerProgram = field(default_factory=IntegerProgram)

    def __post_init__(self) -> None:
        self.number = {memory: place for place, memory in enumerate(self.choice.made_by)}
        for call in self.choice.made_by.values():
            self._may_run_again(call)
        for memory in self.choice.needed:
            self.program.row(self._there(memory), 1.0)

    def limit(self, limit: Limit) -> None:
        """Requires memory to be within a limit."""
        scale = max(limit.bytes, 1)
        row: dict[int, float] = {}
        for memory in limit.memories:
            row[self._saved(memory)] = -self.choice.sizes[memory] / scale
        self.program.row(row, -limit.bytes / scale)

    def late(self, limit: LateLimit) -> None:
        """Requires the memory of forward's kernels to be within a limit while a kernel of backward runs.

        Memory that a later kernel reads is there if it is saved, or has been made again by then. Other memory is there
        if it is saved and a kernel that reads it has yet to run again.
        """
        place, scale = self.choice.late[limit.node], max(limit.bytes, 1)
        done = self._run_by(place)
        row: dict[int, float] = {}
        for memory, call in self.choice.made_by.items():
            column = self.program.number(("there", memory, place), 1.0)
            if any(use >= place for use in self.choice.uses.get(memory, ())):
                self.program.row({column: 1.0, self._saved(memory): -1.0}, 0.0)
                if call.node in done:
                    self.program.row({column: 1.0, done[call.node]: -1.0}, 0.0)
            else:
                for reader in self.choice.readers.get(memory, ()):
                    terms = {column: 1.0, self._saved(memory): -1.0, self._again(reader): -1.0}
                    if reader in done:
                        terms[done[reader]] = terms.get(done[reader], 0.0) + 1.0
                    self.program.row(terms, -1.0)
            row[column] = -self.choice.sizes[memory] / scale
        self.program.row(row, -limit.bytes / scale)

    def _run_by(self, place: int) -> dict[str, int]:
        """By node, a number that is at least 1 if it has run again when a kernel of backward runs.

        It runs again before backward first reads what it makes, or before a kernel runs again that reads it unsaved.
        """
        done: dict[str, int] = {}
        for call in reversed(self.choice.forward):
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
        """Whether memory is there in backward: saved, or made again."""
        return {self._saved(memory): 1.0, self._again(self.choice.made_by[memory].node): 1.0}

    def _may_run_again(self, call: Call) -> None:
        """A kernel that runs again costs its time, and needs what it reads."""
        column = self._again(call.node)
        time = self.choice.times.get(call.node, 0) if call.node in self.choice.in_forward else 0
        self.program.cost[column] = float(time) + _NEEDLESS
        for memory in call.reads:
            if memory in self.number:
                row = self._there(memory)
                row[column] = row.get(column, 0.0) - 1.0
                self.program.row(row, 0.0)
