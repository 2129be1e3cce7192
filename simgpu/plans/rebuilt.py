"""The candidate that a plan describes, of the iteration that it is for."""

from __future__ import annotations

from simgpu.errors import InputError
from simgpu.plans.candidate import Candidate
from simgpu.plans.iteration import Checkpointed
from simgpu.plans.making import digest
from simgpu.plans.regions import Steps
from simgpu.torch.plan import Plan
from simgpu.trace.model import Trace


def candidate_of(plan: Plan, trace: Trace) -> Candidate:
    """The candidate of a plan. Raises `InputError` if the plan is for another iteration."""
    check_iteration(plan, trace)
    steps = Steps(trace)
    regions = {(each.module, each.call): each for each in steps.regions()}
    chosen = tuple(
        Checkpointed(regions[each.module, each.call], frozenset(steps.kernel[kept.kernel] for kept in each.keep))
        for each in plan.recompute
    )
    offloaded = tuple(dict.fromkeys(each.block for each in plan.offload))
    return Candidate(steps, chosen, offloaded, plan.prefetch, plan.stash)


def check_iteration(plan: Plan, trace: Trace) -> None:
    """Raises `InputError` if the plan is for another iteration."""
    if digest(trace) != plan.made_for.digest:
        made = plan.made_for
        what = (
            f"the plan is for {made.model}, batch {made.batch}, {made.format}, {made.origin} for {made.device}; "
            f"this is another iteration: {trace.info.model}, batch {trace.info.batch}, {trace.info.provenance}"
        )
        raise InputError.single("plan", "made_for", what, "make the plan anew with `simgpu plan`")
