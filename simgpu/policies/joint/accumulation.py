"""Gradient accumulation next to what `joint` found: the same batch in micro-batches, as simgpu's policies run it.

`joint` leaves the batch as it is, so it does not adopt this; a note says how fast and how large it would be. Two
policies do it here: `vdnn+` with ``mode=dynamic``, which offloads nothing where a micro-batch fits, and `modnn`, which
offloads only what must leave. Both sum gradients over micro-batches and run the optimizer once.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.bounds import first_reason
from simgpu.policies.base import PlanContext
from simgpu.policies.labels import policy_label
from simgpu.policies.modnn.policy import Modnn
from simgpu.policies.shortlist import Tried, run_of
from simgpu.policies.vdnnplus import VdnnPlus
from simgpu.trace.model import Origin

#: Numbers of micro-batches that are tried until nothing is copied: more of them only take longer.
_COUNTS = (2, 4, 8)
_BATCH_NORM = re.compile(r"batch_?norm", re.IGNORECASE)


class Accumulated(NamedTuple):
    """The fastest way: samples at a time, and the run of a policy that takes so many."""

    samples: int
    run: Tried[str]


def accumulate(context: PlanContext) -> Accumulated | str:
    """The fastest number of micro-batches and policy within the budget; a clause that says why where there is none.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.policies.none import NoPolicy
    >>> from simgpu.simulation.run import planning
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**10, 10**10))
    >>> accumulate(planning(chain([5, 7], [10, 14], [100, 200]), node, NoPolicy()))
    'not tried, a batch of 1 cannot be split'
    """
    batch = context.graph.trace.info.batch
    if batch == 1:
        return "not tried, a batch of 1 cannot be split"
    found: list[Accumulated] = []
    why = f"not even {-(-batch // max(_COUNTS))} samples at a time fit the budget"
    for samples in dict.fromkeys(-(-batch // count) for count in _COUNTS):
        for policy in (VdnnPlus(samples, mode="dynamic"), Modnn(samples)):
            label = policy_label(policy)
            context.progress(f"trying {label}")
            try:
                found.append(Accumulated(samples, run_of(context, label, policy.plan(context))))
            except InputError as error:
                why = f"not tried, {first_reason(error)}"
            except OutOfMemoryError:
                continue
        if any(not each.run.copies for each in found):
            break
    return min(found, key=lambda each: each.run.time_ns) if found else why


def accumulation_note(context: PlanContext) -> str:
    """What gradient accumulation would take, and what is to be known of these numbers."""
    found = accumulate(context)
    if isinstance(found, str):
        return f"gradient accumulation: {found}"
    trace, samples = context.graph.trace, found.samples
    count = -(-trace.info.batch // samples)
    parts = [f"gradient accumulation, {count} micro-batches ({found.run.label}): {found.run.cost}"]
    if trace.info.origin is not Origin.MODELLED:
        parts.append(f"times of {samples} samples are modelled, not recorded")
    if trace.algorithms:
        parts.append("with algorithms of its own choice")
    if any(_BATCH_NORM.search(kernel.op) for kernel in trace.kernels):
        parts.append(f"batch norms see {samples} samples at a time")
    return "; ".join(parts)
