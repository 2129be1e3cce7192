"""`plan`: the fastest plan for a recorded iteration within a budget that PyTorch can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.errors import InputError
from simgpu.hardware.spec import NodeSpec
from simgpu.plans.candidate import Candidate
from simgpu.plans.choices import Choices
from simgpu.plans.following import follow
from simgpu.plans.making import made_for, no_plan, node_and_budget, reserved, unrestricted
from simgpu.plans.projections import Projection, projections
from simgpu.plans.regions import Steps
from simgpu.plans.repeats import why_no_layers
from simgpu.plans.search import Search, smallest
from simgpu.torch.plan import KeptResult, OffloadedTensor, Plan, Predicted, RecomputedModule
from simgpu.torch.types import tensor_type
from simgpu.trace.check import check_trace
from simgpu.trace.model import Phase, Trace

if TYPE_CHECKING:
    from simgpu.plans.compiled.step import CompiledStep

_UNLIMITED = 1 << 60


def plan(
    trace: Trace | CompiledStep,
    node: NodeSpec | str | Path,
    budget: int | str | None = None,
    *,
    offload: bool = True,
    compare: bool = False,
    policy: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The fastest plan that was found for a recorded iteration within a budget.

    Modules may keep only their inputs, and single results of theirs, and run again in backward; what is saved elsewhere
    may be offloaded. The plan's lower bound holds for all such plans.

    Of a compiled model, operators of forward may run again in backward; nothing is offloaded, no policy is followed.

    trace: recorded by `simgpu.record`, which notes the calls of modules and what autograd frees when; a step of your
    own loop, by `simgpu.record_step`; or a step of a compiled model, by `simgpu.record_compiled`. budget: bytes or a
    text such as ``"24 GB"`` or ``"50%"`` of the peak without offloading; by default the node's memory. offload: whether
    tensors may be offloaded. compare: whether to run policy `joint`, which no way of running restricts, as well.
    policy: instead of a search, follow the decisions of this policy, as far as PyTorch can. progress: receives a line
    of text at a time.

    Raises `InputError` for a trace without what autograd saves, for a policy that does more than place blocks, and
    where no plan fits; `OutOfMemoryError` if the policy does not fit.
    """
    chosen, limit, of_peak = node_and_budget(node, budget, trace if isinstance(trace, Trace) else trace.trace)
    if not isinstance(trace, Trace):
        from simgpu.plans.compiled.entry import plan_compiled  # needs PyTorch

        made = plan_compiled(trace, chosen, limit, compare=compare, progress=progress)
        return made.model_copy(update={"notes": (*of_peak, *made.notes)})
    _check(trace)
    steps = Steps(trace)
    choices = Choices(steps, offload=offload)
    followed: tuple[str, ...] = ()
    bound = None
    if policy is None:
        candidate, bound = _found(choices, chosen, limit, progress)
    else:
        candidate, followed = follow(choices, policy, chosen, limit, progress)
    base = Candidate(steps).run(chosen, _UNLIMITED)
    any_step, any_bound = unrestricted(trace, chosen, limit, progress) if compare else (None, None)
    result = candidate.run(chosen, limit)
    reserved_bytes, notes = reserved(candidate.planned.trace, candidate.policy, chosen, limit)
    return Plan(
        made_for=made_for(trace),
        execute="eager",
        policy=policy or "joint",
        node=chosen.name,
        budget_bytes=limit,
        recompute=_recomputed(candidate),
        calls=_calls(candidate),
        loop=steps.loop(),
        offload=_offloaded(candidate),
        prefetch=candidate.prefetch,
        stash=candidate.stash,
        predicted=Predicted(
            step_ns=result.iteration_ns,
            peak_bytes=result.metrics.device_peak_bytes,
            plain_step_ns=base.iteration_ns,
            plain_peak_bytes=base.metrics.device_peak_bytes,
            recomputed_kernels=sum(map(len, candidate.planned.reruns)),
            recompute_ns=candidate.recompute_ns,
            d2h_bytes=result.metrics.copied_bytes.get("d2h", 0),
            h2d_bytes=result.metrics.copied_bytes.get("h2d", 0),
            bound_ns=bound,
            reserved_bytes=reserved_bytes,
            any_step_ns=any_step,
            any_bound_ns=any_bound,
        ),
        notes=(*of_peak, *followed, *notes),
    )


