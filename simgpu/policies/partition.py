"""Partitioning the batch for a policy: the sub-batch that was asked for, or the one that equation 8 of moDNN
chooses."""

from __future__ import annotations

from simgpu.errors import InputError
from simgpu.graph.bounds import first_reason
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.policies.base import PlanContext
from simgpu.policies.subbatch import select_sub_batch
from simgpu.program.lowering import require_reads
from simgpu.trace.model import Origin


def partitioned(context: PlanContext, asked: int, alpha: float) -> tuple[TaskGraph, int, list[str]]:
    """The graph in sub-batches, their size, and notes that say so.

    asked: samples at a time, 0 to have them chosen. alpha: share of the tasks in equation 8. A batch that nobody can
    partition stays whole where the choice is free. Raises `InputError` for numbers that are none of these, and where
    the sub-batch that was asked for cannot be had.
    """
    require_reads(context.graph)
    whole = context.graph.trace.info.batch
    if not 0 < alpha <= 1:
        what = f"{alpha} is no share of the tasks"
        raise InputError.single("", "parameters.alpha", what, "give a number over 0 and up to 1")
    if asked:
        if not 1 <= asked <= whole:
            what = f"{asked} is no part of a batch of {whole}"
            raise InputError.single("", "parameters.sub_batch", what, f"give 1 to {whole}, or 0 to have it chosen")
        told = [f"sub-batches of {asked} of {whole} samples, as asked for", *_on_times(context.graph, asked)]
        return transformed(context.graph, (Split(asked),)), asked, told
    found = select_sub_batch(context.graph, context.node.gpu, context.budget, alpha=alpha)
    reason = found.why_whole
    if found.size < whole:
        try:
            graph = transformed(context.graph, (Split(found.size),))
            told = [f"sub-batches of {found.size} of {whole} samples", *_on_times(context.graph, found.size)]
            return graph, found.size, told
        except InputError as error:
            reason = first_reason(error)
    told = [f"the batch of {whole} is not partitioned" + (f": {reason}" if reason else "")]
    return transformed(context.graph, (Split(whole),)), whole, told


def _on_times(graph: TaskGraph, size: int) -> list[str]:
    """Where times at a sub-batch come from, if those of the whole batch were recorded."""
    info = graph.trace.info
    if info.origin is Origin.MODELLED or size == info.batch:
        return []
    how = graph.at_batch(size).trace.info.notes.removeprefix(info.notes).strip()
    return [f"times of sub-batches are modelled, not recorded. {how}"]
