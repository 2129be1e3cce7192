"""`checkmate`: the fastest schedule of recomputation within a budget (Jain et al., Checkmate, MLSys 2020).

An integer program decides for every kernel of the iteration which values are kept for it, and which kernels run again
before it. HiGHS solves it; `method: rounding` relaxes it, keeps what that keeps to at least half, and recomputes what
is missing (the paper's two-phase rounding), with smaller and smaller budgets until the schedule fits.

The program has about as many variables as the square of the number of kernels, so larger iterations are scheduled in
`groups` of neighbouring kernels, those of a layer first, and HiGHS branches a limited number of times. Where that does
not prove a schedule of single kernels to be the fastest, a search looks for a faster one
(`simgpu.policies.checkmate.improving`): from what `dtr` does under each of its heuristics and, for a chain, from
Revolve's snapshots. The integer program of groups is left out where its relaxation cannot be faster. No answer is
slower than `dtr`, `revolve` or `checkpoint`, and a note says what is known about faster ones.

What is changed in place stays, unless one group does all of it, and so does what kernels make that cannot run again.
Where that costs time, the policy also schedules the iteration without changes in place, in which every kernel can run
again (`simgpu.graph.functional`), as the paper's graphs are, and takes the faster schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from simgpu.errors import InputError
from simgpu.graph.functional import Functional
from simgpu.graph.taskgraph import Transform
from simgpu.graph.transforms import transformed
from simgpu.planning.highs import TIME_LIMIT_S
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_stream, require_undivided
from simgpu.policies.checkmate.program import FittingSchedule, first_fitting, relaxed_ns
from simgpu.policies.checkmate.single import Known, SingleKernels
from simgpu.policies.checkpoint import Checkpoint
from simgpu.policies.common.node_schedule import NodeSchedule, written
from simgpu.policies.common.nodes import Nodes, groups_of
from simgpu.policies.common.shortlist import tried
from simgpu.program.instructions import Program
from simgpu.units import format_time

_TIMED_OUT = f"HiGHS was stopped after {TIME_LIMIT_S:.0f} s: another machine may find another schedule"


class _Answer(NamedTuple):
    """A program that fits. time_ns: of its kernels. notes: how it was found. is_fastest: whether no schedule of single
    kernels is faster. bound: what is known about faster ones."""

    program: Program
    time_ns: int
    notes: tuple[str, ...]
    is_fastest: bool = False
    bound: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkmate(Policy):
    """Optimal recomputation."""

    name = "checkmate"
    summary = "recomputes by the fastest schedule within the budget, of an integer program or a search"
    source = "Jain et al., Checkmate, MLSys 2020"
    libraries = ("numba", "scipy")

    method: Literal["optimal", "rounding"] = parameter("optimal", "the integer program, or the relaxed one, rounded")
    groups: int = parameter(32, "most groups of kernels that the integer program schedules")
    evaluations: int = parameter(
        50_000_000, "most stages of which the search for single kernels may compute the time; 0: no search"
    )

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for several compute streams, a split batch and parameters out of range,
        `MissingExtraError` without SciPy."""
        graph = context.graph
        require_one_stream(graph, self.name)
        require_undivided(graph, self.name)
        for name, least in (("groups", 1), ("evaluations", 0)):
            if (value := getattr(self, name)) < least:
                what = f"{value} is less than {least}"
                raise InputError.single("", f"parameters.{name}", what, f"give {least} or more")
        fitting: list[_Answer] = []
        for transforms in ((), (Functional(),)):
            fitting += self._answers(context, transforms)
            if any(each.time_ns == graph.ideal_ns() for each in fitting):
                break
        if self._searches and all(each.time_ns > graph.ideal_ns() for each in fitting):
            runs = tried(context, {"checkpoint": partial(Checkpoint().plan, context)})
            fitting += [_Answer(run.program, run.time_ns, (f"scheduled by {run.label}",)) for run in runs]
        if not fitting:
            # What needs least memory shows which kernel cannot run.
            nodes = self._nodes(context, ())
            return written(nodes, NodeSchedule.of(nodes, [frozenset()] * len(nodes.groups)))
        best = min(fitting, key=lambda each: each.time_ns)
        bound = best.bound if context.lower_bounds else ()
        return replace(best.program, notes=(*best.program.notes, *best.notes, *bound))

    @property
    def _searches(self) -> bool:
        return self.method == "optimal" and self.evaluations > 0

    def _nodes(self, context: PlanContext, transforms: Sequence[Transform]) -> Nodes:
        graph = transformed(context.graph, transforms)
        return Nodes(graph, groups_of(graph, self.groups), context.node.gpu.alignment)

    def _answers(self, context: PlanContext, transforms: tuple[Transform, ...]) -> Iterator[_Answer]:
        """Schedules of the iteration with these transforms that fit."""
        nodes, single = self._nodes(context, transforms), SingleKernels(context, transforms)
        context.progress(f"scheduling {len(nodes.groups)} groups of {len(nodes.graph.kernels)} kernels")
        known: list[Known] = []
        if self._searches and not _is_whole(nodes):
            known = single.searched((), self.evaluations)
            least = relaxed_ns(nodes, context.budget)
            if known and (least is None or min(each.time_ns for each in known) <= least):
                # The integer program would find nothing that is faster.
                yield from (_of_single(each, nodes, least) for each in known)
                return
        solved, schedules = self._solved(nodes, context.budget)
        answers = [_of_nodes(nodes, each, transforms, solved) for each in schedules]
        if self._searches and not any(each.is_fastest for each in answers):
            known += single.searched([each.program for each in answers], self.evaluations)
        yield from answers
        yield from (_of_single(each, nodes, solved.bound_ns if solved else None) for each in known)

    def _solved(self, nodes: Nodes, budget: int) -> tuple[FittingSchedule | None, list[NodeSchedule]]:
        """The integer program's answer, and the schedules that fit: where HiGHS was stopped before it had proved its
        answer, or had one, the rounded one too."""
        solved = first_fitting(nodes, budget, self.method)
        schedules = [] if solved is None else [solved.schedule]
        if self.method == "optimal" and (solved is None or solved.bound_ns < solved.schedule.time_ns):
            rounded = first_fitting(nodes, budget, "rounding")
            solved = solved or rounded
            schedules += [] if rounded is None else [rounded.schedule]
        return solved, schedules