def _found(
    choices: Choices, node: NodeSpec, budget: int, progress: Callable[[str], None]
) -> tuple[Candidate, int | None]:
    """The fastest candidate of a search, and its lower bound."""
    found = Search(choices, node, budget, progress).run()
    if found is None:
        raise no_plan(smallest(choices, node).peak, choices.steps.trace, budget, choices.why_none())
    return found.candidate, found.bound_ns


def other_settings(
    trace: Trace | CompiledStep, node: NodeSpec | str | Path, budget: int | str | None = None
) -> list[Projection]:
    """For each of some frameworks its fastest setting that fits, simulated: what it costs against a plan.

    The arguments are those of `plan`. Of a compiled model: PyTorch's own solvers of the partitioner, with their budget.
    Empty for a model without equal layers that can run again (`why_no_settings`).
    """
    chosen, limit, _ = node_and_budget(node, budget, trace if isinstance(trace, Trace) else trace.trace)
    if not isinstance(trace, Trace):
        from simgpu.plans.compiled.own_solvers import own_solvers  # needs PyTorch

        return own_solvers(trace, limit)
    _check(trace)
    return projections(Steps(trace), chosen, limit)


def why_no_settings(trace: Trace | CompiledStep) -> str:
    """Why `other_settings` has none, in one sentence."""
    steps = Steps(trace if isinstance(trace, Trace) else trace.trace)
    return f"no setting applies: these frameworks choose among equal layers, and {why_no_layers(steps)}"


def _check(trace: Trace) -> None:
    if problems := check_trace(trace):
        raise InputError(problems)
    if not any(kernel.phase is Phase.BACKWARD for kernel in trace.kernels):
        what, remedy = "runs no backward, so nothing is saved for it", "record a training step"
        raise InputError.single(trace.name or trace.info.model, "kernels", what, remedy)
    if not trace.saved or any(each.freed_after is None for each in trace.saved):
        what = "does not say what autograd saves and when it frees that, which a plan needs"
        remedy = "record the model with `simgpu record`, or give the model to `simgpu plan`"
        raise InputError.single(trace.name or trace.info.model, "saved", what, remedy)


def _calls(candidate: Candidate) -> dict[str, int]:
    """How often a step calls each module that is recomputed."""
    modules = {each.region.module for each in candidate.regions}
    return dict(Counter(each.module for each in candidate.steps.regions() if each.module in modules))


def _recomputed(candidate: Candidate) -> tuple[RecomputedModule, ...]:
    kernels, result = candidate.steps.trace.kernels, []
    for each, rerun in zip(candidate.regions, candidate.planned.reruns, strict=True):
        seen: Counter[str] = Counter()
        keep = []
        for k in range(each.region.first, each.region.stop):
            if k in each.keeps:
                keep.append(KeptResult(op=kernels[k].op, number=seen[kernels[k].op], kernel=kernels[k].id))
            seen[kernels[k].op] += 1
        time_ns = sum(kernels[k].duration_ns for k in rerun)
        region = each.region
        result.append(
            RecomputedModule(
                module=region.module, call=region.call, keep=tuple(keep), kernels=len(rerun), time_ns=time_ns
            )
        )
    return tuple(result)


def _offloaded(candidate: Candidate) -> tuple[OffloadedTensor, ...]:
    trace, names = candidate.planned.trace, set(candidate.offloaded)
    blocks = trace.block_by_id
    seen: Counter[str] = Counter()
    result = []
    for row in trace.saved:
        kind = tensor_type(row.dtype or "", row.shape or ())
        if row.block in names:
            size = blocks[row.block].bytes
            module = row.layer or ""
            result.append(OffloadedTensor(module=module, type=kind, number=seen[kind], block=row.block, bytes=size))
        seen[kind] += 1
    return tuple(result)
