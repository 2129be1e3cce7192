"""`capuchin`: swap or recompute each feature map by measured accesses, after Peng et al., ASPLOS 2020.

Capuchin's own paper was not available. Version `published` follows public summaries and re-implementations (named in
the package). Several agree on passive mode, free time, in-triggers and their feedback by 5 %, memory saving per second
and its updates. The order of evictions, the cost of a swap on demand, the sharing of the link among swaps, and the
number of bytes to save are decided here, as the modules document.

Version `home` is Capuchin as HOME rebuilt it for its comparison (TC 2022, sections 2.3, 4.1, 4.2 and 5.3): a greedy
algorithm that swaps asynchronously and optimises the tensors from the first to the current one, regardless of later
ones. Where that is open, this implementation decides:

* The cost of a decision is the time of an iteration in which the maps so far are swapped or recomputed as decided and
  all others are kept, with unlimited memory. Memory missing in that iteration is left to later maps.
* Each map is swapped or recomputed, whichever is faster; swapped if equal. Keeping would always be cheapest, so the
  decisions end, and all further maps are kept, as soon as the iteration fits.
* Recomputation needs memory too. If the iteration does not fit with all maps decided, recomputed maps are swapped
  instead, from the first on, until it fits. Then, from the first on, those that need not be swapped are recomputed
  again; last, from the last map on, maps that need neither are kept.
* Where only a run decides what fits, as in a pool whose holes waste memory, further maps are decided until a run fits.
* With more memory or bandwidth the greedy choice may end slower than with less: that is left as the paper has it.
* Offloads are issued with the last reader and fetches one layer step ahead, as in HOME itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.pool import UNLIMITED
from simgpu.planning.evaluator import Chosen, Evaluator
from simgpu.planning.options import KEEP, RECOMPUTE, SWAP, Action, Decisions, Vector
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream
from simgpu.policies.capuchin.published import GREEDY, published
from simgpu.policies.common.placing import evaluator_of, inexact, notes_on, program_of
from simgpu.program.instructions import Program
from simgpu.program.lowering import require_reads

#: Nodes and decisions for which a graph keeps its greedy choices, and how many of them are tried at once.
_MOST, _AT_ONCE = 4, 16


@dataclass(frozen=True)
class Capuchin(Policy):
    """Swap or recompute feature maps greedily, one after the other."""

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
    """The iteration of version `home`.

    Raises `InputError` for a trace with several compute streams or without the reads of its kernels.
    """
    graph, node = context.graph, context.node
    require_one_stream(graph, "capuchin")
    require_reads(graph)
    decisions = Decisions.of(graph)
    vector = first_to_current(graph, node, context.budget, decisions)
    evaluator = evaluator_of(context, decisions)
    if evaluator.why_not:
        vector = _by_runs(context, decisions, vector)
    context.chosen(Chosen(evaluator, vector))
    program = program_of(graph, decisions, vector)
    greedy = (GREEDY,) if any(vector) else ()
    return replace(program, notes=(*program.notes, *notes_on(graph, decisions, vector), *greedy, *inexact(evaluator)))


def first_to_current(graph: TaskGraph, node: NodeSpec, budget: int, decisions: Decisions) -> Vector:
    """The greedy vector: from the first feature map on, the cheaper of swap and recompute until the iteration fits.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]))
    >>> node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**10, 10**10))
    >>> [first_to_current(graph, node, budget, Decisions.of(graph)) for budget in (1000, 900, 799)]
    [(0, 0), (1, 0), (1, 1)]
    """
    within = Evaluator(graph, node, budget, decisions)
    count, chosen, begin = len(decisions.maps), _choices(graph, node, decisions, 0), 0
    while True:
        vectors = [[*chosen[:end], *[0] * (count - end)] for end in range(begin, len(chosen) + 1)[:_AT_ONCE]]
        fits = within.costs(vectors).short <= 0
        begin += len(vectors)
        if fits.any() or begin > count:
            break
        chosen = _choices(graph, node, decisions, begin)
    return tuple(vectors[int(fits.argmax())]) if fits.any() else _repaired(within, vectors[-1])


def _choices(graph: TaskGraph, node: NodeSpec, decisions: Decisions, least: int) -> list[int]:
    """The cheaper of swap and recompute for at least so many feature maps, from the first on."""
    known, count = _known_choices(graph, node, decisions), len(decisions.maps)
    chosen = list(known[-1])
    if len(chosen) < least:
        without = Evaluator(graph, node, UNLIMITED, decisions)
        while len(chosen) < least:
            rest = [0] * (count - len(chosen) - 1)
            tried = [[*chosen, number, *rest] for number in range(1, decisions.choices[len(chosen)])]
            chosen.append(1 + int(without.costs(tried).time_ns.argmin()))
        known.append(tuple(chosen))
    return chosen


def _by_runs(context: PlanContext, decisions: Decisions, vector: Vector) -> Vector:
    """The greedy vector where the evaluator is not exact, as with a pool whose holes waste memory.

    The vector if it fits in a run, or if it does not with all maps decided. Else, by bisection, a number of decided
    maps that fits while one less does not.
    """
    graph, node, count = context.graph, context.node, len(decisions.maps)

    def first(end: int) -> Vector:
        return (*_choices(graph, node, decisions, end)[:end], *[0] * (count - end))

    def fits(each: Vector) -> bool:
        try:
            context.trial(program_of(graph, decisions, each))
        except OutOfMemoryError:
            return False
        return True

    if fits(vector) or not fits(first(count)):
        return vector
    fails, enough = max((position for position, number in enumerate(vector) if number), default=-1) + 1, count
    while enough - fails > 1:
        middle = (fails + enough) // 2
        fails, enough = (fails, middle) if fits(first(middle)) else (middle, enough)
    return first(enough)


def _known_choices(graph: TaskGraph, node: NodeSpec, decisions: Decisions) -> deque[Vector]:
    """Its last entry holds the choices for the first feature maps, as far as a budget has needed them: they do not
    depend on it."""
    kept = graph.kept.setdefault(("greedy choices",), deque(maxlen=_MOST))
    known: deque[Vector] | None = next((each for key, each in tuple(kept) if key == (node, decisions)), None)
    if known is None:
        known = deque([()], maxlen=1)
        kept.append(((node, decisions), known))
    return known


def _repaired(within: Evaluator, vector: list[int]) -> Vector:
    """A vector without kept maps that does not fit, changed to fit if swaps can; see the module's docstring."""
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
    """Change one option if the vector still fits."""
    chosen, vector[position] = vector[position], number
    if not _fits(within, vector):
        vector[position] = chosen


def _fits(evaluator: Evaluator, vector: list[int]) -> bool:
    return int(evaluator.costs([vector]).short[0]) <= 0
