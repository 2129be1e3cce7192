"""A plan for a training step of a compiled model."""

from __future__ import annotations

from collections.abc import Callable

from simgpu.hardware.spec import NodeSpec
from simgpu.plans.compiled.search import CompiledSearch, Tried
from simgpu.plans.compiled.step import CompiledStep
from simgpu.plans.making import made_for, no_plan, reserved, unrestricted
from simgpu.policies.none import NoPolicy
from simgpu.simulation.run import simulate
from simgpu.torch.graphs import modules_of, release
from simgpu.torch.plan import CompiledGraph, Plan, Predicted, RepeatedOperator
from simgpu.torch.types import WHOLE

_FUSED = (
    "predicted with operators that run one by one; TorchInductor fuses them, which takes less time and other memory"
)


def plan_compiled(
    step: CompiledStep, node: NodeSpec, budget: int, *, compare: bool, progress: Callable[[str], None]
) -> Plan:
    """The fastest plan that was found for a step of a compiled model within a budget in bytes.

    compare, progress: as in `simgpu.plan`. Raises `InputError` where no plan fits.
    """
    search = CompiledSearch(step, budget, progress)
    found = search.run()
    if found is None:
        raise no_plan(search.smallest().peak, step.trace, budget)
    best, usual = found.tried, search.usual
    any_step, any_bound = unrestricted(step.trace, node, budget, progress) if compare else (None, None)
    result = simulate(best.planned.trace, node, NoPolicy(), budget=budget)
    plain = simulate(usual.planned.trace, node, NoPolicy(), budget=max(budget, usual.peak))
    reserved_bytes, notes = reserved(best.planned.trace, NoPolicy(), node, budget)
    return Plan(
        made_for=made_for(step.trace),
        execute="compile",
        policy="joint",
        node=node.name,
        budget_bytes=budget,
        calls={},
        loop=((WHOLE,) * step.micro_batches,),
        prefetch=1,
        stash=1,
        graph=_graph(step, best),
        predicted=Predicted(
            step_ns=result.iteration_ns,
            peak_bytes=result.metrics.device_peak_bytes,
            plain_step_ns=plain.iteration_ns,
            plain_peak_bytes=plain.metrics.device_peak_bytes,
            recomputed_kernels=len(best.planned.again) * step.micro_batches,
            recompute_ns=sum(map(step.iteration.time_ns, best.planned.again)),
            d2h_bytes=0,
            h2d_bytes=0,
            bound_ns=min(found.bound_ns, result.iteration_ns),
            reserved_bytes=reserved_bytes,
            any_step_ns=any_step,
            any_bound_ns=any_bound,
        ),
        notes=(_FUSED, *notes),
    )


def _graph(step: CompiledStep, best: Tried) -> CompiledGraph:
    known = step.query.known
    again = [known[node] for node in known if node in (best.again or ()) and node in step.choice.in_forward]
    saved = best.split.saved_types
    return CompiledGraph(
        torch=release(),
        modules=modules_of(known.values()),
        is_planned=best.again is not None,
        again=tuple(RepeatedOperator(module=each.module, op=each.op, number=each.number) for each in again),
        saved_tensors=len(saved),
        saved_bytes=sum(size for _, size in saved),
    )
