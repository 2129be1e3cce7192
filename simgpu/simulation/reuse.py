"""What does not change between the runs of a graph: plans, programs that have passed their checks, and whole runs.

A comparison, a sweep or a search runs the same graph with other links and budgets. A plan that did not look at what
changed would come out the same, a program that was verified stays legal, and one that never has to wait for memory
takes the same course with every larger budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.calling import planned
from simgpu.program.budget import check_budget
from simgpu.program.check import CheckedProgram, check_program
from simgpu.program.instructions import Instruction, Program
from simgpu.program.verify import verify
from simgpu.simulation.config import RunConfig
from simgpu.simulation.result import Result
from simgpu.timeline.model import SHARED
from simgpu.timeline.streams import StreamId

#: Plans and checked programs that are kept of one graph, and the most instructions that one of them has: larger ones
#: would hold much memory for as long as the graph is used.
_MOST, _LARGEST = 8, 200_000
#: The most spans of a result that is kept.
_MOST_SPANS = 50_000


#: The streams of a program's segments, to see whether somebody has changed them since.
Contents = list[dict[StreamId, Sequence[Instruction]]]

#: The plan's function, the policy, and the node where the plan read it.
_PlanKey = tuple[object, Policy, NodeSpec | None]


class WatchedContext(PlanContext):
    """A plan context that notes which of its fields were read."""

    __slots__ = ("seen",)

    seen: set[str]

    def __init__(self, *fields: Any, **named: Any) -> None:
        object.__setattr__(self, "seen", set())
        super().__init__(*fields, **named)

    def __getattribute__(self, name: str) -> Any:
        """The field; others are as usual."""
        if name in _FIELDS:
            object.__getattribute__(self, "seen").add(name)
        return object.__getattribute__(self, name)


_FIELDS = frozenset(field.name for field in fields(PlanContext))


def is_own(policy: Policy) -> bool:
    """Whether a policy is one of simgpu's own: an outside policy may read what no context shows."""
    return type(policy).__module__.startswith("simgpu.")


def planned_once(policy: Policy, context: PlanContext) -> Program:
    """The policy's program, as `planned` gives it; that of an earlier call where the plan read the graph alone, or the
    graph and an equal node.

    Only for simgpu's own policies. A plan that equals an earlier one gives the same object.
    """
    if not is_own(policy):
        return planned(policy, context)
    plans: dict[_PlanKey, tuple[Program, Contents]] = context.graph.kept.setdefault(("plans",), {})
    of_any: _PlanKey = type(policy).plan, policy, None
    of_node: _PlanKey = type(policy).plan, policy, context.node
    try:
        for key in (of_any, of_node):
            known = plans.get(key)
            if known is not None and _contents(known[0]) == known[1]:
                _keep(plans, key, known)
                return known[0]
    except TypeError:  # a parameter that cannot be hashed
        return planned(policy, context)
    watched = WatchedContext(**{name: getattr(context, name) for name in _FIELDS})
    program = planned(policy, watched)
    if not watched.seen <= {"graph"}:
        program = _one_of_equals(program, context.graph)
    if watched.seen <= {"graph", "node"} and len(program) <= _LARGEST:
        _keep(plans, of_node if "node" in watched.seen else of_any, (program, _contents(program)))
    return program


def _one_of_equals(program: Program, graph: TaskGraph) -> Program:
    """A program, or an equal one of an earlier plan, which has perhaps passed its checks."""
    if len(program) > _LARGEST:
        return program
    programs: dict[int, tuple[Program, Contents]] = graph.kept.setdefault(("programs",), {})
    for known, contents in reversed(list(programs.values())):
        same = known == program and (known.notes, known.sections) == (program.notes, program.sections)
        if same and _contents(known) == contents:
            program = known
            break
    _keep(programs, id(program), (program, _contents(program)))
    return program


def verified(program: Program, graph: TaskGraph, node: NodeSpec, budget: int) -> CheckedProgram:
    """Check and verify a program for a node and a budget; what has passed once is not checked again."""
    kept: dict[tuple[object, ...], tuple[CheckedProgram, Contents]] = graph.kept.setdefault(("checked",), {})
    links = tuple(link.ends for link in node.links)
    key = id(program), tuple(memory.name for memory in node.memories), links
    known = kept.get(key)
    if known is not None and known[0].program is program and _contents(program) == known[1]:
        _keep(kept, key, known)
        check_budget(known[0], budget, node.gpu.alignment)
        return known[0]
    checked = check_program(program, graph, node)
    verify(program, graph, capacity=budget, alignment=node.gpu.alignment, node=node, checked=checked)
    if len(program) <= _LARGEST:
        _keep(kept, key, (checked, _contents(program)))
    return checked


@dataclass(slots=True, eq=False)
class Repeated:
    """Runs of a checked program on a node that differ only in their budget.

    settings: the policy and the configuration without its budget. result: of a run without a limit, once one was made;
    None where there is none to use.
    """

    checked: CheckedProgram
    node: NodeSpec
    settings: tuple[Policy, RunConfig]
    tried: bool = False
    result: Result | None = None

    def within(self, budget: int) -> Result | None:
        """The result with a budget that the program never has to wait for; None with a smaller one.

        Memory without addresses is granted at once until its bytes are used up. So a run never waits for memory
        where the budget is the most bytes that the program uses without a limit, and then it takes the same course.
        """
        known = self.result
        if known is None or budget < known.high_water:
            return None
        timeline = known.timeline
        curves = (each if each.gpu == SHARED else replace(each, capacity=int(budget)) for each in timeline.memories)
        timeline = replace(timeline, memories=tuple(curves))
        phases, parameters = dict(known.phases), dict(known.parameters)
        result = replace(known, budget=budget, timeline=timeline, phases=phases, parameters=parameters)
        vars(result)["metrics"] = deepcopy(known.metrics)
        return result


def repeated(
    checked: CheckedProgram, graph: TaskGraph, node: NodeSpec, policy: Policy, config: RunConfig
) -> Repeated | None:
    """The runs to which this one belongs; None for the first of them, which has nothing to share."""
    kept: dict[int, Repeated] = graph.kept.setdefault(("repeated",), {})
    settings = policy, replace(config, budget=None)
    for each in list(kept.values()):  # other threads may add some
        if each.checked is checked and each.node == node and each.settings == settings:
            _keep(kept, id(each), each)
            return each
    if len(checked.program) <= _LARGEST:
        new = Repeated(checked, node, settings)
        _keep(kept, id(new), new)
    return None


def read_only(result: Result) -> Result | None:
    """A result whose columns nobody can change, so that others may share them; None for one that is too large."""
    timeline = result.timeline
    if len(timeline) > _MOST_SPANS:
        return None
    of_memories = [getattr(curve, field.name) for curve in timeline.memories for field in fields(curve)]
    for column in [*(getattr(timeline, field.name) for field in fields(timeline)), *of_memories]:
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return result


def _contents(program: Program) -> Contents:
    return [dict(segment.streams) for segment in program.segments]


def _keep(kept: dict[Any, Any], key: object, value: object) -> None:
    """Keep a value, in place of those that were used least recently."""
    kept.pop(key, None)
    while len(kept) >= _MOST:
        kept.pop(next(iter(kept)), None)
    kept[key] = value
