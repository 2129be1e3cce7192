"""`plan`: the fastest plan for a recorded iteration within a budget that PyTorch can run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.experiments.bounds import time_lower_bound
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.plans.candidate import Candidate
from simgpu.plans.choices import Choices
from simgpu.plans.following import follow
from simgpu.plans.projections import Projection, projections
from simgpu.plans.regions import Steps
from simgpu.plans.search import Search, smallest
from simgpu.simulation.run import simulate
from simgpu.torch.plan import KeptResult, MadeFor, OffloadedTensor, Plan, Predicted, RecomputedModule
from simgpu.torch.types import tensor_type
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Trace
from simgpu.units import format_bytes, parse_bytes

_UNLIMITED = 1 << 60
_EXPANDABLE = "expandable_segments:True"


def plan(
    trace: Trace,
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

    trace: recorded by `simgpu.record`, which notes the calls of modules and what autograd frees when. budget: bytes or
    a text such as ``"24 GB"``; by default the node's memory. offload: whether tensors may be offloaded. compare:
    whether to run policy `joint`, which no way of running restricts, as well. policy: instead of a search, follow the
    decisions of this policy, as far as PyTorch can. progress: receives a line of text at a time.

    Raises `InputError` for a trace without what autograd saves, for a policy that does more than place blocks, and
    where no plan fits; `OutOfMemoryError` if the policy does not fit.
    """
    chosen, limit = _node_and_budget(node, budget)
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
    any_step, any_bound = _unrestricted(trace, chosen, limit, progress) if compare else (None, None)
    result = candidate.run(chosen, limit)
    reserved, notes = _reserved(candidate, chosen, limit)
    return Plan(
        made_for=made_for(trace),
        execute="eager",
        policy=policy or "joint",
        node=chosen.name,
        budget_bytes=limit,
        recompute=_recomputed(candidate),
        calls=_calls(candidate),
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
            reserved_bytes=reserved,
            any_step_ns=any_step,
            any_bound_ns=any_bound,
        ),
        notes=(*followed, *notes),
    )


def _found(
    choices: Choices, node: NodeSpec, budget: int, progress: Callable[[str], None]
) -> tuple[Candidate, int | None]:
    """The fastest candidate of a search, and its lower bound."""
    found = Search(choices, node, budget, progress).run()
    if found is None:
        raise _no_plan(smallest(choices, node).peak, choices.steps.trace, budget)
    return found.candidate, found.bound_ns


def other_settings(trace: Trace, node: NodeSpec | str | Path, budget: int | str | None = None) -> list[Projection]:
    """For each of some frameworks its fastest setting that fits, simulated: what it costs against a plan.

    The arguments are those of `plan`.
    """
    chosen, limit = _node_and_budget(node, budget)
    _check(trace)
    return projections(Steps(trace), chosen, limit)


def _node_and_budget(node: NodeSpec | str | Path, budget: int | str | None) -> tuple[NodeSpec, int]:
    chosen = node if isinstance(node, NodeSpec) else load_node(node)
    try:
        limit = chosen.gpu.memory if budget is None else parse_bytes(budget) if isinstance(budget, str) else budget
    except ValueError as error:
        raise InputError.single("plan", "budget", str(error), "give a size such as 24GB") from None
    if limit <= 0:
        raise InputError.single("plan", "budget", f"{budget} is no memory", "give a size such as 24GB")
    return chosen, limit


def made_for(trace: Trace) -> MadeFor:
    """What identifies the iteration that a plan is for."""
    weights = [block for block in trace.blocks if block.kind is BlockKind.WEIGHT]
    info = trace.info
    return MadeFor(
        model=info.model,
        batch=info.batch,
        format=info.format,
        device=info.device,
        origin=str(info.origin),
        digest=digest(trace),
        parameters={each.id: tensor_type(each.dtype or "", each.shape or ()) for each in weights},
    )


def digest(trace: Trace) -> str:
    """SHA-256 of what a plan depends on: operators, what they access, sizes, saved tensors and calls; not times."""
    text = hashlib.sha256()
    for kernel in trace.kernels:
        text.update(repr((kernel.op, kernel.phase.value, kernel.layer, kernel.reads, kernel.writes)).encode())
    for block in trace.blocks:
        text.update(repr((block.id, block.bytes, block.kind.value, block.release)).encode())
    for row in (*trace.saved, *trace.modules):
        text.update(repr(row).encode())
    return text.hexdigest()


def _reserved(candidate: Candidate, node: NodeSpec, budget: int) -> tuple[int | None, tuple[str, ...]]:
    """What PyTorch's caching allocator reserves within the budget, and a note if it needs other settings, or fails."""
    trace, policy = candidate.planned.trace, candidate.policy
    for settings in (None, _EXPANDABLE):
        try:
            run = simulate(trace, node, policy, budget=budget, pool="caching", allocator=settings)
        except OutOfMemoryError:
            continue
        note = f"memory fragments: set PYTORCH_CUDA_ALLOC_CONF={settings}, or give a smaller budget"
        return run.metrics.reserved_bytes, (note,) if settings else ()
    why = "PyTorch's caching allocator runs out of memory within the budget, with expandable segments too"
    return None, (f"the tensors fit, but {why}: give a smaller budget",)


def _check(trace: Trace) -> None:
    if problems := check_trace(trace):
        raise InputError(problems)
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
    seen: Counter[str] = Counter()
    result = []
    for row in trace.saved:
        kind = tensor_type(row.dtype or "", row.shape or ())
        if row.block in names:
            size = trace.block_by_id[row.block].bytes
            module = row.layer or ""
            result.append(OffloadedTensor(module=module, type=kind, number=seen[kind], block=row.block, bytes=size))
        seen[kind] += 1
    return tuple(result)


def _unrestricted(
    trace: Trace, node: NodeSpec, budget: int, progress: Callable[[str], None]
) -> tuple[int | None, int | None]:
    """Step time of policy `joint`, and the lower bound of its placements."""
    progress("running policy joint, which nothing restricts")
    try:
        step = simulate(trace, node, "joint", budget=budget).iteration_ns
    except OutOfMemoryError:
        step = None
    return step, time_lower_bound(trace, node, budget=budget).ns


def _no_plan(least: int, trace: Trace, budget: int) -> InputError:
    """The error where no plan fits: how much the smallest needs, and what of it no plan can move."""
    held: Counter[str] = Counter()
    for block in trace.blocks:
        if block.persistent:
            held[block.kind.value.replace("_", " ")] += block.bytes
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in held.most_common() if size)
    what = f"no plan fits into {format_bytes(budget)}: the smallest peak of a plan is {format_bytes(least)}"
    if held.total() > budget // 2:
        what += f", of which {format_bytes(held.total())} are there before the step begins ({parts})"
    remedy = "a plan moves saved tensors only: give more memory, a smaller batch, or fewer bytes of weights and states"
    return InputError.single(trace.name or trace.info.model, "budget", what, remedy)
