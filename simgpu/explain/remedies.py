"""What helps a run that runs out of memory, by simulating each remedy: allocator, batch, recomputation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Unpack

from simgpu.analysis.tables import table_html, table_text
from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError, SimgpuError
from simgpu.graph.bounds import first_reason
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.run import run_program
from simgpu.memory.caching.settings import parse
from simgpu.planning.search.bisection import largest
from simgpu.policies.base import Policy, no_progress, policy_label
from simgpu.policies.common.together import together
from simgpu.policies.registry import make_policy
from simgpu.simulation.config import RunConfig, RunSettings, run_config
from simgpu.simulation.result import Result
from simgpu.simulation.run import planned_run, simulate, task_graph
from simgpu.trace.model import Trace
from simgpu.units import format_bytes, format_time

#: Settings of the caching allocator that are tried, as in PYTORCH_CUDA_ALLOC_CONF.
ALLOCATOR_OPTIONS = ("expandable_segments:True", "max_split_size_mb:128", "max_split_size_mb:512")
#: Policies that recompute instead of keeping: sections, layers by their cost, tensors by their cost.
RECOMPUTING = ("checkpoint", "superneurons", "capuchin")
#: Longer traces take too long for policies that search.
_MOST_KERNELS = 20_000
REMEDY_HEADINGS = ("what helps", "peak", "change", "step time", "in the budget")


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy, simulated.

    change: as text. peak: of device memory, with the caching allocator of reserved memory, in bytes: of the run if it
    fits, else of the same program in unlimited memory; None if it cannot run. result: the run if it fits. batch: its
    samples. note: why it cannot run.
    """

    change: str
    peak: int | None
    result: Result | None
    batch: int
    note: str = ""

    @property
    def fits(self) -> bool:
        return self.result is not None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        time = None if self.result is None else self.result.iteration_ns
        facts = {"change": self.change, "peak_bytes": self.peak, "fits": self.fits, "batch": self.batch}
        return {**facts, "iteration_ns": time, "note": self.note}