def _is_whole(nodes: Nodes) -> bool:
    """Whether each node is a kernel."""
    return len(nodes.groups) == len(nodes.graph.kernels)


def _of_nodes(
    nodes: Nodes, schedule: NodeSchedule, transforms: Sequence[Transform], solved: FittingSchedule | None
) -> _Answer:
    """A schedule that the integer program found, or its relaxation."""
    program = replace(written(nodes, schedule), transforms=tuple(transforms))
    time_ns, bound_ns = schedule.time_ns, min(solved.bound_ns, schedule.time_ns) if solved else 0
    grouped = () if _is_whole(nodes) else (f"scheduled in {len(nodes.groups)} groups of the {_kernels(nodes)}",)
    timed_out = (_TIMED_OUT,) if solved is not None and solved.is_timed_out else ()
    is_fastest = _is_whole(nodes) and bound_ns == time_ns
    return _Answer(program, time_ns, (*grouped, *timed_out), is_fastest, (_distance(time_ns, bound_ns),))


def _of_single(known: Known, nodes: Nodes, bound_ns: int | None) -> _Answer:
    """A schedule of single kernels. bound_ns: of schedules of the nodes, None if none fits or it is not known."""
    how = f"scheduled by {known.label}"
    bound: tuple[str, ...] = ()
    if bound_ns is not None and (_is_whole(nodes) or bound_ns <= known.time_ns):
        bound = (_distance(known.time_ns, min(bound_ns, known.time_ns)),)
    elif bound_ns is not None:
        faster = f"faster than any schedule in {len(nodes.groups)} groups of the {_kernels(nodes)}"
        bound = (f"{faster}; lower bound of these {format_time(bound_ns)}",)
    return _Answer(known.program, known.time_ns, (how,), bound=bound)


def _kernels(nodes: Nodes) -> str:
    return f"{len(nodes.graph.kernels)} kernels"


def _distance(time_ns: int, bound_ns: int) -> str:
    over = time_ns / bound_ns - 1 if bound_ns else 0.0
    best = "no schedule of whole groups is faster" if over < 1e-9 else f"at most {over:.2%} over the fastest schedule"
    return f"{best}; lower bound {format_time(bound_ns)}"
