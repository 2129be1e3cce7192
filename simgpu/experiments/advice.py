"""Advice when policies ran out of memory: how much the iteration needs, and which policies and batches to try."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError
from simgpu.graph.bounds import MemoryBounds, memory_bounds
from simgpu.graph.replicate import Exchange
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import DEVICE, HOST
from simgpu.policies.base import Policy, policy_label
from simgpu.policies.common.together import TrainsTogether, together
from simgpu.policies.none import NoPolicy
from simgpu.policies.registry import make_policy, policy_class, policy_names
from simgpu.simulation.notes import allocator_text
from simgpu.simulation.run import Result, simulate, task_graph
from simgpu.trace.model import Origin, Phase
from simgpu.trace.stats import trace_stats
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    from simgpu.experiments.compare import Comparison, PolicyRun
    from simgpu.experiments.scenarios.model import Scenario
    from simgpu.trace.model import Trace

_ZOO = "simgpu zoo "

#: Policies to try if nothing fits: without the bounds `ideal` and `oracle`, with parameters whose planning is quick.
_CANDIDATES: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("none", {}),
    ("checkpoint", {}),
    ("vdnn", {}),
    ("vdnn", {"mode": "conv"}),
    ("vdnn", {"mode": "dynamic"}),
    ("vdnn+", {}),
    ("modnn", {}),
    ("vdnn++", {}),
    ("cdma", {}),
    ("static", {"launch": "expert"}),
    ("cswap", {"launch": "expert"}),
)
#: The same for policies of GPUs that share what one alone has: policies inside.
_INSIDE: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("checkpoint", {}),
    ("vdnn", {}),
    ("offload_activations", {}),
    ("g10", {}),
    ("dtr", {}),
)
#: A budget that every run fits, bytes.
_PLENTY = 2**50
#: The parameters of a policy inside, or what assigns a parameter.
_ASSIGNED = re.compile(r"\(.*\)|=")
#: Longer traces take too long for runs that the user did not request.
_MOST_KERNELS = 20_000


def advice(
    scenario: Scenario,
    comparison: Comparison,
    *,
    written: Callable[[str], str] = str,
    progress: Callable[[str], None] = lambda what: None,
) -> list[tuple[str, str]]:
    """Pairs of name and text for a run out of memory: the iteration's peak and minimum memory, then what to try.

    If none of the requested policies fits, simulates two iterations of each built-in policy and lists those that fit.

    written: converts a policy in a scenario's notation to the form that the user would enter
    progress: called with each label before its run

    >>> from simgpu.experiments.compare import compare
    >>> from simgpu.experiments.scenarios.load import make_scenario
    >>> values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "budget": "40 MiB", "policies": ["none"]}
    >>> scenario = make_scenario(values, "an example")
    >>> for name, text in advice(scenario, compare(scenario))[:2]:
    ...     print(f"{name}: {text}")
    peak without offloading: 49.45 MiB at k98 (budget 40 MiB)
    largest working set: 6.018 MiB, single operator k148 (aten::convolution_backward)
    """
    trace, data_parallel = scenario.trace, scenario.data_parallel
    if data_parallel is not None:
        from simgpu.workloads.rescale import at_batch

        trace = at_batch(trace, data_parallel.share(trace.info.batch))
    several = {run.label: outer for run in comparison if (outer := _together(run)) is not None}
    stopped = [run.label for run in comparison if isinstance(run.outcome, OutOfMemoryError)]
    alone = [label for label in stopped if label not in several]
    if several.keys() & {*stopped}:
        outers = dict.fromkeys(several[label].around(NoPolicy()) for label in stopped if label in several)
        facts, steps = _of_several(scenario, comparison, [*outers], written, progress)
        peak = _peak(scenario) if alone else None
        facts += [] if peak is None else _alone([("peak without offloading", _peak_text(scenario, trace, peak))])
    else:
        facts, steps = _of_one(scenario, comparison, trace, written, progress)
        facts = _alone(facts) if several else facts
    return [*facts, *(("try", step) for step in steps)]


def _together(run: PolicyRun) -> TrainsTogether | None:
    """The policy of a run if it is for one GPU of several."""
    known = run.policy in policy_names() and issubclass(policy_class(run.policy), TrainsTogether)
    return together(make_policy(run.policy, run.parameters)) if known else None


def _alone(facts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Facts that do not hold for all policies of a comparison."""
    return [(name, f"one GPU alone: {text}") for name, text in facts]


