"""`home`: swap, recompute or keep, searched over the whole model by a particle swarm, after HOME (TC 2022).

Section 3.3: every feature map is kept (0), swapped (1) or recomputed (2). Particles are such vectors; the search
minimises the step time of a vector by the evaluator of section 3.4 (algorithms 1 to 3). Sections 3.6 and 3.7: swaps are
asynchronous and overlap with kernels; a kernel that needs a tensor still being offloaded waits. A recomputed tensor is
released after its last use in forward.

Where the paper is open, this implementation decides:

* Vectors have an entry for each feature map whose last use in forward and first later use are more than one layer step
  apart (`simgpu.graph.saved`); one that cannot be recomputed is kept or swapped.
* Where everything fits, everything is kept without a search: the paper is about models that exceed the available memory
  (section 3), and a swarm with a random start would rarely reach that vector.
* A vector that does not fit is worse than any that does, and worse the more bytes it lacks (algorithm 2 says "error").
* An offload overlaps with the last reader in forward, as figure 4 draws it; by section 3.6 it begins when the tensor is
  no longer needed there (offload: after).
* A fetch is issued one layer step ahead, as figure 4 draws it, not with its own backward step (section 3.6).
* A tensor that was recomputed as a source of another one is kept for its own use.
* Algorithm 3 as printed evaluates twice for each feature map of each particle (update: full); the search times of table
  3 imply one evaluation for each particle (update: recombine). That is even faster, and its step times are up to 4%
  longer on the six networks; where little memory is short they are behind Capuchin's.
* A swarm whose particles agree has converged and stops: no update would change it.
* The search is the paper's also where it finds a slower placement with more memory or bandwidth than with less.
* On a node that the evaluator does not model exactly, the search is the same, and trial runs choose among the few best
  placements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from simgpu.planning.bound import peak_lower_bound
from simgpu.planning.columns import DRAINED
from simgpu.planning.evaluator import DOES_NOT_FIT, Chosen, Evaluator
from simgpu.planning.options import Decisions, Vector
from simgpu.planning.search.space import Score, Vectors
from simgpu.planning.search.swarm import Swarm, SwarmResult
from simgpu.planning.tables import Ints
from simgpu.policies.base import PlanContext, parameter
from simgpu.policies.common.placing import PlacingPolicy, actions_text, bar, evaluator_of, inexact, notes_on, program_of
from simgpu.policies.common.shortlist import Shortlist, tried
from simgpu.program.instructions import Program
from simgpu.units import format_bytes

#: Budgets of successive searches in percent of the budget, for pools whose holes waste memory.
_OF_THE_BUDGET = (100, 95, 90, 80)


class _SeenError(Exception):
    """Ends a search at the first placement that fits."""


@dataclass(frozen=True)
class Home(PlacingPolicy):
    """Swap, recompute or keep each feature map, searched over the whole model."""

    name = "home"
    summary = "swap, recompute or keep each feature map, searched over the whole model by a particle swarm"
    source = "He et al., IEEE Transactions on Computers 2022 (HOME), sections 3.3-3.7"
    libraries = ("numba", "scipy")

    particles: int = parameter(500, "particles of the swarm (m in algorithm 1)")
    iterations: int = parameter(500, "iterations of the swarm at most; it stops when its particles agree")
    update: Literal["full", "recombine"] = parameter(
        "full",
        "how particles are updated: with two evaluations per feature map, as in algorithm 3, or with one per particle, "
        "as table 3's times imply",
    )
    offload: Literal["overlapped", "after"] = parameter(
        "overlapped",
        "when a copy out is issued: overlapped with the last reader in forward (figure 4), or after it (section 3.6)",
    )
    drain: bool = parameter(
        False,
        "before a fetch of a tensor that is still being offloaded, wait for all copies, as the device-wide "
        "synchronisation of section 3.7 does, not for that tensor alone",
    )

    def plan(self, context: PlanContext) -> Program:
        """The best placement that the swarm finds.

        Raises `InputError` for a trace with several compute streams, or without the reads of its kernels.
        """
        decisions = self.decisions(context)
        evaluator = self.evaluator(context, decisions)
        if evaluator.why_not:
            return self._by_runs(context, decisions)
        if _all_fits(evaluator):
            vector = keeping(decisions)
            context.chosen(Chosen(evaluator, vector, 1))
            why = "everything fits: nothing was searched"
            return replace(self._program(context, evaluator, vector), notes=(actions_text(decisions, vector), why))
        result = self.search(context, evaluator)
        context.chosen(Chosen(evaluator, result.best, result.evaluations, result))
        program = self._program(context, evaluator, result.best)
        notes = (*notes_on(context.graph, decisions, result.best), _how(result))
        return replace(program, notes=(*program.notes, *notes))

    def _by_runs(self, context: PlanContext, decisions: Decisions) -> Program:
        """The fastest of the best placements in trial runs, where the evaluator is not exact.

        If none fits, the search is repeated with a smaller budget, since a pool with holes cannot use all memory.
        """
        for percent in _OF_THE_BUDGET:
            budget = context.budget * percent // 100
            evaluator = self.evaluator(replace(context, budget=budget), decisions)
            shortlist = Shortlist(evaluator.score)
            result = self.search(context, evaluator, shortlist)
            vectors = dict.fromkeys((keeping(decisions), *shortlist.vectors))
            runs = tried(context, {v: partial(self._program, context, evaluator, v) for v in vectors})
            if runs:
                break
        best = min(runs, key=lambda run: run.time_ns, default=None)
        vector = result.best if best is None else best.label
        program = self._program(context, evaluator, vector) if best is None else best.program
        context.chosen(Chosen(evaluator, vector, result.evaluations, result))
        notes = (*notes_on(context.graph, decisions, vector), _how(result), *inexact(evaluator))
        return replace(program, notes=(*program.notes, *notes))

    def _program(self, context: PlanContext, evaluator: Evaluator, vector: Vector) -> Program:
        drained = evaluator.details(vector)[:, DRAINED].astype(bool).tolist() if self.drain else None
        early = self.offload == "overlapped"
        return program_of(context.graph, evaluator.decisions, vector, early=early, drained=drained)

    def place(self, context: PlanContext, decisions: Decisions) -> Vector:
        """The best placement that the swarm finds, by the evaluator."""
        evaluator = self.evaluator(context, decisions)
        return keeping(decisions) if _all_fits(evaluator) else self.search(context, evaluator).best

    def fits(self, context: PlanContext) -> bool | None:
        """Whether the swarm reaches a placement that fits; None where only a run can decide."""

        def until_one_fits(vectors: Vectors) -> Ints:
            score = evaluator.score(vectors)
            if (score < DOES_NOT_FIT).any():
                raise _SeenError
            return score

        evaluator = self.evaluator(context, self.decisions(context))
        if evaluator.why_not:
            return None
        if _all_fits(evaluator):
            return True
        if peak_lower_bound(evaluator.tables)[0] > context.budget:
            return False
        try:
            self._swarm(context, evaluator).minimise(until_one_fits)
        except _SeenError:
            return True
        return False

    def evaluator(self, context: PlanContext, decisions: Decisions) -> Evaluator:
        """The evaluator of placements: algorithm 2."""
        early = self.offload == "overlapped"
        return replace(evaluator_of(context, decisions), early=early, drain=self.drain)

    def search(self, context: PlanContext, evaluator: Evaluator, score: Score | None = None) -> SwarmResult:
        """Algorithm 1. score: a wrapper of the evaluator's score, if any."""
        total = self.iterations
        return self._swarm(context, evaluator).minimise(
            score or evaluator.score,
            progress=lambda n: context.progress(f"searching {bar(n / total)} iteration {n} of at most {total}"),
        )

    def _swarm(self, context: PlanContext, evaluator: Evaluator) -> Swarm:
        choices = evaluator.decisions.choices
        seed = int(context.rng.integers(2**31))
        return Swarm(choices, len(choices), self.particles, self.iterations, seed, self.update)


def keeping(decisions: Decisions) -> Vector:
    """The vector that keeps every feature map."""
    return (0,) * len(decisions.maps)


def _all_fits(evaluator: Evaluator) -> bool:
    """Whether the iteration fits with all feature maps kept."""
    return int(evaluator.costs([keeping(evaluator.decisions)]).short[0]) == 0


def _how(result: SwarmResult) -> str:
    if result.cost >= DOES_NOT_FIT:
        lacking = format_bytes(result.cost - DOES_NOT_FIT)
        return f"none of {result.evaluations} placements fits; the best one lacks {lacking}"
    found = f"best of {result.evaluations} evaluations, reached in iteration {result.converged_at}"
    return f"{found}; as in the paper, less memory may give a faster one"
