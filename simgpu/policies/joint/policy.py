"""`joint`: for each feature map the best of keep, swap, swap encoded and recompute, and how far it is from the best.

This policy is simgpu's own. It chooses among HOME's three actions (HOME, TC 2022, section 3.3), other moments to fetch
than one layer step ahead (as Capuchin's in-triggers are) and, where the trace tells sparsity, encoding by the GPU on
the way (CSWAP, section IV). It searches all of them together, with the evaluator of HOME's section 3.4, from the
placements of HOME, SuperNeurons and Capuchin, by exchanges of decisions (`simgpu.policies.joint.exploring`). What it
finds is tried on the machine beside the programs of these policies, and of vDNN, and the fastest is the answer: it is
never slower than any of them.

Splitting the batch is no placement, so it is not adopted; where anything has to leave, notes give time and peak memory
of what was tried, and of gradient accumulation (`simgpu.policies.joint.accumulation`).

A note gives the gap to a lower bound on the time of every placement of these actions within the budget or, where a
program moves more than feature maps, of every program (`simgpu.policies.joint.least_times`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from simgpu.planning.evaluator import DOES_NOT_FIT, Evaluator
from simgpu.planning.options import Decisions
from simgpu.planning.search.space import Score
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.capuchin.policy import Capuchin
from simgpu.policies.capuchin.rebuilt import first_to_current
from simgpu.policies.home import Home
from simgpu.policies.joint.accumulation import accumulation_note
from simgpu.policies.joint.actions import with_all_actions
from simgpu.policies.joint.exploring import Explored, explore
from simgpu.policies.joint.least_times import NOT_BOUNDED, bounds_of
from simgpu.policies.placing import (
    Chosen,
    PlacingPolicy,
    Vector,
    bar,
    evaluator_of,
    inexact,
    notes_on,
    program_of,
    slow,
)
from simgpu.policies.shortlist import Shortlist, Tried, tried
from simgpu.policies.superneurons import SuperNeurons
from simgpu.policies.vdnn import Vdnn, require_one_stream
from simgpu.program.instructions import Program
from simgpu.program.lowering import require_reads
from simgpu.units import format_time

#: Policies whose programs are tried beside what the search finds; the search does not start from them.
_RIVALS: tuple[tuple[str, Policy], ...] = (
    ("vdnn", Vdnn()),
    ("vdnn(mode=conv)", Vdnn(mode="conv")),
    ("capuchin(version=published)", Capuchin(version="published")),
)

#: Placements by the policy that they are of, in numbers of HOME's three actions.
Starts = dict[str, Vector]


@dataclass(frozen=True)
class Joint(PlacingPolicy):
    """The best that a search over all actions finds, never slower than what it starts from."""

    name = "joint"
    summary = "keep, swap, swap encoded or recompute, searched from the placements of the others; tells its distance"
    source = "simgpu's own; HOME (TC 2022), section 3.3, Capuchin (ASPLOS 2020), CSWAP (CLUSTER 2021), section IV"
    libraries = ("numba", "scipy", "scikit-learn", "bayesian-optimization")

    evaluations: int = parameter(
        250_000, "placements that the search may evaluate, besides those of the policies that it starts from"
    )
    bound: bool = parameter(True, "whether to compute how far from the best possible the answer is (needs scipy)")

    def plan(self, context: PlanContext) -> Program:
        """The fastest program found.

        Raises `InputError` for a trace with several compute streams, or without what its kernels read.
        """
        # HOME's swarm draws first, and so draws what it draws where it is asked alone.
        alone = replace(context, rng=deepcopy(context.rng))
        starts = _starts(context)
        decisions = self.decisions(context)
        evaluator = evaluator_of(context, decisions)
        shortlist = Shortlist(evaluator.score)
        found = self._explore(context, evaluator, starts, shortlist)
        searched = program_of(context.graph, decisions, found.vector)
        makers = {"search": lambda: searched, **_rivals(context, decisions, starts)}
        vectors = {"search": found.vector, **starts}
        if evaluator.why_not:
            more = {f"search {n}": vector for n, vector in enumerate(shortlist.vectors)}
            makers |= {each: partial(program_of, context.graph, decisions, vector) for each, vector in more.items()}
            vectors |= more
            makers["home, by runs"] = partial(Home().plan, alone)
        runs = tried(context, makers)
        best = min(runs, key=lambda run: run.time_ns, default=None)
        label, program = ("search", searched) if best is None else best[:2]
        context.chosen(Chosen(evaluator, vectors.get(label), found.evaluations))
        notes = [_how(found)]
        if label in vectors:
            notes[:0] = notes_on(context.graph, decisions, vectors[label])
        if not label.startswith("search"):
            why = "the search found nothing that fits" if found.score >= DOES_NOT_FIT else "faster than what was found"
            notes.insert(0, f"adopted: the program of {label}, {why}")
        if self.bound and best is not None and not evaluator.why_not:
            notes.append(_distance(evaluator, program, best.time_ns))
        if any(vectors.get(label, (1,))):
            notes += _suggestions(context, runs)
        return replace(program, notes=(*program.notes, *notes, *inexact(evaluator)))

    def decisions(self, context: PlanContext) -> Decisions:
        """The feature maps with all actions."""
        return with_all_actions(context, super().decisions(context))

    def place(self, context: PlanContext, decisions: Decisions) -> Vector:
        """What the search finds."""
        evaluator = evaluator_of(context, decisions)
        return self._explore(context, evaluator, _starts(context), evaluator.score).vector

    def fits(self, context: PlanContext) -> bool | None:
        """Whether a placement that it starts from fits; None where only its own search can tell."""
        starts = _starts(context)
        decisions = self.decisions(context)
        evaluator = evaluator_of(context, decisions)
        known = evaluator.why_not is None and (evaluator.costs(list(starts.values())).short == 0).any()
        return True if known else None

    def _explore(self, context: PlanContext, evaluator: Evaluator, starts: Starts, score: Score) -> Explored:
        def tell(used: int) -> None:
            context.progress(f"searching {bar(used / self.evaluations)} {used} evaluations{slow()}")

        seed = int(context.rng.integers(2**31))
        least = context.graph.ideal_ns()
        choices = evaluator.decisions.choices
        return explore(choices, score, list(starts.values()), self.evaluations, seed, least, tell)


def _starts(context: PlanContext) -> Starts:
    """Placements of the policies that decide about one feature map at a time."""
    graph, node, budget = context.graph, context.node, context.budget
    require_one_stream(graph, Joint.name)
    require_reads(graph)
    basic = Decisions.of(graph)
    return {
        "home": Home().place(context, basic),
        "capuchin": first_to_current(graph, node, budget, basic),
        "superneurons": SuperNeurons().place(context, basic),
    }


def _rivals(context: PlanContext, decisions: Decisions, starts: Starts) -> dict[str, Callable[[], Program]]:
    """What gives the programs of the policies that are tried beside what the search finds."""
    placed: dict[str, Callable[[], Program]] = {
        label: partial(program_of, context.graph, decisions, vector) for label, vector in starts.items()
    }
    return placed | {label: partial(policy.plan, context) for label, policy in _RIVALS}


def _suggestions(context: PlanContext, runs: Sequence[Tried[str]]) -> tuple[str, str]:
    """What was tried, but for the search's other placements, and what there is beyond placements."""
    named = "; ".join(f"{run.label} {run.cost}" for run in runs if not run.label.startswith("search "))
    return f"tried: {named or 'nothing that fits'}", accumulation_note(context)


def _how(found: Explored) -> str:
    if found.score >= DOES_NOT_FIT:
        return f"none of {found.evaluations} placements fits"
    every = "all placements were tried" if found.complete else f"the best of {found.evaluations} evaluations"
    return f"{every}: {format_time(found.score)}"


def _distance(evaluator: Evaluator, program: Program, time_ns: int) -> str:
    """How far from the best possible the answer is, at most."""
    both = bounds_of(evaluator)
    bound = both.of(program)
    if bound is None:
        return f"no distance to a lower bound: the program {NOT_BOUNDED}"
    over = time_ns / bound.ns - 1 if bound.ns else inf if time_ns else 0
    if bound is both.of_feature_maps:
        least = f"takes {format_time(bound.ns)} or more ({bound.how})"
        return f"at most {over:.2%} over the best possible placement of these actions, which {least}"
    return f"at most {over:.2%} over the lower bound of a program that moves more than feature maps: {both.told}"