def _of_one(
    scenario: Scenario,
    comparison: Comparison,
    trace: Trace,
    written: Callable[[str], str],
    progress: Callable[[str], None],
) -> tuple[list[tuple[str, str]], list[str]]:
    """Facts and steps where a GPU has everything. trace: of its share of the batch."""
    memory = scenario.available
    peak = _peak(scenario)
    need, kernel = _largest_kernel(trace) if trace.records_reads else (0, "")
    facts = [("largest working set", f"{format_bytes(need)}, single operator {kernel}")] if kernel else []
    if peak is not None:
        facts.insert(0, ("peak without offloading", _peak_text(scenario, trace, peak)))
    bounds = _bounds(scenario, trace)
    if bounds is not None:
        lower_bound = f"{format_bytes(bounds.bound.bytes)} with micro-batches of one sample; see simgpu memory-bound"
        facts.append(("memory lower bound", lower_bound))
        if memory < bounds.offloaded.bytes and not _fitting(comparison):
            return facts, [f"more memory: a single sample does not fit {format_bytes(memory)}"]
    steps = [
        *_other_memories(comparison),
        *_with_the_hosts_exchange(scenario, comparison, progress),
        *_policies_to_try(scenario, comparison, bounds is None and need > memory, written, progress),
    ]
    all_memory = replace(scenario, budget=None).available
    if peak is not None and memory < peak <= all_memory:
        has = f"{scenario.node.name} has {format_bytes(all_memory)}"
        steps.append(f"a larger budget: {has}, enough without offloading")
    return facts, [*steps, *_smaller_batch(trace)]


def _of_several(
    scenario: Scenario,
    comparison: Comparison,
    outers: Sequence[TrainsTogether],
    written: Callable[[str], str],
    progress: Callable[[str], None],
) -> tuple[list[tuple[str, str]], list[str]]:
    """Facts and steps where GPUs share what one alone would have: its needs and lower bounds are not theirs."""
    memory, all_memory = scenario.available, replace(scenario, budget=None).available
    facts, larger = [], []
    for outer in outers:
        label = policy_label(outer)
        progress(f"{label} without a limit")
        if (plenty := _trial(scenario, outer, budget=_PLENTY)) is not None:
            size = f"{format_bytes(plenty.high_water)} (budget {format_bytes(memory)})"
            facts.append(("peak without offloading", f"{label}: {size}"))
            if memory < plenty.high_water <= all_memory:
                has = f"{scenario.node.name} has {format_bytes(all_memory)}"
                larger.append(f"a larger budget: {has}, enough for {label} without offloading")
    steps = [*_other_memories(comparison)]
    if fitting := _fitting(comparison):
        steps.append(_fastest(fitting))
    elif len(scenario.trace.kernels) <= _MOST_KERNELS:
        inside = [outer.around(make_policy(name, given)) for outer in outers for name, given in _INSIDE]
        results = list(_trials(scenario, [run.label for run in comparison], inside, progress))
        names = ", ".join(name for name, _ in _INSIDE)
        steps += _that_fit(results, written) or [f"more memory: it does not fit with any of {names} inside"]
    return facts, [*steps, *larger, *_smaller_batch(scenario.trace)]


def _peak(scenario: Scenario) -> int | None:
    """The peak without offloading, as budgets in percent count it; None if other memory limits that run too."""
    try:
        return scenario.config.plain_peak(scenario.trace, scenario.node)
    except OutOfMemoryError:
        return None


def _peak_text(scenario: Scenario, trace: Trace, peak: int) -> str:
    """The peak and the budget, and at which kernel it is, or what it counts besides the live bytes of the trace."""
    live, budget = trace_stats(trace).peak_recorded, f"budget {format_bytes(scenario.available)}"
    if live is not None and live.bytes == peak:
        return f"{format_bytes(peak)} at {live.kernel} ({budget})"
    how, alignment = scenario.data_parallel, scenario.alignment or scenario.node.gpu.alignment
    counted = [
        *([allocator_text(scenario.pool, scenario.allocator)] if scenario.pool else []),
        *([f"alignment {format_bytes(alignment)}"] if alignment > 1 else []),
        *([f"one of {how.gpus} GPUs"] if how else []),
    ]
    return f"{format_bytes(peak)} ({', '.join(counted)}{'; ' if counted else ''}{budget})"