class Remedies(tuple[Remedy, ...]):
    """The remedies in order, the run as it is first. Prints and displays as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return table_text(REMEDY_HEADINGS, remedy_rows(self))

    def _repr_html_(self) -> str:
        return table_html(REMEDY_HEADINGS, remedy_rows(self), "what helps", left=(0, 4))


def what_helps(
    trace: Trace,
    node: NodeSpec,
    policy: str | Policy = "none",
    config: RunConfig | None = None,
    *,
    parameters: Mapping[str, object] | None = None,
    progress: Callable[[str], None] = no_progress,
    **settings: Unpack[RunSettings],
) -> Remedies:
    """Simulates what would help a run that does not fit: settings of the allocator, a smaller batch, recomputation.

    The first remedy is the run as it is. Settings apply to the caching pool. A smaller batch is half of it, and the
    largest that fits; recomputation are the policies `checkpoint`, `superneurons` and `capuchin`. Arguments: as for
    `simulate`. Raises `InputError` for invalid arguments, for several GPUs, and if the run fails for another reason
    than memory.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
    >>> node = NodeSpec("example", GpuSpec("gpu", 500), LinkSpec("pcie", 10**10, 10**10))
    >>> [(remedy.change, remedy.peak, remedy.fits) for remedy in what_helps(trace, node, "none")][:3]
    [('as it is', 600, False), ('smaller batch', None, False), ('checkpoint', 600, False)]
    """
    config = run_config(config, settings, trace=trace, node=node, policy=policy)
    chosen = make_policy(policy, parameters) if isinstance(policy, str) else policy
    if config.data_parallel:
        what = "remedies are simulated for one GPU"
        raise InputError.single("", "argument gpus", what, "leave it out, and give one GPU's share of the batch")
    trials = _Trials(trace, node, chosen, config, progress)
    first = trials.of("as it is", trace, chosen, config)
    if first.note:
        with suppress(OutOfMemoryError):  # of the host, or without a plan: its peak is not known
            simulate(trace, node, chosen, config)  # raises any other reason
    return Remedies((first, *trials.allocators(), *trials.batches(), *trials.recomputing()))


@dataclass(frozen=True)
class _Trials:
    """The run that does not fit, and its variations."""

    trace: Trace
    node: NodeSpec
    policy: Policy
    config: RunConfig
    say: Callable[[str], None]

    def of(self, change: str, trace: Trace, policy: Policy, config: RunConfig) -> Remedy:
        """A variation: within the budget, else its peak in unlimited memory."""
        self.say(f"{policy_label(self.policy)}: {change}")
        batch = trace.info.batch
        try:
            result = simulate(trace, self.node, policy, config)
            return Remedy(change, result.high_water, result, batch)
        except OutOfMemoryError as error:
            peak = self._peak(trace, policy, config)
            return Remedy(change, peak, None, batch, "" if peak is not None else str(error))
        except (InputError, MissingExtraError) as error:
            return Remedy(change, None, None, batch, _reason(error))

    def _peak(self, trace: Trace, policy: Policy, config: RunConfig) -> int | None:
        """The peak of the program for this budget in unlimited memory; None if there is no program for it."""
        try:
            planned = planned_run(trace, self.node, policy, config)
            run = run_program(
                planned.program,
                planned.graph,
                planned.node,
                budget=None,
                iterations=config.iterations,
                pool=config.pool or planned.program.pool or "counting",
                allocator=config.allocator_settings,
                engine=config.engine,
            )
        except (OutOfMemoryError, InputError):
            return None
        return run.high_water

    def allocators(self) -> Iterator[Remedy]:
        """Other settings of the caching allocator, each with those that are given."""
        if self.config.pool != "caching":
            return
        given = self.config.allocator or ""
        for option in ALLOCATOR_OPTIONS:
            name = option.partition(":")[0]
            if name in given:
                continue
            text = f"{given},{option}" if given else option
            try:
                parse(text)
            except InputError as error:
                yield Remedy(option, None, None, self.trace.info.batch, _reason(error))
                continue
            yield self.of(option, self.trace, self.policy, replace(self.config, allocator=text))

    def batches(self) -> Iterator[Remedy]:
        """Half the batch, and the largest that fits."""
        own = self.trace.info.batch
        if own == 1:
            yield Remedy("smaller batch", None, None, own, "the batch has one sample")
            return
        graph = task_graph(self.trace, self.node, self.config.epoch)
        known: dict[int, Remedy] = {}

        def at(batch: int) -> Remedy:
            if batch not in known:
                known[batch] = self.of(f"batch {batch}", graph.at_batch(batch).trace, self.policy, self.config)
            return known[batch]

        try:
            half = at(own // 2)
            low, high = (own // 2, own - 1) if half.fits else (1, max(own // 2 - 1, 1))
            value = largest(lambda batch: at(batch).fits, low, high).value
        except InputError as error:
            yield Remedy("smaller batch", None, None, own, _reason(error))
            return
        yield replace(half, change=f"half the batch: {own // 2}")
        if value is None:
            yield replace(at(1), change="batch 1")
        elif value != own // 2:
            yield replace(at(value), change=f"largest batch: {value}")

    def recomputing(self) -> Iterator[Remedy]:
        """The policies that recompute, inside the policy where that is for one of several GPUs."""
        outer = together(self.policy)
        for name in RECOMPUTING:
            policy = make_policy(name) if outer is None else outer.around(make_policy(name))
            if name == self.policy.name or policy == self.policy:
                continue
            if len(self.trace.kernels) > _MOST_KERNELS:
                what = f"not tried, the trace has {len(self.trace.kernels)} kernels"
                yield Remedy(name, None, None, self.trace.info.batch, what)
                continue
            yield self.of(name if outer is None else f"{name} inside {outer.name}", self.trace, policy, self.config)


def _reason(error: SimgpuError) -> str:
    return first_reason(error) if isinstance(error, InputError) else str(error)


def remedy_rows(remedies: Remedies) -> list[tuple[str, ...]]:
    """Rows of the table with `REMEDY_HEADINGS`."""
    first = remedies[0]
    return [(each.change, *_cells(each, first)) for each in remedies]


def _cells(remedy: Remedy, first: Remedy) -> tuple[str, str, str, str]:
    if remedy.peak is None:
        return "-", "", "", remedy.note
    change = "" if remedy is first or first.peak is None else _signed(remedy.peak - first.peak)
    time = format_time(remedy.result.iteration_ns) if remedy.result is not None else ""
    return format_bytes(remedy.peak), change, time, "fits" if remedy.fits else "OOM"


def _signed(change: int) -> str:
    return f"{'-' if change < 0 else '+'}{format_bytes(abs(change))}" if change else "none"
