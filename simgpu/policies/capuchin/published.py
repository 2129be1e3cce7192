"""Capuchin as published: one measured iteration, decisions based on it, and triggers adjusted by trial runs.

Capuchin itself would fall back to passive mode wherever memory is short in a guided iteration. A program is fixed
before it runs, so trial runs find these cases. Where public summaries are open, this implementation decides:

* The bytes to save are first those that memory lacks at its peak. Where a run is short of memory at a kernel, fetched
  blocks that are not needed by then are triggered after it, those needed last first. Where that kernel is being
  recomputed, its blocks are swapped instead. Otherwise the bytes to save grow by the missing amount.
* If everything is evicted, nothing is fetched ahead and it still does not fit, the full iteration runs in passive mode.
* Feedback stops when no triggered block is late, no trigger can move, or an earlier one no longer fits. The fastest run
  is kept; by the summaries the triggers keep moving from iteration to iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from simgpu.errors import OutOfMemoryError
from simgpu.graph.recompute import unrecomputable
from simgpu.graph.saved import Activation
from simgpu.policies.base import PlanContext, Trial
from simgpu.policies.capuchin.hybrid import (
    Decision,
    RecomputeBlock,
    SwapOut,
    candidates_of,
    decide,
    situation_of,
    triggered_earlier,
)
from simgpu.policies.capuchin.passive import passive_of, passive_run
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Recompute, Swap
from simgpu.timeline.model import SpanKind

BlockDecisions = dict[int, Decision]


#: A note on programs that swap or recompute.
GREEDY = "chosen greedily, as published: less memory may give a faster program"


def published(context: PlanContext, adjustments: int = 10) -> Program:
    """The guided iteration. adjustments: the most runs that move triggers.

    Raises `InputError` for a trace with several compute streams or without the reads of its kernels, and
    `OutOfMemoryError` where even passive mode does not fit.
    """
    guided = _Guided(context)
    fitting = guided.fitting()
    if fitting is None:
        notes = ("no decisions make the iteration fit: it runs in passive mode",)
        return replace(passive_of(context), notes=notes)
    program = guided.adjusted(*fitting, adjustments)
    greedy = (GREEDY,) if fitting[0] else ()
    return replace(program, notes=(*program.notes, *unrecomputable(context.graph).notes(), *greedy))


def placed(decisions: Mapping[int, Decision], maps: Mapping[int, Activation]) -> Placement:
    """The placement of the decisions; an offload begins when the last access in forward has ended."""
    swaps, recomputes = [], []
    for b, decision in sorted(decisions.items()):
        after, before = maps[b].after, maps[b].before
        if isinstance(decision, SwapOut):
            trigger = before if decision.trigger is None else min(decision.trigger, before)
            swaps.append(Swap(b, after, before, trigger))
        else:
            recomputes.append(Recompute(b, after, before))
    return Placement(tuple(swaps), recomputes=tuple(recomputes))


class _Guided:
    """Tries guided iterations. not_before: the kernel before which a block must not be fetched, for lack of memory."""

    def __init__(self, context: PlanContext) -> None:
        accesses = passive_run(context)
        self.context = context
        self.demand = accesses.demand
        self.maps, self.candidates = candidates_of(accesses, context.node, context.budget)
        self.situation = situation_of(accesses)
        self.to_save = accesses.peak.bytes - context.budget
        self.not_before: dict[int, int] = {}

    def fitting(self) -> tuple[BlockDecisions, Program, Trial] | None:
        """The first decisions that fit; None where no candidate is left."""
        while True:
            decisions = self._postponed(decide(self.candidates, self.situation, self.to_save))
            program = lower(self.context.graph, placed(decisions, self.maps))
            try:
                return decisions, program, self.context.trial(program)
            except OutOfMemoryError as error:
                short = max(error.requested - error.free, 1)
                k = self.context.graph.kernel_number.get(error.kernel, -1)
                if self._postpone(decisions, k, short) or self._swap_instead(decisions, k):
                    continue
                if len(decisions) == len(self.candidates):
                    return None
                saved = sum(each.bytes for each in self.candidates if each.number in decisions)
                self.to_save = saved + short

    def adjusted(self, decisions: BlockDecisions, program: Program, trial: Trial, adjustments: int) -> Program:
        """The fastest of several runs, each with earlier triggers for the blocks that were late before."""
        best, fastest = program, trial.iteration_ns
        late: Counter[int] = Counter()
        now = decisions
        for _ in range(adjustments):
            late.update(self._late(trial))
            moved = self._postponed(triggered_earlier(decisions, self.candidates, self.situation, late))
            if moved == now:
                break
            now = moved
            program = lower(self.context.graph, placed(now, self.maps))
            try:
                trial = self.context.trial(program)
            except OutOfMemoryError:
                break
            if trial.iteration_ns < fastest:
                best, fastest = program, trial.iteration_ns
        return best

    def _postpone(self, decisions: BlockDecisions, k: int, short: int) -> bool:
        """Fetch `short` bytes after kernel k that were fetched before it but needed later; False if there are none."""
        sizes = {each.number: each.bytes for each in self.candidates}
        fetched = [
            b
            for b, decision in decisions.items()
            if isinstance(decision, SwapOut)
            and decision.trigger is not None
            and decision.trigger <= k < self.maps[b].before
        ]
        for b in sorted(fetched, key=lambda b: (-self.maps[b].before, b)):
            if short <= 0:
                break
            self.not_before[b] = k + 1
            short -= sizes[b]
        return bool(fetched)

    def _swap_instead(self, decisions: BlockDecisions, k: int) -> bool:
        """Stop recomputing with kernel k if its second run lacks memory; False if that is not the cause."""
        evicted_bytes = sum(
            each.bytes
            for each in self.candidates
            if each.number in decisions and self.maps[each.number].after < k < self.maps[each.number].before
        )
        first_run_fits = k >= 0 and self.demand[k] - evicted_bytes <= self.context.budget
        recomputed = {
            each.number
            for each in self.candidates
            if k in each.kernels and isinstance(decisions.get(each.number), RecomputeBlock)
        }
        if first_run_fits:
            self.candidates = tuple(
                replace(each, recompute_ns=None) if each.number in recomputed else each for each in self.candidates
            )
        return first_run_fits and bool(recomputed)

    def _postponed(self, decisions: BlockDecisions) -> BlockDecisions:
        postponed = dict(decisions)
        for b, k in self.not_before.items():
            decision = decisions.get(b)
            if isinstance(decision, SwapOut) and decision.trigger is not None:
                postponed[b] = SwapOut(max(decision.trigger, k))
        return postponed

    def _late(self, trial: Trial) -> set[int]:
        """Blocks for whose fetch compute waited in the last iteration."""
        timeline = trial.timeline
        last = len(timeline.iteration_ends_ns) - 1
        return {
            self.context.graph.block_number[span.name]
            for span in timeline
            if span.kind is SpanKind.STALL_EVENT
            and span.iteration == last
            and span.stream.startswith("compute")
            and span.cause == "h2d"
        }