def _bounds(scenario: Scenario, trace: Trace) -> MemoryBounds | None:
    """The memory lower bound with sub-batches (moDNN, equation 7); None if the batch cannot be partitioned."""
    if not trace.records_reads or not trace.blocks or len(trace.kernels) > _MOST_KERNELS:
        return None
    result = memory_bounds(task_graph(trace, scenario.node), scenario.alignment or scenario.node.gpu.alignment)
    return result if result.batch < trace.info.batch else None


def _no_policy(trace: Trace) -> str:
    smaller = ", or algorithms with less workspace" if trace.algorithms else ""
    sizes = {block.id: block.bytes for block in trace.blocks}
    largest = max(trace.kernels, key=lambda kernel: sum(sizes[b] for b in {*kernel.reads, *kernel.writes}))
    configured = trace.info.origin is Origin.MODELLED and trace.info.tool.startswith("simgpu zoo")
    if configured and largest.layer == "loss":
        smaller += ", or another loss (simgpu zoo build --loss chunked or fused)"
    if largest.phase is Phase.OPTIMIZER:
        smaller += ", or updates that are not one kernel for all weights: in backward, or on the host"
    return f"more memory{smaller}: no policy reduces the working set of a single kernel"


def _fastest(fitting: Sequence[str]) -> str:
    return f"{fitting[0]}: fits" + (", the fastest of those compared" if len(fitting) > 1 else "")


def _policies_to_try(
    scenario: Scenario,
    comparison: Comparison,
    kernel_too_large: bool,
    written: Callable[[str], str],
    progress: Callable[[str], None],
) -> Iterator[str]:
    fitting, trace = _fitting(comparison), scenario.trace
    if fitting:
        yield _fastest(fitting)
        return
    if kernel_too_large and not trace.algorithms:
        yield _no_policy(trace)
        return
    if len(trace.kernels) > _MOST_KERNELS:
        count = f"{len(trace.kernels)} kernels"
        yield f"another policy (simgpu list policies); with {count}, this trace is too long to try them all here"
        return
    candidates = [make_policy(name, parameters) for name, parameters in _CANDIDATES]
    results = list(_trials(scenario, [run.label for run in comparison], candidates, progress))
    yield from _that_fit(results, written)
    if not results:
        no_other = "more memory: none of the built-in policies that support this trace and node fits"
        yield _no_policy(trace) if kernel_too_large else no_other


def _other_memories(comparison: Comparison) -> Iterator[str]:
    """The memories besides device memory that policies ran out of."""
    labels: defaultdict[str, list[str]] = defaultdict(list)
    for run in comparison:
        if isinstance(run.outcome, OutOfMemoryError) and not run.outcome.space.endswith(DEVICE):
            labels[run.outcome.space].append(run.label)
    for memory, stopped in labels.items():
        setting = " (host.pinned_memory)" if memory == HOST else ""
        yield f"more {memory} memory{setting}: {', '.join(stopped)} ran out of it, not of device memory"


def _with_the_hosts_exchange(
    scenario: Scenario, comparison: Comparison, progress: Callable[[str], None]
) -> Iterator[str]:
    """The requested policies that would fit if GPU 0 fetched no gradients."""
    data_parallel = scenario.data_parallel
    if data_parallel is None or data_parallel.exchange is not Exchange.GATHER:
        return
    hosted = replace(scenario, data_parallel=replace(data_parallel, exchange=Exchange.HOST))
    stopped = [run for run in comparison if isinstance(run.outcome, OutOfMemoryError)]
    fitting = []
    for run in stopped:
        progress(f"trying {run.label} with exchange: host")
        if _trial(hosted, make_policy(run.policy, run.parameters)) is not None:
            fitting.append(run.label)
    if fitting:
        yield f"data_parallel.exchange: host, under which GPU 0 fetches no gradients; {', '.join(fitting)} would fit"


