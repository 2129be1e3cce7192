"""The memory of a plan at one moment, as a linear expression in what the plan chooses.

Each block has reasons to be in memory at a moment: Python still refers to it; autograd has saved it outside of all
checkpointed regions; a checkpointed region has it as its input, or keeps it. It is there if one of them holds. A region
that runs again makes copies of its other blocks. Offloaded, a block that only autograd or a region holds is not there
until backward needs it; copies that are still under way are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from simgpu.plans.choices import Choices
from simgpu.plans.regions import Steps, Unsaved
from simgpu.trace.model import BlockKind

OFFLOAD, ABSENT = "offload", "absent"


class Chosen(NamedTuple):
    """A variable of 0 or 1: region `number` is checkpointed (kind ``region``), it keeps the result of kernel `kernel`
    (``keep``), or block `number` is offloaded (``offload``); or the part of an offloaded block that is not in memory
    while kernel `kernel` runs (``absent``)."""

    kind: str
    number: int
    kernel: int = -1


#: A sum of variables with coefficients, and a constant.
Expression = tuple[dict[Chosen, int], int]


class Moment(NamedTuple):
    """While a kernel runs: for region `region` again, or in its own place where that is None."""

    kernel: int
    region: int | None = None


class Held(NamedTuple):
    """bytes that are in memory if one of the `reasons` is 1: expressions with values of 0 or 1."""

    bytes: int
    reasons: tuple[tuple[tuple[tuple[Chosen, int], ...], int], ...]


@dataclass
class Memory:
    """constant: bytes that every plan has in memory. terms: bytes by variable. held: bytes that depend on several."""

    constant: int = 0
    terms: defaultdict[Chosen, int] = field(default_factory=lambda: defaultdict(int))
    held: list[Held] = field(default_factory=list)


def absent_at(memory: Memory, kernel: int) -> Memory:
    """The memory if an offloaded block may have been copied in part when a kernel runs."""
    return replace(memory, held=[Held(each.bytes, tuple(_absent(each, kernel))) for each in memory.held])


def _absent(held: Held, kernel: int) -> Iterator[tuple[tuple[tuple[Chosen, int], ...], int]]:
    for terms, constant in held.reasons:
        own = ((Chosen(ABSENT, v.number, kernel) if v.kind == OFFLOAD else v, factor) for v, factor in terms)
        yield tuple(own), constant


class _Reason(NamedTuple):
    """The kernel until which it holds a block, the first that needs it, and when it holds (an expression).

    by_autograd: whether autograd holds it, also as a region's input; else region `keeper` keeps the result of a kernel
    and, when it runs again, holds it up to kernel `taken`.
    """

    until: int
    before: int
    when: Expression
    by_autograd: bool
    keeper: int = -1
    taken: int = -1


class Rows:
    """Gives the memory at moments of plans.

    is_bound: whether no plan may need less, rather than no plan more: a block that a plan needs early and another one
    late then counts as absent until late.
    """

    def __init__(self, choices: Choices, *, is_bound: bool = False) -> None:
        self.choices = choices
        self._is_bound = is_bound
        self.steps: Steps = choices.steps
        self.offloadable = frozenset(choices.offloadable)
        self.starts = [self._start(r) for r in range(len(choices.regions))]
        self.ranges = [self.steps.rerun_range(each) for each in choices.regions]

    def _start(self, r: int) -> int:
        start = self.steps.rerun_before(self.choices.regions[r])
        assert start is not None
        return start

    @cached_property
    def regions_of(self) -> list[list[int]]:
        """For each saved tensor the regions that it is saved in."""
        result: list[list[int]] = [[] for _ in self.steps.saved]
        for r, region in enumerate(self.choices.regions):
            for n in range(region.saved_first, region.saved_stop):
                result[n].append(r)
        return result

    @cached_property
    def region_ends(self) -> list[int]:
        """For each region the kernel after which its inputs are dropped."""
        saved = self.steps.saved
        return [max(each.freed for each in saved[r.saved_first : r.saved_stop]) for r in self.choices.regions]

    @cached_property
    def saves(self) -> dict[int, list[tuple[int, Unsaved]]]:
        """By block, its saved tensors with their numbers."""
        result: defaultdict[int, list[tuple[int, Unsaved]]] = defaultdict(list)
        for n, tensor in enumerate(self.steps.saved):
            result[tensor.block].append((n, tensor))
        return dict(result)

    @cached_property
    def reasons(self) -> dict[int, list[_Reason]]:
        """By block, what may hold it beyond `dropped`."""
        result: defaultdict[int, list[_Reason]] = defaultdict(list)
        for n, tensor in enumerate(self.steps.saved):
            outside: Expression = ({Chosen("region", r): -1 for r in self.regions_of[n]}, 1)
            before = self.steps.count if tensor.before is None else tensor.before
            result[tensor.block].append(_Reason(tensor.freed, before, outside, by_autograd=True))
        for r, region in enumerate(self.choices.regions):
            for b in dict.fromkeys(region.inputs):
                when: Expression = ({Chosen("region", r): 1}, 0)
                result[b].append(_Reason(self.region_ends[r], self.starts[r], when, by_autograd=True))
            for k in self.choices.keepable[r]:
                for b in self.results(k):
                    unused = [self._unused(t) for n, t in self.saves.get(b, []) if r in self.regions_of[n]]
                    until = max([self.starts[r] - 1, *unused])
                    when = ({Chosen("keep", r, k): 1}, 0)
                    result[b].append(_Reason(until, 0, when, False, keeper=r, taken=max(k, self.steps.dropped[b])))
        return dict(result)

    @cached_property
    def needed(self) -> dict[int, int]:
        """By block, the kernel before which every plan needs it back."""
        return {
            b: max((each.before for each in reasons if each.by_autograd), default=self.steps.count)
            for b, reasons in self.reasons.items()
        }

    def results(self, k: int) -> Iterator[int]:
        """The blocks that a kernel makes, without its workspace."""
        for b in self.steps.writes[k]:
            if self.steps.births[b] == k and self.steps.trace.blocks[b].kind is not BlockKind.WORKSPACE:
                yield b

    def _unused(self, tensor: Unsaved) -> int:
        return tensor.freed if tensor.before is None else tensor.unused

    @cached_property
    def copies(self) -> list[list[tuple[int, int, int, Chosen | None]]]:
        """For each region, the blocks that it makes again: the last kernel of the rerun that needs it, the last one of
        backward (-1 for none), and the variable that keeps it instead."""
        made = []
        for r, region in enumerate(self.choices.regions):
            inside, again, keepable = range(region.first, region.stop), self.ranges[r], set(self.choices.keepable[r])
            own: dict[int, tuple[int, int, Chosen | None]] = {}
            for k in again:
                for b in self.steps.writes[k]:
                    if self.steps.births[b] in inside and b not in own:
                        unused = [self._unused(t) for n, t in self.saves.get(b, []) if r in self.regions_of[n]]
                        last = max(unused, default=-1)
                        birth = self.steps.births[b]
                        kept = Chosen("keep", r, birth) if birth in keepable else None
                        until = min(self.steps.dropped[b], again[-1]) if b in self.saves else self.steps.releases[b]
                        own[b] = (min(until, again[-1]), last, kept)
            made.append([(b, *facts) for b, facts in own.items()])
        return made

    def memory(self, moment: Moment) -> Memory:
        """The memory at a moment."""
        result = Memory()
        k = moment.kernel if moment.region is None else self.starts[moment.region]
        for b, block in enumerate(self.steps.trace.blocks):
            birth = self.steps.births[b]
            if birth > k or (moment.region is not None and birth == k) or not block.bytes:
                continue
            if (block.persistent and self.steps.releases[b] >= self.steps.count) or k <= self.steps.dropped[b]:
                result.constant += block.bytes
            else:
                self._add(result, b, k, moment)
        for r, copies in enumerate(self.copies):
            if moment.region == r:
                self._add_rerun(result, r, moment.kernel)
            elif (self.starts[r] <= k and moment.region is None) or self.starts[r] < k:
                for b, _, last, kept in copies:
                    if k <= last:
                        self._add_copy(result, r, b, kept)
        return result

    def _add_copy(self, memory: Memory, r: int, b: int, kept: Chosen | None) -> None:
        bytes_ = self.steps.trace.blocks[b].bytes
        memory.terms[Chosen("region", r)] += bytes_
        if kept is not None:
            memory.terms[kept] -= bytes_

    def _add_rerun(self, memory: Memory, r: int, k: int) -> None:
        for b, until, last, kept in self.copies[r]:
            if self.steps.births[b] <= k and (k <= until or last >= 0):
                self._add_copy(memory, r, b, kept)

    def _add(self, memory: Memory, b: int, k: int, moment: Moment) -> None:
        bytes_, expressions = self.steps.trace.blocks[b].bytes, []
        active = [
            each
            for each in self.reasons.get(b, ())
            if k <= each.until or (moment.region == each.keeper and moment.kernel <= each.taken)
        ]
        needed = min((each.before for each in active if each.by_autograd), default=0)
        for each in active:
            terms, constant = dict(each.when[0]), each.when[1]
            if each.by_autograd and b in self.offloadable and k < (each.before if self._is_bound else needed):
                terms[Chosen(OFFLOAD, b)] = -1
            expressions.append((tuple(sorted(terms.items())), constant))
        distinct = tuple(dict.fromkeys(expressions))
        if any(not terms and constant for terms, constant in distinct):
            memory.constant += bytes_
        elif len(distinct) == 1 and not any(variable.kind == OFFLOAD for variable, _ in distinct[0][0]):
            for variable, factor in distinct[0][0]:
                memory.terms[variable] += factor * bytes_
            memory.constant += distinct[0][1] * bytes_
        elif distinct:
            memory.held.append(Held(bytes_, distinct))
