"""`capuchin`: swap or recompute each feature map by measured accesses, after Peng et al., ASPLOS 2020.

Capuchin's own paper was not at hand. Version `published` follows public summaries and re-implementations (named in the
package): passive mode, free time, in-triggers and their feedback by 5 %, memory saving per second and its updates are
described alike by several; the order of evictions, what a swap on demand counts for, how the link is shared among
swaps, and when enough is saved are decided here, as the modules say.

Version `home` is Capuchin as HOME rebuilt it for its comparison (TC 2022, sections 2.3, 4.1, 4.2 and 5.3): a greedy
algorithm that swaps asynchronously and searches the best performance for the tensors from the first to the current
one, whatever becomes of those that follow. Where that is open, this implementation decides:

* The cost of a decision is the time of an iteration in which the maps so far are swapped or recomputed as decided and
  all others stay, with memory for that. Memory short in that iteration is left to later maps.
* Each map is swapped or recomputed, whichever makes that time less; swapped if they are equal. Keeping it would always
  cost least, so the decisions end, and the rest stays, as soon as the iteration fits.
* Recomputation takes memory too. If the iteration does not fit when all maps are decided, those that are recomputed are
  swapped instead, from the first on, until it fits. Of these, again from the first on, those are recomputed after all
  that need not be swapped; and of all, from the last on, those are kept that need not be moved.
* Copies out are issued with the last reader and fetches one layer step ahead, as in HOME itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.pool import UNLIMITED
from simgpu.planning.evaluator import Chosen, Evaluator
from simgpu.planning.options import KEEP, RECOMPUTE, SWAP, Action, Decisions, Vector
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream
from simgpu.policies.capuchin.published import published
from simgpu.policies.common.placing import evaluator_of, inexact, notes_on, program_of
from simgpu.program.instructions import Program
from simgpu.program.lowering import require_reads


@dataclass(frozen=True)
class Capuchin(Policy):
    """Swap what can be swapped unseen, recompute what is quickly made again, one feature map after the other."""

    name = "capuchin"
    summary = "swap or recompute feature maps one by one, greedily"
    source = "Peng et al., ASPLOS 2020, from public summaries; HOME (TC 2022), sections 2.3 and 4.1"
    libraries = ("numba",)

    version: Literal["home", "published"] = parameter(
        "home",
        "as HOME rebuilt it (from the first feature map to the current one, by the cost so far), or as published (by "
        "free time and memory saving per second of a measured iteration)",
    )

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for a trace with several compute streams."""
        return rebuilt(context) if self.version == "home" else published(context)


def rebuilt(context: PlanContext) -> Program:
    """The iteration by these decisions.

    Raises `InputError` for a trace with several compute streams or without what its kernels read.
    """
    graph, node = context.graph, context.node
    require_one_stream(graph, "capuchin")
    require_reads(graph)
    decisions = Decisions.of(graph)
    vector = first_to_current(graph, node, context.budget, decisions)
    evaluator = evaluator_of(context, decisions)
    context.chosen(Chosen(evaluator, vector))
    program = program_of(graph, decisions, vector)
    return replace(program, notes=(*program.notes, *notes_on(graph, decisions, vector), *inexact(evaluator)))


def first_to_current(graph: TaskGraph, node: NodeSpec, budget: int, decisions: Decisions) -> Vector:
    """The vector: from the first feature map on each leaves as costs least so far, until the iteration fits.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]))
    >>> node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**10, 10**10))
    >>> [first_to_current(graph, node, budget, Decisions.of(graph)) for budget in (1000, 900, 799)]
    [(0, 0), (1, 0), (1, 1)]
    """
    within, without = (Evaluator(graph, node, limit, decisions) for limit in (budget, UNLIMITED))
    vector = [0] * len(decisions.maps)
    for position, count in enumerate(decisions.choices):
        if _fits(within, vector):
            return tuple(vector)
        tried = [[*vector[:position], number, *vector[position + 1 :]] for number in range(1, count)]
        vector = tried[int(without.costs(tried).time_ns.argmin())]
    return tuple(vector) if _fits(within, vector) else _repaired(within, vector)


def _repaired(within: Evaluator, vector: list[int]) -> Vector:
    """A vector in which all have left and which does not fit, made to fit if swaps can; see the readings."""
    options = within.decisions.options
    recomputed = [p for p, own in enumerate(options) if own[vector[p]].action is Action.RECOMPUTE]
    swapped = []
    for position in recomputed:
        if _fits(within, vector):
            break
        swapped.append(position)
        vector[position] = options[position].index(SWAP)
    if _fits(within, vector):
        for position in swapped:
            _restore(within, vector, position, options[position].index(RECOMPUTE))
        for position in reversed(range(len(vector))):
            _restore(within, vector, position, options[position].index(KEEP))
    return tuple(vector)


def _restore(within: Evaluator, vector: list[int], position: int, number: int) -> None:
    """Take an option back where it still fits."""
    chosen, vector[position] = vector[position], number
    if not _fits(within, vector):
        vector[position] = chosen


def _fits(evaluator: Evaluator, vector: list[int]) -> bool:
    return int(evaluator.costs([vector]).short[0]) <= 0