def _that_fit(results: Iterable[Result], written: Callable[[str], str]) -> list[str]:
    """The steps to policies that fit, fastest first."""
    steps = []
    for result in sorted(results, key=lambda each: each.iteration_ns):
        times = f"{format_time(result.iteration_ns)}, peak {format_bytes(result.metrics.device_peak_bytes)}"
        steps.append(f"{written(_scenario_form(result))}: fits, step time {times}{_in_micro_batches(result)}")
    return steps


def _trials(
    scenario: Scenario, tried: Collection[str], candidates: Iterable[Policy], progress: Callable[[str], None]
) -> Iterator[Result]:
    """Runs of policies not tried yet that support this trace and node, and fit."""
    names = {label.partition("(")[0] for label in tried}
    for policy in candidates:
        label = policy_label(policy)
        # The launch of a codec does not change memory use.
        if label in tried or ("launch" in policy.parameters and policy.name in names):
            continue
        progress(f"trying {label}")
        if (result := _trial(scenario, policy)) is not None:
            yield result


def _trial(scenario: Scenario, policy: Policy, *, budget: int | None = None) -> Result | None:
    """Two iterations under a policy; None if it does not fit or cannot run. budget: by default the scenario's."""
    config = scenario.config if budget is None else replace(scenario.config, budget=budget)
    try:
        return simulate(scenario.trace, scenario.node, policy, config, iterations=2)
    except (OutOfMemoryError, InputError, MissingExtraError):
        return None


def _in_micro_batches(result: Result) -> str:
    """The end of a sentence with the number of micro-batches, if the policy splits the batch; else empty."""
    for change in result.program.transforms:
        if isinstance(change, Split) and change.batch < result.trace.batch:
            return f"; gradient accumulation, {-(-result.trace.batch // change.batch)} micro-batches"
    return ""


def _scenario_form(result: Result) -> str:
    """The policy in a scenario's notation.

    >>> from simgpu.experiments.scenarios.load import load_scenario
    >>> from simgpu.trace.folder import load_trace
    >>> scenario = load_scenario("quickstart")
    >>> _scenario_form(simulate(scenario.trace, scenario.node, "vdnn", parameters={"mode": "conv"}))
    'vdnn: {mode: conv}'
    """
    name, _, parameters = result.label.partition("(")
    # A policy inside is written as in tables.
    values = _ASSIGNED.sub(lambda found: ": " if found[0] == "=" else found[0], parameters.removesuffix(")"))
    return f"{name}: {{{values}}}" if parameters else name


def _fitting(comparison: Comparison) -> list[str]:
    """Policies with limited memory that fit, fastest first."""
    times = {
        label: result.metrics.iteration_ns
        for label, result in comparison.results.items()
        if not result.program.unlimited_memory
    }
    return sorted(times, key=times.__getitem__)


def _smaller_batch(trace: Trace) -> Iterator[str]:
    half = trace.info.batch // 2
    key = _key_in_zoo(trace.info.model) if trace.info.tool.startswith(_ZOO) else None
    if half and key:
        yield f"a smaller batch: simgpu zoo build {key} --batch {half}, other options unchanged"
    elif half and _can_be_rescaled(trace, half):
        yield f"a smaller batch: simgpu.at_batch(trace, {half}) in Python (modelled)"


def _can_be_rescaled(trace: Trace, batch: int) -> bool:
    from simgpu.workloads.rescale import at_batch

    try:
        at_batch(trace, batch)
    except InputError:
        return False
    return True


def _key_in_zoo(model: str) -> str | None:
    """The zoo's name of a model, which may differ from the model's own name; None if it is not in the zoo.

    >>> _key_in_zoo("squeezenet1.0"), _key_in_zoo("vgg16"), _key_in_zoo("mine")
    ('squeezenet', 'vgg16', None)
    """
    from simgpu.workloads.catalogue import NETWORKS, build

    return next((key for key in NETWORKS if build(key).name == model), None)


def _largest_kernel(trace: Trace) -> tuple[int, str]:
    """The largest working set of a single kernel in bytes, and the kernel's description."""
    graph = TaskGraph.of(trace)
    needs = [
        sum(graph.sizes[block] for block in {*reads, *writes})
        for reads, writes in zip(graph.reads, graph.writes, strict=True)
    ]
    need = max(needs)
    kernel = trace.kernels[needs.index(need)]
    return need, f"{kernel.id} ({kernel.op})"
