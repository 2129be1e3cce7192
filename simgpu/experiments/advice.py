"""What a run that was out of memory leaves to be known and to be tried.

Lives here: choosing what to tell. Does not live here: the numbers (`simgpu.trace.stats`, `TaskGraph`), or the message
that tells where memory ran out (`OutOfMemoryError`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simgpu.graph.taskgraph import TaskGraph
from simgpu.policies.registry import describe, policy_names
from simgpu.trace.stats import trace_stats
from simgpu.units import format_bytes

if TYPE_CHECKING:
    from simgpu.experiments.compare import Comparison
    from simgpu.scenario.model import Scenario
    from simgpu.trace.model import Trace

_ZOO = "simgpu zoo "


def advice(scenario: Scenario, comparison: Comparison) -> list[tuple[str, str]]:
    """Names and texts: what the iteration needs at most and at least, then what to try. For a run out of memory.

    >>> from simgpu.experiments.compare import compare
    >>> from simgpu.scenario.load import make_scenario
    >>> values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "budget": "40 MiB", "policies": ["none"]}
    >>> scenario = make_scenario(values, "an example")
    >>> for name, text in advice(scenario, compare(scenario))[:2]:
    ...     print(f"{name}: {text}")
    nothing moved: 49.45 MiB at kernel k98, of 40 MiB there are
    largest kernel: 6.018 MiB with all that it reads and writes: k148 (aten::convolution_backward)
    """
    trace = scenario.trace
    memory = scenario.node.budget if scenario.budget is None else scenario.budget
    peak = trace_stats(trace).peak_recorded
    need, kernel = _largest_kernel(trace) if trace.tells_reads else (0, "")
    told = [("largest kernel", f"{format_bytes(need)} with all that it reads and writes: {kernel}")] if kernel else []
    if peak is not None:
        where = f"{format_bytes(peak.bytes)} at kernel {peak.kernel}, of {format_bytes(memory)} there are"
        told.insert(0, ("nothing moved", where))
    steps = list(_policies_to_try(comparison) if need <= memory or _fitting(comparison) else _no_policy(trace))
    if peak is not None and memory < peak.bytes <= scenario.node.budget:
        has = f"{scenario.node.name} has {format_bytes(scenario.node.budget)}"
        steps.append(f"a larger budget: {has}, which hold it with nothing moved")
    return [*told, *(("to try", step) for step in (*steps, *_smaller_batch(trace)))]


def _no_policy(trace: Trace) -> Iterator[str]:
    smaller = ", or algorithms with less workspace" if trace.algorithms else ""
    yield f"more memory{smaller}: no policy makes a single kernel smaller"


def _policies_to_try(comparison: Comparison) -> Iterator[str]:
    fitting = _fitting(comparison)
    if fitting:
        yield f"{fitting[0]}, which fits" + (", the fastest here that does" if len(fitting) > 1 else "")
        return
    tried = {run.policy for run in comparison}
    others = [name for name in policy_names() if name not in tried | {"ideal"}]
    if others:
        yield f"another policy: {', '.join(others)}"
    for name in sorted(tried):
        if describe(name).parameters:
            yield f"other parameters of {name}: simgpu policies {name}"


def _fitting(comparison: Comparison) -> list[str]:
    """Policies that fit into limited memory, the fastest first."""
    times = {
        label: result.metrics.iteration_ns
        for label, result in comparison.results.items()
        if not result.program.unlimited_memory
    }
    return sorted(times, key=times.__getitem__)


def _smaller_batch(trace: Trace) -> Iterator[str]:
    half = trace.info.batch // 2
    if half and trace.info.tool.startswith(_ZOO):
        yield f"a smaller batch: simgpu zoo build {trace.info.model} --batch {half}, all else as before"
    elif half and trace.tells_reads:
        yield f"a smaller batch: trace.at_batch({half}) in Python, which models it"


def _largest_kernel(trace: Trace) -> tuple[int, str]:
    """Bytes of the blocks that one kernel touches, at most, and that kernel in words."""
    graph = TaskGraph.of(trace)
    needs = [
        sum(graph.sizes[block] for block in {*reads, *writes})
        for reads, writes in zip(graph.reads, graph.writes, strict=True)
    ]
    need = max(needs)
    kernel = trace.kernels[needs.index(need)]
    return need, f"{kernel.id} ({kernel.op})"
