"""The peak of device memory under policy `none`, and budgets that are a part of it."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from math import floor
from typing import Any, TypedDict, Unpack

from simgpu.errors import InputError, Problem
from simgpu.graph.replicate import Exchange
from simgpu.graph.updates import exchanging
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.run import run_program
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.policies.common.framework import plain_framework
from simgpu.program.data_parallel import DataParallel, priced, share_of
from simgpu.program.replication import replicated
from simgpu.simulation.tasks import task_graph
from simgpu.trace.check import check_trace
from simgpu.trace.model import Trace
from simgpu.units import format_bytes, format_percentage, parse_percentage


class PeakPart(int):
    """A budget in bytes, rounded down, that knows which part of which peak it is.

    part: of the peak. peak: of device memory without offloading, in bytes.

    >>> budget = PeakPart(Fraction(1, 2), 301)
    >>> budget, budget.text
    (150, '50% of the peak without offloading, 301 B')
    """

    part: Fraction
    peak: int

    def __new__(cls, part: Fraction, peak: int) -> PeakPart:
        """The budget of a part and a peak."""
        budget = super().__new__(cls, floor(part * peak))
        budget.part, budget.peak = part, peak
        return budget

    def __reduce__(self) -> tuple[type[PeakPart], tuple[Fraction, int]]:
        return PeakPart, (self.part, self.peak)

    @property
    def percentage(self) -> str:
        """The part, as it is given as a budget."""
        return format_percentage(self.part)

    @property
    def text(self) -> str:
        """Which part of which peak the budget is."""
        return f"{self.percentage} of the peak without offloading, {format_bytes(self.peak)}"


def budget_text(budget: int) -> str:
    """A budget for people, and of which peak it is a part if it is given so.

    >>> budget_text(2048), budget_text(PeakPart(Fraction(1, 2), 4096))
    ('2 KiB', '2 KiB (50% of the peak without offloading, 4 KiB)')
    """
    size = format_bytes(budget)
    return f"{size} ({budget.text})" if isinstance(budget, PeakPart) else size


def part_facts(budget: int) -> dict[str, Any]:
    """Which part of which peak a budget is, as plain values by key; empty for other budgets.

    >>> part_facts(2048), part_facts(PeakPart(Fraction(1, 2), 4096))
    ({}, {'budget_part': '50%', 'plain_peak_bytes': 4096})
    """
    if not isinstance(budget, PeakPart):
        return {}
    return {"budget_part": budget.percentage, "plain_peak_bytes": budget.peak}


class PeakSettings(TypedDict, total=False):
    """The arguments of `plain_peak` that have defaults."""

    epoch: int
    data_parallel: DataParallel | None
    iterations: int
    pool: str
    allocator: AllocatorSettings | None


def part_of_peak(
    percentage: str,
    trace: Trace,
    node: NodeSpec,
    **settings: Unpack[PeakSettings],
) -> PeakPart:
    """The budget that is a percentage of the peak without offloading. settings: as for `plain_peak`.

    Raises `InputError` for a trace whose peak is not known, and for a part of less than a byte.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> part_of_peak("50%", chain([5, 7], [10, 14], [101, 200]), node)
    150
    """
    try:
        peak = plain_peak(trace, node, **settings)
    except InputError as error:
        raise InputError(_needed_for(percentage, problem) for problem in error.problems) from None
    budget = PeakPart(parse_percentage(percentage), peak)
    if not budget:
        what = f"{percentage!r} of the peak without offloading, {format_bytes(peak)}, is less than a byte"
        raise InputError.single("", "argument budget", what, "give a larger part, or a size such as '8 GiB'")
    return budget


def _needed_for(percentage: str, problem: Problem) -> Problem:
    """The problem of a peak that is not known, which a budget needs."""
    where = " ".join(part for part in (problem.file, problem.place) if part)
    what = f"{percentage!r} needs the peak without offloading: {f'{where}: ' if where else ''}{problem.what}"
    return Problem("", "argument budget", what, problem.remedy or "give a size such as '8 GiB'")


def plain_peak(
    trace: Trace,
    node: NodeSpec,
    *,
    epoch: int = 0,
    data_parallel: DataParallel | None = None,
    iterations: int = 3,
    pool: str = "counting",
    allocator: AllocatorSettings | None = None,
) -> int:
    """The bytes of device memory that a trace needs under policy `none`, with unlimited memory.

    Padding counts, with pool ``addressed`` the holes, and with ``caching`` what the allocator reserves. node: with the
    alignment of the run. data_parallel: the peak is then that of the GPU that needs most, with its share of the batch.

    Raises `InputError` for a trace without tensors, and for one that the GPUs cannot share.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> plain_peak(chain([5, 7], [10, 14], [101, 200]), node)
    301
    """
    if problems := check_trace(trace):
        raise InputError(problems)
    if not trace.blocks:
        what, remedy = "the trace has no tensors, so its memory is not known", "give a size such as '8 GiB'"
        raise InputError.single(trace.name or trace.info.model, "blocks", what, remedy)
    graph = task_graph(trace, node, epoch)
    peaks: dict[tuple[object, ...], int] = graph.kept.setdefault(("plain peaks",), {})
    key = node.gpu.alignment, data_parallel, iterations, pool, allocator
    if key not in peaks:
        exchanged = data_parallel is not None and data_parallel.exchange is not Exchange.NONE
        if data_parallel and exchanged:
            graph = exchanging(graph.at_batch(share_of(trace.info.batch, data_parallel, node)))
        ran = partial(
            run_program, graph=graph, node=node, budget=None, iterations=iterations, pool=pool, allocator=allocator
        )
        program = plain_framework(graph)
        runs = [ran(program)]
        if (
            data_parallel and exchanged
        ):  # which also runs the program on one GPU alone, without what the exchange releases early
            runs.append(ran(replicated(program, graph, node, priced(data_parallel, node), runs[0].timeline)))
        peaks[key] = max(run.high_water for run in runs)
    return peaks[key]
