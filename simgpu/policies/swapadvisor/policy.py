"""`swapadvisor`: the order of operators, the allocation of memory and the swaps, decided together by a genetic search.

After Huang, Jin and Li: SwapAdvisor: Pushing Deep Learning Beyond the GPU Memory Limit via Smart Swapping (ASPLOS
2020). Public text at hand was its abstract, the beginning of its introduction and the beginning of two readers' notes;
no code. They say: a schedule is any topological order of the dataflow graph; a swap planner derives from a schedule and
a memory allocation what is swapped and when, with a stream for kernels and one for the copies of each direction; a
genetic algorithm searches schedules and allocations, and a simulator gives the time of each. The following is from
descriptions of the paper that could not be checked against its text: allocations in pools of size classes; the victim
is the tensor of the class that is needed last; swaps begin as early as possible; a population of 144; the crossover of
schedules (the first kernels of one parent, the rest in the order of the other); Boltzmann selection.

Where the text was silent or not at hand, this implementation decides:

* A class holds neighbouring sizes, and its slots are as large as its largest block. Each class has the slots that any
  order needs; shares, which are part of an allocation, divide the rest, up to what the class can use.
* What is persistent is on the device at the begin and again at the end, as under `lru`, but only as far as its class
  has slots, those first that are used first. The others are on the host then, so weights may exceed the memory.
* A block is released after its last use. A copy on the host stays valid until a kernel changes the block.
* Kernels that may draw random numbers keep their order, so that a reordered iteration gives the recorded one's results.
* A fetch takes the slot that has been free for longest, a new block the one that became free last, if one is free in
  time. Of blocks that are needed equally late, the one whose last use ended first leaves.
* A mutation moves one to three kernels next to others, as far as the dependencies let them, toggles one class, and
  draws one share anew, each with a chance of a half. Of members that take equally long, one survives, as long as there
  are others. The search ends after `patience` generations without a faster member, or where no kernel waits.
* Slots are counted, not addressed: `pool: addressed` places blocks by its own rule. There, and where links are shared,
  trial runs choose between the best members of searches with all of the budget and with a little less.
* Where the recorded order fits without swaps, nothing is searched.

The paper's search is said to take up to 30 minutes. With the defaults, the shipped traces take up to 5 seconds here,
once the functions are compiled, which takes some 10 seconds the first time: kernels are fewer, a member is planned in
about a tenth of a millisecond, and generations are limited.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.planning.search.genetic import Genetic, GeneticResult
from simgpu.planning.slot_planner import SlotPlanner
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream, require_undivided
from simgpu.policies.common.placing import bar
from simgpu.policies.common.shortlist import tried
from simgpu.policies.swapadvisor.members import (
    Member,
    Mutation,
    crossed,
    first_members,
    needed_classes,
    peak_bytes,
    rows_of,
)
from simgpu.policies.swapadvisor.program import program_of
from simgpu.program.instructions import Program
from simgpu.program.lifetimes import open_lifetimes
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.units import format_bytes, format_time

#: Budgets of successive searches in percent of the budget, for pools whose holes waste memory.
_OF_THE_BUDGET = (100, 95, 90, 80)


@dataclass(frozen=True)
class SwapAdvisor(Policy):
    """Order, allocation and swaps, searched together."""

    name = "swapadvisor"
    summary = "order of operators, allocation in size classes and swaps, searched together by a genetic algorithm"
    source = "Huang et al., ASPLOS 2020"
    libraries = ("numba",)

    population: int = parameter(144, "members of a generation: orders with allocations")
    generations: int = parameter(200, "generations at most")
    patience: int = parameter(50, "stop after so many generations without a faster member")
    order: Literal["searched", "recorded"] = parameter("searched", "whether kernels may run in another order")

    def __post_init__(self) -> None:
        Genetic(crossed, lambda member, rng: member, self.population, self.generations, self.patience)

    def plan(self, context: PlanContext) -> Program:
        """The program of the fastest member of the search.

        Raises `InputError` for several compute streams or a batch in parts, and `OutOfMemoryError` where no size
        classes have enough slots.
        """
        graph = context.graph
        require_one_stream(graph, self.name)
        require_undivided(graph, self.name)
        planner = self._planner(context)
        if peak_bytes(planner) <= context.budget:
            program = lower(graph, Placement())
            return replace(program, notes=(*program.notes, "everything fits: nothing was searched"))
        self._check_slots(planner)
        why = inexact(context, planner)
        return self._searched(context, planner) if why is None else self._by_runs(context, why)

    def fits(self, context: PlanContext) -> bool | None:
        """Whether the blocks or their slots fit; None where only a run can decide."""
        require_one_stream(context.graph, self.name)
        require_undivided(context.graph, self.name)
        planner = self._planner(context)
        if inexact(context, planner) is not None:
            return None
        return min(peak_bytes(planner), needed_classes(planner).bytes) <= context.budget

    def _planner(self, context: PlanContext) -> SlotPlanner:
        work = self.population * (self.generations + 1) * len(context.graph.kernels)
        return SlotPlanner(context.graph, context.node, context.budget, work)

    def _check_slots(self, planner: SlotPlanner) -> None:
        classes, budget = needed_classes(planner), planner.budget
        if classes.bytes > budget:
            holders = [(f"{count} x {format_bytes(size)}", count * size) for size, count in classes.slots]
            who = "a slot of its size class for each block that a kernel uses"
            by_bytes = tuple(sorted(holders, key=lambda holder: -holder[1]))
            raise OutOfMemoryError(who, "device", classes.bytes, budget, budget, budget, 0, by_bytes)

    def _searched(self, context: PlanContext, planner: SlotPlanner) -> Program:
        """The best member's program."""
        result = self.search(context, planner)
        member = result.best
        planned = planner.planned(*(tuple(part.tolist()) for part in member))
        assert planned is not None, "the first members include one whose slots fit"
        program = program_of(planner, member.order.tolist(), planned)
        moved = int((member.order != np.arange(len(member.order))).sum())
        other = f"{moved} of {len(member.order)} kernels run at another position than recorded"
        notes = (
            other if moved else "the kernels run in the recorded order",
            f"{len(planned.slots)} size classes with {sum(count for _, count in planned.slots)} slots of "
            f"{format_bytes(sum(size * count for size, count in planned.slots))}",
            f"best of {result.evaluations} members, reached in generation {result.generation}; planned step time "
            f"{format_time(result.cost)}, of the first members {format_time(result.first_cost)}",
        )
        return replace(program, notes=(*open_lifetimes(context.graph), *notes))

    def _by_runs(self, context: PlanContext, why: str) -> Program:
        """The fastest program in trial runs of searches with all of the budget and with less of it.

        Where none runs, the last one in the recorded order, whose run says why.
        """
        note = f"planned with times that are not exact on this node: {why}"
        for percent in _OF_THE_BUDGET:
            smaller = replace(context, budget=context.budget * percent // 100)
            planners = {order: self._planner(smaller) for order in dict.fromkeys((self.order, "recorded"))}
            try:
                self._check_slots(planners[self.order])
            except OutOfMemoryError:
                break
            makers = {
                order: partial(replace(self, order=order)._searched, smaller, planner)
                for order, planner in planners.items()
            }
            if runs := tried(context, makers):
                program = min(runs, key=lambda run: run.time_ns).program
                break
            program = makers["recorded"]()
        return replace(program, notes=(*program.notes, note))

    def search(self, context: PlanContext, planner: SlotPlanner) -> GeneticResult[Member]:
        """The genetic search."""
        orders, total = self.order == "searched", self.generations
        search = Genetic(crossed, Mutation(planner, orders), self.population, total, self.patience)
        return search.minimise(
            first_members(planner, self.population, orders=orders, rng=context.rng),
            lambda members: planner.times(rows_of(members)),
            context.rng,
            progress=lambda n: context.progress(f"searching {bar(n / total)} generation {n} of at most {total}"),
            least=context.graph.ideal_ns(),
        )


def inexact(context: PlanContext, planner: SlotPlanner) -> str | None:
    """Why the planner's times may differ from the machine's, None where they are exact."""
    limit = context.node.host.pinned_memory
    if limit is not None and _host_bytes(context.graph) > limit:
        return "pinned host memory may run short"
    return context.exactness_limit or planner.why_not


def _host_bytes(graph: TaskGraph) -> int:
    """Bytes of all blocks on the host at once."""
    return sum(graph.copy_sizes)
