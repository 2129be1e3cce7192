"""`checkmate`: the fastest schedule of recomputation within a budget (Jain et al., Checkmate, MLSys 2020).

An integer program decides for every kernel of the iteration which values are kept for it, and which kernels run again
before it. HiGHS solves it; `method: rounding` relaxes it, keeps what that keeps to at least half, and recomputes what
is missing (the paper's two-phase rounding), with smaller and smaller budgets until the schedule fits.

The program has about as many variables as the square of the number of kernels, so larger iterations are scheduled in
`groups` of neighbouring kernels: those of a layer first. What is kept and recomputed is then the results of groups, and
a note says into how many the kernels were put.

What is changed in place stays, unless one group does all of it, and so does what kernels make that cannot run again.
Where that costs time, the policy also schedules the iteration without changes in place, in which every kernel can run
again (`simgpu.graph.functional`), as the paper's graphs are, and takes the faster schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from simgpu.errors import InputError
from simgpu.graph.functional import Functional
from simgpu.graph.taskgraph import TaskGraph, Transform
from simgpu.graph.transforms import transformed
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream
from simgpu.policies.checkmate.nodes import Nodes, groups_of
from simgpu.policies.checkmate.program import CheckmateProgram, Kept, KeptValues
from simgpu.policies.checkmate.writing import NodeSchedule, written
from simgpu.program.instructions import Program
from simgpu.units import format_time

#: Parts of the budget for which the program is solved, one after the other, until the schedule fits: HiGHS may exceed a
#: budget by a millionth; of the relaxed program, which may keep a part of a value, the paper suggests nine tenths.
_OPTIMAL, _ROUNDED = (1.0, 1 - 2e-6, 1 - 1e-5), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


class _Answer(NamedTuple):
    """time_ns: of the schedule. bound_ns: no schedule of its nodes is faster."""

    program: Program
    time_ns: int
    bound_ns: int


@dataclass(frozen=True)
class Checkmate(Policy):
    """Optimal recomputation."""

    name = "checkmate"
    summary = "recomputes by the fastest schedule within the budget, of an integer program"
    source = "Jain et al., Checkmate, MLSys 2020"
    libraries = ("scipy",)

    method: Literal["optimal", "rounding"] = parameter("optimal", "the integer program, or the relaxed one, rounded")
    groups: int = parameter(32, "most groups of kernels that are scheduled one by one")

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for several compute streams and for a split batch, `MissingExtraError`
        without SciPy."""
        graph = context.graph
        require_one_stream(graph, self.name)
        if len(graph.rounds) > 1:
            what = f"the batch is split into micro-batches, and {self.name} schedules an undivided iteration"
            raise InputError.single(graph.trace.name, "batch", what, "choose another policy inside")
        if self.groups < 1:
            raise InputError.single("", "parameters.groups", f"{self.groups} is less than 1", "give 1 or more groups")
        fitting = []
        for transforms in ((), (Functional(),)):
            answer = self._answer(graph, transforms, context)
            if answer is not None:
                fitting.append(answer)
                if answer.time_ns == sum(graph.durations):
                    break
        if fitting:
            best = min(fitting, key=lambda each: each.time_ns)
            return replace(best.program, notes=(*best.program.notes, _distance(best)))
        # What needs least memory shows which kernel cannot run.
        return _program(graph, (), Nodes(graph, groups_of(graph, self.groups)), None)

    def _answer(self, graph: TaskGraph, transforms: tuple[Transform, ...], context: PlanContext) -> _Answer | None:
        """The fastest schedule that was found for a graph; None where none fits."""
        changed = transformed(graph, transforms)
        nodes = Nodes(changed, groups_of(changed, self.groups))
        context.progress(f"scheduling {len(nodes.groups)} groups of {len(changed.kernels)} kernels")
        bound = None
        for part in _OPTIMAL if self.method == "optimal" else _ROUNDED:
            solved = self._solved(CheckmateProgram(nodes, int(context.budget * part)))
            if solved is None:
                return None
            # That of the whole budget.
            bound = solved.bound_ns if bound is None else bound
            schedule = NodeSchedule.of(nodes, solved.kept)
            if schedule.peak() <= context.budget:
                program = _program(changed, transforms, nodes, solved.kept)
                return _Answer(program, schedule.time_ns, min(bound, schedule.time_ns))
        return None

    def _solved(self, program: CheckmateProgram) -> KeptValues | None:
        return program.optimal() if self.method == "optimal" else program.rounded(0.5)


def _program(graph: TaskGraph, transforms: Sequence[Transform], nodes: Nodes, kept: Kept | None) -> Program:
    """kept: None keeps nothing that can be recomputed."""
    none: Kept = [frozenset()] * len(nodes.groups)
    program = written(nodes, NodeSchedule.of(nodes, none if kept is None else kept))
    count, kernels = len(nodes.groups), len(graph.kernels)
    notes = () if count == kernels else (f"scheduled in {count} groups of the {kernels} kernels",)
    return replace(program, transforms=tuple(transforms), notes=notes)


def _distance(answer: _Answer) -> str:
    over = answer.time_ns / answer.bound_ns - 1 if answer.bound_ns else 0.0
    best = "the fastest schedule of its groups" if over < 1e-9 else f"at most {over:.2%} over the fastest schedule"
    return f"{best}; lower bound {format_time(answer.bound_ns)}"
