"""The smallest budget in which a run fits, and the blocks that determine it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from simgpu.analysis.panels import AxisInfo
from simgpu.analysis.tables import facts_html, table_html, table_text
from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError, SimgpuError
from simgpu.explain.losses import block_text
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import Policy, no_progress, policy_label
from simgpu.policies.registry import make_policy
from simgpu.simulation.config import RunConfig, RunSettings, run_config
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.trace.model import Trace
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_HEADINGS = ("policy", "smallest budget", "samples/s", "largest blocks just below")
#: The search ends when the gap between a fitting and a failing budget is at most the budget divided by this.
_PART = 2**12
#: Blocks listed individually.
_SHOWN = 10
#: The largest budget to try, bytes.
_LARGEST = 2**50


@dataclass(frozen=True, slots=True, repr=False)
class SmallestBudget:
    """The smallest budget found in which a run fits.

    budget: bytes.
    result: the run within it.
    below: the largest tried budget in which the run does not fit, bytes; at most 1/4096 smaller, 0 if none was tried.
    error: the failure in that budget.

    A policy replans for every budget, so a run may fit an even smaller budget that was not tried.
    """

    budget: int
    result: Result
    below: int
    error: SimgpuError | None

    @property
    def pinned_by(self) -> tuple[tuple[str, int], ...]:
        """The resident blocks at the failure below, (id, bytes), largest first; empty if planning failed."""
        return self.error.holders if isinstance(self.error, OutOfMemoryError) else ()

    def what(self, block: str) -> str:
        """Kind and layer of a block; empty if the run has no such block."""
        graph = self.result.graph
        number = next((number for number, candidate in enumerate(graph.blocks) if candidate.id == block), None)
        return "" if number is None else block_text(graph, number)

    def facts(self) -> list[tuple[str, str]]:
        """Names and texts: the budget, its step time, and the failing request and resident blocks just below it."""
        return list(self._facts())

    def _facts(self) -> Iterator[tuple[str, str]]:
        text = f"{format_bytes(self.budget)} ({self.budget} B), step time {format_time(self.result.iteration_ns)}"
        yield "smallest budget", f"{text}; by bisection, the policy replans for each budget"
        if isinstance(self.error, OutOfMemoryError):
            yield "OOM below it", _failed_request(self.error)
        elif self.error is not None:
            yield "below it", str(self.error)
        for number, (name, size) in enumerate(self.pinned_by[:_SHOWN]):
            yield "" if number else "resident then", f"{name}, {format_bytes(size)}, {self.what(name)}".rstrip(", ")
        others = self.pinned_by[_SHOWN:]
        if others:
            yield "", f"and {len(others)} more with {format_bytes(sum(size for _, size in others))}"

    def __repr__(self) -> str:
        return "\n".join(f"{name:<17}{text}" for name, text in self.facts())

    def _repr_html_(self) -> str:
        return facts_html(self.facts())


def smallest_budget(
    trace: Trace,
    node: NodeSpec,
    policy: str | Policy = "vdnn",
    config: RunConfig | None = None,
    *,
    parameters: dict[str, object] | None = None,
    progress: Callable[[str], None] = no_progress,
    **settings: Unpack[RunSettings],
) -> SmallestBudget:
    """Finds the smallest device memory in which a policy's run fits, by simulation.

    config, settings: as for `simulate`, with two iterations by default. The search begins at their budget, and gives
    the node more memory if needed. Raises `InputError` if the run fails for another reason.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 500), LinkSpec("pcie", 10**10, 10**10))
    >>> result = smallest_budget(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, "none")
    >>> result.budget, result.below, result.pinned_by
    (600, 599, (('x2', 200), ('x1', 100)))
    """
    chosen = make_policy(policy, parameters) if isinstance(policy, str) else policy
    config = run_config(RunConfig(iterations=2) if config is None else config, settings, trace=trace, node=node)
    high = config.on(node)[1] or node.budget
    search = _Search(trace, node, chosen, config, progress)
    while search.result(high) is None:
        error = search.errors[high]
        if 2 * high > _LARGEST or (_of_the_host(error) and search.result(_LARGEST) is None):
            raise _never(error)
        high *= 2
    if search.results[high].program.unlimited_memory:
        message = f"{policy_label(chosen)} has unlimited memory, so it has no smallest budget"
        raise InputError.single("", "argument policy", message, "choose a policy with a budget, such as none")
    while True:
        high = search.lowest(high)
        low = search.below(high)
        if high - low <= max(node.gpu.alignment, high // _PART):
            break
        middle = (low + high) // 2
        if search.result(middle) is not None:
            high = middle
    results = search.result(high)
    assert results is not None
    return SmallestBudget(high, results, low, search.errors.get(low))


def _failed_request(error: OutOfMemoryError) -> str:
    """The failed request and the free memory; in bytes if request and capacity would print as the same number."""
    requested, capacity = format_bytes(error.requested), format_bytes(error.capacity)
    if error.requested > error.capacity:
        if requested == capacity:
            requested, capacity = f"{error.requested} B", f"{error.capacity} B"
        return f"{error.waiting} needs {requested}, which exceeds the {capacity} capacity"
    return f"{error.waiting} requests {requested}, {format_bytes(error.free)} of {capacity} are free"


@dataclass(frozen=True, repr=False)
class SmallestBudgets:
    """The smallest budget of each policy, ascending. Prints as a table; `plot` draws a bar per policy.

    by_policy: by the policy's label.
    bound: memory lower bound of any schedule (moDNN, TPDS 2019, section 5) with resident weights, bytes.
    """

    by_policy: dict[str, SmallestBudget]
    bound: int
    title: str

    def frame(self) -> pd.DataFrame:
        """One row per policy: ``budget_bytes``, ``samples_per_s`` there, and the largest blocks resident just below."""
        import pandas as pd

        rows = {
            label: {
                "budget_bytes": found.budget,
                "samples_per_s": found.result.metrics.samples_per_s,
                "resident_below": _largest_blocks(found),
            }
            for label, found in self.by_policy.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")

    def plot(self) -> Figure:
        """A matplotlib figure: a bar per policy, the throughput there, and the memory lower bound."""
        from simgpu.analysis.curves import plot_budgets

        budgets = {label: found.budget for label, found in self.by_policy.items()}
        scale, unit = AxisInfo("smallest budget", "size").unit(max([self.bound, *budgets.values()]))
        return plot_budgets(
            {label: budget / scale for label, budget in budgets.items()},
            title=self.title,
            xlabel=f"smallest budget ({unit})",
            texts={
                label: f"{found.result.metrics.samples_per_s:.0f} samples/s" for label, found in self.by_policy.items()
            },
            bound=self.bound / scale,
        )

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (label, format_bytes(found.budget), f"{found.result.metrics.samples_per_s:.1f}", _largest_blocks(found))
            for label, found in self.by_policy.items()
        ]

    def __repr__(self) -> str:
        return f"{self.title}\n{table_text(_HEADINGS, self._rows())}"

    def _repr_html_(self) -> str:
        return table_html(_HEADINGS, self._rows(), self.title)


def smallest_budgets(
    trace: Trace,
    node: NodeSpec,
    policies: Iterable[str | Mapping[str, Mapping[str, object]] | Policy],
    config: RunConfig | None = None,
    *,
    progress: Callable[[str], None] = no_progress,
    **settings: Unpack[RunSettings],
) -> SmallestBudgets:
    """Finds the smallest budget of each policy with `smallest_budget`, and the memory lower bound.

    policies: names, ``{name: parameters}``, or policy objects. Raises what `smallest_budget` raises.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 500), LinkSpec("pcie", 10**10, 10**10))
    >>> result = smallest_budgets(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, ["none", "vdnn"])
    >>> {label: each.budget for label, each in result.by_policy.items()}, result.bound
    ({'vdnn': 500, 'none': 600}, 500)
    """
    from simgpu.graph.bounds import memory_bounds
    from simgpu.simulation.run import task_graph

    results = {}
    for request in policies:
        name, parameters = next(iter(request.items())) if isinstance(request, Mapping) else (request, None)
        chosen = make_policy(name, parameters) if isinstance(name, str) else name
        progress(policy_label(chosen))
        results[policy_label(chosen)] = smallest_budget(trace, node, chosen, config, **settings)
    ascending = dict(sorted(results.items(), key=lambda item: item[1].budget))
    bound = memory_bounds(task_graph(trace, node), node.gpu.alignment).bound.bytes
    return SmallestBudgets(ascending, bound, f"{trace.name or trace.info.model} on {node.name}: smallest budgets")


def _largest_blocks(result: SmallestBudget) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in result.pinned_by[:2])


class _Search:
    """Runs a policy within budgets. results, errors: of budgets in which it fits and does not fit."""

    def __init__(
        self,
        trace: Trace,
        node: NodeSpec,
        policy: Policy,
        config: RunConfig,
        progress: Callable[[str], None],
    ) -> None:
        self.trace, self.node, self.policy, self.config = trace, node, policy, config
        self.progress = progress
        self.errors: dict[int, SimgpuError] = {}
        self.results: dict[int, Result] = {}

    def result(self, budget: int) -> Result | None:
        """The run within a budget, None if it does not fit."""
        if budget not in self.results and budget not in self.errors:
            self.progress(f"{policy_label(self.policy)} in {format_bytes(budget)}")
            gpu = self.node.gpu
            node = replace(self.node, gpu=replace(gpu, memory=max(gpu.memory, budget + gpu.reserved)))
            try:
                self.results[budget] = simulate(self.trace, node, self.policy, self.config, budget=budget)
            except MissingExtraError:
                raise
            except (OutOfMemoryError, InputError) as error:
                self.errors[budget] = error
        return self.results.get(budget)

    def lowest(self, budget: int) -> int:
        """The peak of the run within a budget, if the policy also fits in that peak; else the budget."""
        needed = self.results[budget].high_water
        return needed if 0 < needed < budget and self.result(needed) is not None else budget

    def below(self, budget: int) -> int:
        """The largest tried budget below this one in which the run does not fit, 0 if none was tried."""
        return max((tried for tried in self.errors if tried < budget), default=0)


def _of_the_host(error: SimgpuError) -> bool:
    return isinstance(error, OutOfMemoryError) and error.space == "host"


def _never(error: SimgpuError) -> SimgpuError:
    """The error that says why no budget is large enough."""
    if isinstance(error, InputError):
        return error
    message = f"does not fit {format_bytes(_LARGEST)} either: {error}"
    if _of_the_host(error):
        return InputError.single("", "budget", message, "give the node more host.pinned_memory")
    return InputError.single("", "budget", message, "see which request fails")
