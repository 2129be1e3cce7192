"""What every plan states: the iteration it is for, the memory that PyTorch reserves, and why there is none."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.experiments.bounds import time_lower_bound
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import Policy
from simgpu.simulation.config import run_config
from simgpu.simulation.plain_peak import PeakPart
from simgpu.simulation.run import simulate
from simgpu.torch.plan import MadeFor
from simgpu.torch.types import tensor_type
from simgpu.trace.model import BlockKind, Origin, Trace
from simgpu.units import format_bytes, is_percentage, parse_bytes

_EXPANDABLE = "expandable_segments:True"


def node_and_budget(
    node: NodeSpec | str | Path, budget: int | str | None, trace: Trace
) -> tuple[NodeSpec, int, tuple[str, ...]]:
    """The node, the budget in bytes, and a note where it is a part of the trace's peak without offloading."""
    chosen = node if isinstance(node, NodeSpec) else load_node(node)
    if isinstance(budget, str) and is_percentage(budget):
        part = run_config(None, {"budget": budget}, trace=trace, node=chosen).budget
        assert isinstance(part, PeakPart)
        return chosen, int(part), (f"the budget is {part.text}",)
    try:
        limit = chosen.gpu.memory if budget is None else parse_bytes(budget) if isinstance(budget, str) else budget
    except ValueError as error:
        raise InputError.single("plan", "budget", str(error), "give a size such as 24GB") from None
    if limit <= 0:
        raise InputError.single("plan", "budget", f"{budget} is no memory", "give a size such as 24GB")
    return chosen, limit, ()


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
        modules={call.module: call.kind for call in trace.modules if call.kind},
    )


def digest(trace: Trace) -> str:
    """SHA-256 of what a plan depends on: operators, what they access, sizes, saved tensors and calls; not times."""
    text = hashlib.sha256()
    for kernel in trace.kernels:
        text.update(repr((kernel.op, kernel.phase.value, kernel.layer, kernel.reads, kernel.writes)).encode())
    for block in trace.blocks:
        text.update(repr((block.id, block.bytes, block.kind.value, block.release)).encode())
    for row in (*trace.saved, *(replace(call, kind="") for call in trace.modules)):
        text.update(repr(row).encode())
    return text.hexdigest()


def reserved(trace: Trace, policy: Policy, node: NodeSpec, budget: int) -> tuple[int | None, tuple[str, ...]]:
    """What PyTorch's caching allocator reserves within the budget, and a note if it needs other settings, or fails.

    Nothing for an iteration that was recorded on a CPU, which has no such allocator.
    """
    if trace.info.origin is Origin.RECORDED and trace.info.device.startswith("CPU"):
        return None, ()
    for settings in (None, _EXPANDABLE):
        try:
            run = simulate(trace, node, policy, budget=budget, pool="caching", allocator=settings)
        except OutOfMemoryError:
            continue
        note = f"memory fragments: set PYTORCH_CUDA_ALLOC_CONF={settings}, or give a smaller budget"
        return run.metrics.reserved_bytes, (note,) if settings else ()
    why = "PyTorch's caching allocator runs out of memory within the budget, with expandable segments too"
    return None, (f"the tensors fit, but {why}: give a smaller budget",)


def unrestricted(
    trace: Trace, node: NodeSpec, budget: int, progress: Callable[[str], None]
) -> tuple[int | None, int | None]:
    """Step time of policy `joint`, and the lower bound of its placements."""
    progress("running policy joint, which nothing restricts")
    try:
        step = simulate(trace, node, "joint", budget=budget).iteration_ns
    except OutOfMemoryError:
        step = None
    try:
        bound = time_lower_bound(trace, node, budget=budget).ns
    except InputError as error:
        progress(f"no bound of all programs: {error}")
        bound = None
    return step, bound


def no_plan(least: int, trace: Trace, budget: int, why_none: str = "") -> InputError:
    """The error where no plan fits: how much the smallest needs, and what of it no plan can move.

    why_none: why no module can run again.
    """
    held: Counter[str] = Counter()
    for block in trace.blocks:
        if block.persistent:
            held[block.kind.value.replace("_", " ")] += block.bytes
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in held.most_common() if size)
    what = f"no plan fits into {format_bytes(budget)}: the smallest peak of a plan is {format_bytes(least)}"
    if held.total() > budget // 2:
        what += f", of which {format_bytes(held.total())} are there before the step begins ({parts})"
    if why_none:
        what += f"; no module can run again, because it {why_none}"
    if reread := sum(trace.block_by_id[b].bytes for b in {row.block for row in trace.saved if row.is_reread}):
        runs = "more than one run of backward (retain_graph=True)"
        what += f"; {format_bytes(reread)} are saved for {runs}, and stay from the first one on"
    remedy = "a plan moves saved tensors only: give more memory, a smaller batch, or fewer bytes of weights and states"
    return InputError.single(trace.name or trace.info.model, "budget", what, remedy)
