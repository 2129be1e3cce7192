"""`checkmate`: the fastest schedule of recomputation within a budget (Jain et al., Checkmate, MLSys 2020).

An integer program decides for every kernel of the iteration which values are kept for it, and which kernels run again
before it. HiGHS solves it; `method: rounding` relaxes it, keeps what that keeps to at least half, and recomputes what
is missing (the paper's two-phase rounding), with smaller and smaller budgets until the schedule fits.

HiGHS branches a limited number of times. Where that proves no schedule to be the fastest, the faster one of this, of
the rounded one and, for a chain, of `revolve` is taken, and a note says how far from the bound it is.

The program has about as many variables as the square of the number of kernels, so larger iterations are scheduled in
`groups` of neighbouring kernels: those of a layer first. What is kept and recomputed is then the results of groups, and
a note says into how many the kernels were put.

What is changed in place stays, unless one group does all of it, and so does what kernels make that cannot run again.
Where that costs time, the policy also schedules the iteration without changes in place, in which every kernel can run
again (`simgpu.graph.functional`), as the paper's graphs are, and takes the faster schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from simgpu.errors import InputError
from simgpu.graph.functional import Functional
from simgpu.graph.taskgraph import TaskGraph, Transform
from simgpu.graph.transforms import transformed
from simgpu.planning.highs import TIME_LIMIT_S
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream, require_undivided
from simgpu.policies.checkmate.program import CheckmateProgram
from simgpu.policies.common.node_schedule import NodeSchedule, written
from simgpu.policies.common.nodes import Nodes, groups_of
from simgpu.policies.revolve import layers_of, most_snapshots
from simgpu.program.instructions import Program
from simgpu.units import format_time

#: Parts of the budget for which the program is solved, one after the other, until the schedule fits: HiGHS may exceed a
#: budget by a millionth; of the relaxed program, which may keep a part of a value, the paper suggests nine tenths.
_OPTIMAL, _ROUNDED = (1.0, 1 - 2e-6, 1 - 1e-5), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
_TIMED_OUT = f"HiGHS was stopped after {TIME_LIMIT_S:.0f} s: another machine may find another schedule"


class _Answer(NamedTuple):
    """time_ns: of the schedule. bound_ns: no schedule of its nodes is faster. is_timed_out: as in `Optimum`."""

    program: Program
    time_ns: int
    bound_ns: int
    is_timed_out: bool


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
        require_undivided(graph, self.name)
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
            timed_out = (_TIMED_OUT,) if any(each.is_timed_out for each in fitting) else ()
            return replace(best.program, notes=(*best.program.notes, *timed_out, _distance(best)))
        # What needs least memory shows which kernel cannot run.
        nodes = Nodes(graph, groups_of(graph, self.groups), context.node.gpu.alignment)
        return _program(graph, (), nodes, NodeSchedule.of(nodes, [frozenset()] * len(nodes.groups)))

    def _answer(self, graph: TaskGraph, transforms: tuple[Transform, ...], context: PlanContext) -> _Answer | None:
        """The fastest schedule that was found for a graph; None where none fits."""
        changed = transformed(graph, transforms)
        nodes = Nodes(changed, groups_of(changed, self.groups), context.node.gpu.alignment)
        context.progress(f"scheduling {len(nodes.groups)} groups of {len(changed.kernels)} kernels")
        found = _first_fitting(nodes, context.budget, self.method)
        others: list[NodeSchedule] = []
        if self.method == "optimal" and (found is None or found.bound_ns < found.schedule.time_ns):
            # HiGHS was stopped before it had proved its answer, or before it had one.
            rounded = _first_fitting(nodes, context.budget, "rounding")
            found = found or rounded
            others += [] if rounded is None else [rounded.schedule]
            with suppress(InputError):
                others.append(most_snapshots(nodes, layers_of(nodes), context.budget)[0])
        if found is None:
            return None
        fitting = [each for each in (found.schedule, *others) if each.peak() <= context.budget]
        best = min(fitting, key=lambda each: each.time_ns)
        program = _program(changed, transforms, nodes, best)
        return _Answer(program, best.time_ns, min(found.bound_ns, best.time_ns), found.is_timed_out)


class _Found(NamedTuple):
    """bound_ns: no schedule of the nodes within the budget is faster."""

    schedule: NodeSchedule
    bound_ns: int
    is_timed_out: bool


def _first_fitting(nodes: Nodes, budget: int, method: str) -> _Found | None:
    """The schedule for the largest part of the budget that fits; None where there is none."""
    bound = None
    for part in _OPTIMAL if method == "optimal" else _ROUNDED:
        program = CheckmateProgram(nodes, int(budget * part))
        solved = program.optimal() if method == "optimal" else program.rounded(0.5)
        if solved is None:
            return None
        # That of the whole budget.
        bound = solved.bound_ns if bound is None else bound
        schedule = NodeSchedule.of(nodes, solved.kept)
        if schedule.peak() <= budget:
            return _Found(schedule, bound, solved.is_timed_out)
    return None


def _program(graph: TaskGraph, transforms: Sequence[Transform], nodes: Nodes, schedule: NodeSchedule) -> Program:
    program = written(nodes, schedule)
    count, kernels = len(nodes.groups), len(graph.kernels)
    notes = () if count == kernels else (f"scheduled in {count} groups of the {kernels} kernels",)
    return replace(program, transforms=tuple(transforms), notes=notes)


def _distance(answer: _Answer) -> str:
    over = answer.time_ns / answer.bound_ns - 1 if answer.bound_ns else 0.0
    best = "no schedule of whole groups is faster" if over < 1e-9 else f"at most {over:.2%} over the fastest schedule"
    return f"{best}; lower bound {format_time(answer.bound_ns)}"
