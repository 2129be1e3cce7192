"""What does not change between the runs of a graph: plans, and programs that have passed their checks.

A comparison, a sweep or a search runs the same graph with other links and budgets. A plan that did not look at what
changed would come out the same, and a program that was verified stays legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.calling import planned
from simgpu.program.check import CheckedProgram, check_program
from simgpu.program.instructions import Instruction, Program
from simgpu.program.verify import check_budget, verify
from simgpu.timeline.streams import StreamId

#: Plans and checked programs that are kept of one graph, and the most instructions that one of them has: larger ones
#: would hold much memory for as long as the graph is used.
_MOST, _LARGEST = 8, 200_000


#: The streams of a program's segments, to see whether somebody has changed them since.
Contents = list[dict[StreamId, Sequence[Instruction]]]


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


def planned_once(policy: Policy, context: PlanContext) -> Program:
    """The policy's program, as `planned` gives it; the one of an earlier call where that plan read only the graph.

    Only for simgpu's own policies: an outside policy may read what no context shows.
    """
    if not type(policy).__module__.startswith("simgpu."):
        return planned(policy, context)
    plans: dict[tuple[object, Policy], tuple[Program, Contents]] = context.graph.kept.setdefault(("plans",), {})
    key = type(policy).plan, policy
    try:
        known = plans.get(key)
    except TypeError:  # a parameter that cannot be hashed
        return planned(policy, context)
    if known is not None and _contents(known[0]) == known[1]:
        return known[0]
    watched = WatchedContext(**{name: getattr(context, name) for name in _FIELDS})
    program = planned(policy, watched)
    if watched.seen <= {"graph"} and len(program) <= _LARGEST:
        _keep(plans, key, (program, _contents(program)))
    return program


def verified(program: Program, graph: TaskGraph, node: NodeSpec, budget: int) -> CheckedProgram:
    """Check and verify a program for a node and a budget; what has passed once is not checked again."""
    kept: dict[tuple[object, ...], tuple[CheckedProgram, Contents]] = graph.kept.setdefault(("checked",), {})
    links = tuple(link.ends for link in node.links)
    key = id(program), tuple(memory.name for memory in node.memories), links
    known = kept.get(key)
    if known is not None and known[0].program is program and _contents(program) == known[1]:
        check_budget(known[0], budget, node.gpu.alignment)
        return known[0]
    checked = check_program(program, graph, node)
    verify(program, graph, capacity=budget, alignment=node.gpu.alignment, node=node, checked=checked)
    if len(program) <= _LARGEST:
        _keep(kept, key, (checked, _contents(program)))
    return checked


def _contents(program: Program) -> Contents:
    return [dict(segment.streams) for segment in program.segments]


def _keep(kept: dict[Any, Any], key: object, value: object) -> None:
    while len(kept) >= _MOST:
        kept.pop(next(iter(kept)), None)
    kept[key] = value
