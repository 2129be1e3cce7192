"""``simgpu memory-bound``: an iteration's memory with all tensors, peak without offloading, and lower bounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from simgpu.cli.choice import is_scenario, size_option
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import parse_budget
from simgpu.cli.suggestions import ZOO, nodes, workloads
from simgpu.errors import InputError
from simgpu.experiments.max_batch import WhatFits, what_fits
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.graph.bounds import MemoryBound, MemoryBounds, memory_bounds
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg, padded
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec, NodeSpec
from simgpu.policies.common.sub_batches import SubBatch, select_sub_batch
from simgpu.simulation.config import run_config
from simgpu.simulation.plain_peak import PeakPart, budget_text
from simgpu.simulation.run import task_graph
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from simgpu.trace.stats import Peak, trace_stats
from simgpu.units import format_bytes
from simgpu.version import __version__
from simgpu.workloads.catalogue import NETWORKS
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.modelled import build_trace, trace_name
from simgpu.workloads.rescale import at_batch


@dataclass(frozen=True)
class _Target:
    """The iteration to analyse.

    node: None without a node. budget: in bytes, None if neither --budget nor a node was given.
    """

    graph: TaskGraph
    node: NodeSpec | None
    budget: int | None
    alignment: int


@click.command("memory-bound")
@click.argument("what", metavar="WHAT", shell_complete=workloads)
@click.option(
    "--batch", metavar="N", type=click.IntRange(min=1), help="Batch size in samples. Default: the recorded batch size."
)
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=nodes,
    help="A shipped node or a YAML file. Gives the memory, the alignment and the time model.",
)
@size_option(
    "--budget",
    "--memory",
    help="Device memory to use, e.g. 4GiB, or 50% of the peak without offloading. Default: all of the node's.",
)
@click.option(
    "--framework",
    type=click.Choice([each.value for each in Framework]),
    help="With zoo:NETWORK: the framework whose kernels and tensors are modelled.",
)
@click.option(
    "--optimizer",
    type=click.Choice([each.value for each in Optimizer]),
    help="With zoo:NETWORK: the optimizer that updates the weights.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def bound(
    what: str,
    batch: int | None,
    node: str | None,
    budget: str | None,
    framework: str | None,
    optimizer: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show how much memory the iteration of WHAT needs, and which operators set that amount.

    Computes the memory lower bounds and the sub-batch of moDNN. With a node, simulates whether the sub-batch fits,
    and finds the largest batch that fits undivided.

    WHAT is a shipped trace, a trace folder, zoo:NETWORK (needs --batch and --node), or a scenario. Of a scenario with
    several GPUs, one GPU's share of the batch is analysed.

    \b
    simgpu memory-bound vgg16-b128-v100 --node v100
    simgpu memory-bound zoo:resnet34 --batch 256 --node k40 --framework fused \\
        --budget 5GB
    simgpu memory-bound quickstart --json
    """
    if not what.startswith(ZOO):
        for option, value in (("--framework", framework), ("--optimizer", optimizer)):
            if value is not None:
                raise click.UsageError(
                    f"{option} applies only to {ZOO}NETWORK, not to {what}: leave it out, or name a network."
                )
    with progress(quiet) as say:
        say(f"bounding {what}")
        size = None if budget is None else parse_budget(budget, "--budget")
        target = _target(what, batch, node, size, framework or Framework.PYTORCH, optimizer or Optimizer.SGD)
        bounds = memory_bounds(target.graph, target.alignment)
        selected = _selected(target)
        fits = _simulated(target, selected, say)
    if as_json:
        document = _document(target, bounds, selected, fits)
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        _show(Screen(), target, bounds, selected, fits)


def _target(
    what: str, batch: int | None, node_name: str | None, budget: int | str | None, framework: str, optimizer: str
) -> _Target:
    node = None if node_name is None else load_node(node_name)
    alignment = None
    if what.startswith(ZOO):
        if batch is None or node is None:
            missing = "--batch" if batch is None else "--node"
            raise click.UsageError(f"Missing option '{missing}': {ZOO}NETWORK needs both --batch and --node.")
        network = what.removeprefix(ZOO)
        trace = build_trace(network, batch=batch, gpu=node.gpu, framework=framework, optimizer=optimizer)
        trace = replace(trace, name=trace_name(network, None, batch, Path(node_name or "").stem))
    elif is_scenario(what):
        if node is not None:
            raise click.UsageError(
                f"--node applies only to a trace or {ZOO}NETWORK: scenario {what} has its own node; leave --node out."
            )
        scenario = load_scenario(what)
        trace, node, alignment = scenario.trace, scenario.node, scenario.alignment
        if scenario.data_parallel is not None:
            trace = at_batch(trace, scenario.data_parallel.share(trace.info.batch), node.gpu)
        if budget is None:
            budget = scenario.budget.percentage if isinstance(scenario.budget, PeakPart) else scenario.budget
    elif what in NETWORKS and not Path(what).exists():
        problem = f"{what} is a network of the zoo, not a trace"
        raise InputError.single("", "", problem, f"write {ZOO}{what}, with --batch and --node")
    else:
        trace = load_trace(what)
    gpu = None if node is None else node.gpu
    if batch is not None:
        trace = at_batch(trace, batch, gpu)
    budget = _in_bytes(budget, trace, node, alignment)
    if node is not None and budget is not None and budget > node.budget:
        problem = f"{budget_text(budget)} exceeds the {format_bytes(node.budget)} capacity of node {node.name}"
        raise InputError.single("", "--budget", problem, "lower it, or name another node")
    if budget is None and node is not None:
        budget = node.budget
    graph = TaskGraph.of(trace) if node is None else task_graph(trace, node)
    return _Target(graph, node, budget, alignment or (gpu.alignment if gpu else 1))


def _in_bytes(budget: int | str | None, trace: Trace, node: NodeSpec | None, alignment: int | None) -> int | None:
    """The budget in bytes; one that is a part of the peak needs a node, whose alignment counts."""
    if not isinstance(budget, str):
        return budget
    if node is None:
        raise click.UsageError(f"Missing option '--node': --budget {budget} needs the peak on a node.")
    config = run_config(None, {"budget": budget, "alignment": alignment}, trace=trace, node=node)
    assert isinstance(config.budget, PeakPart)
    return config.budget


def _selected(target: _Target) -> SubBatch | None:
    if target.budget is None:
        return None
    return select_sub_batch(target.graph, GpuSpec("", target.budget, alignment=target.alignment), target.budget)


def _simulated(target: _Target, selected: SubBatch | None, say: Callable[[str], None]) -> WhatFits | None:
    """What fits by simulation; None without a node."""
    if selected is None or target.node is None or target.budget is None:
        return None
    return what_fits(
        target.graph.trace, target.node, target.budget, selected.size, alignment=target.alignment, progress=say
    )


def _peak(target: _Target) -> Peak | None:
    """Peak memory without offloading, as under the policies `none` and `ideal`; None if not recorded."""
    trace = target.graph.trace
    blocks = tuple(replace(block, bytes=padded(block.bytes, target.alignment)) for block in trace.blocks)
    stats = trace_stats(replace(trace, blocks=blocks))
    return stats.peak_recorded or stats.peak_needed


# --- as tables ----------------------------------------------------------------------------------------------


def _show(
    screen: Screen, target: _Target, bounds: MemoryBounds, selected: SubBatch | None, fits: WhatFits | None
) -> None:
    trace, node = target.graph.trace, target.node
    screen.print(facts([*trace.facts(), *([("node", _node_text(node))] if node else [])]))
    screen.print()
    rows = list(_rows(target, bounds))
    screen.print(table(("", "memory", "reduction", "limiting operator"), [row[:4] for row in rows], left=(0, 3)))
    screen.print()
    result = [amount for *_, amount in rows]
    all_kinds = {kind for each in result for kind in each.shares}
    kinds = sorted(all_kinds, key=lambda kind: (-result[0].shares.get(kind, 0), kind))
    shares = [
        (kind.value, *(format_bytes(each.shares[kind]) if kind in each.shares else "-" for each in result))
        for kind in kinds
    ]
    screen.print(table(("kind", *(row[0] for row in rows)), shares))
    screen.print()
    screen.print(facts([*_notes(target, bounds, selected), *_fitting(fits, selected)]))


def _node_text(node: NodeSpec) -> str:
    return f"{node.name}: {node.gpu.name}, {format_bytes(node.budget)} usable"


def _rows(target: _Target, bounds: MemoryBounds) -> Iterator[tuple[str, str, str, str, MemoryBound]]:
    """Name, size, reduction relative to all tensors at once, limiting operator, and the bound itself."""
    together = bounds.all_at_once
    limiting = _limiting_operator(target.graph, together, "workspace: ")
    yield "all tensors", format_bytes(together.bytes), "", limiting, together
    named = [("lower bound", bounds.bound), ("weights offloaded", bounds.offloaded)]
    if bounds.without_updates.bytes != bounds.offloaded.bytes:
        named.append(("optimizer excluded", bounds.without_updates))
    for name, amount in named:
        saved = f"{together.bytes / amount.bytes:.1f}x" if amount.bytes else "-"
        yield name, format_bytes(amount.bytes), saved, _limiting_operator(bounds.graph, amount), amount


def _limiting_operator(graph: TaskGraph, amount: MemoryBound, why: str = "") -> str:
    if amount.kernel is None:
        return "-"
    kernel = graph.kernels[amount.kernel]
    return f"{why}{kernel.id}" if kernel.op in kernel.id else f"{why}{kernel.id} ({kernel.op})"


def _notes(target: _Target, bounds: MemoryBounds, selected: SubBatch | None) -> Iterator[tuple[str, str]]:
    yield "all tensors", "all tensors of the whole batch at the same time (moDNN: ideal memory)"
    if peak := _peak(target):
        most = f"{format_bytes(peak.bytes)} at {peak.kernel}"
        yield "peak without offloading", f"{most}, as under the policies none and ideal"
    if isinstance(target.budget, PeakPart):
        yield "budget", budget_text(target.budget)
    total = target.graph.trace.info.batch
    at = "a sub-batch of 1" if bounds.batch == 1 else f"the whole batch of {total}"
    yield "lower bounds", f"for {at}; each convolution uses its algorithm with the smallest workspace"
    yield "", f"lower bound: exactly {bounds.bound.bytes} B; this budget is sufficient"
    if bounds.whole_batch_reason:
        yield "", f"the iteration cannot be modelled at another batch size: {bounds.whole_batch_reason}"
    if bounds.without_updates.bytes != bounds.offloaded.bytes:
        kernel = bounds.graph.kernels[bounds.offloaded.kernel or 0].id
        yield "optimizer", f"{kernel} updates all weights at once; updating one at a time would not limit memory"
    if selected is None or target.budget is None:
        yield "sub-batch", "not computed: give --node or --budget"
        return
    yield "sub-batch", f"{_sub_batch_text(target.budget, bounds, selected)} (moDNN, equation 8)"
    if len(selected.steps) > 1 and target.budget >= bounds.bound.bytes:
        yield "", "profiled at -> chosen: " + ", ".join(f"{batch} -> {led_to}" for batch, led_to in selected.steps)


def _sub_batch_text(budget: int, bounds: MemoryBounds, selected: SubBatch) -> str:
    memory = format_bytes(budget)
    if budget < bounds.bound.bytes:
        return f"none: {memory} is below the lower bound"
    if selected.size == selected.batch:
        why = f", which cannot be partitioned: {selected.whole_batch_reason}" if selected.whole_batch_reason else ""
        return f"the whole batch of {selected.batch} in {memory}{why}"
    how = "" if selected.fits else "no sub-batch satisfies it; the smallest is "
    return f"{how}{selected.size} of {selected.batch} samples in {memory}"


def _fitting(fits: WhatFits | None, selected: SubBatch | None) -> Iterator[tuple[str, str]]:
    if selected is None:
        return
    if fits is None:
        yield "simulated", "nothing: give --node (a simulation needs its link)"
        return
    for number, (policy, failure) in enumerate(fits.sub_batch.items()):
        verdict = f"does not run: {failure}" if failure else "fits"
        yield "" if number else "simulated", f"{policy} with sub-batches of {selected.size} {verdict}"
    for policy, batch in fits.largest_batch.items():
        most = "no batch, not even of one sample" if batch is None else f"batches of up to {batch}"
        yield "", f"{policy}, undivided, fits {most}"


# --- as JSON ------------------------------------------------------------------------------------------------


def _document(
    target: _Target, bounds: MemoryBounds, selected: SubBatch | None, fits: WhatFits | None
) -> dict[str, Any]:
    trace: Trace = target.graph.trace
    peak = _peak(target)
    named = {
        "bound": bounds.bound,
        "offloaded": bounds.offloaded,
        "weights_offloaded_without_optimizer": bounds.without_updates,
    }
    of_one = Tdfg.of(bounds.graph, target.alignment)
    return {
        "simgpu": __version__,
        "trace": trace.name or trace.info.model,
        "provenance": trace.info.provenance,
        "batch": trace.info.batch,
        "node": target.node.name if target.node else None,
        "alignment": target.alignment,
        "all_at_once": _amount(Tdfg.of(target.graph, target.alignment), bounds.all_at_once),
        "peak": asdict(peak) if peak else None,
        **{name: _amount(of_one, amount) for name, amount in named.items()},
        "bounds_batch": bounds.batch,
        "whole_batch_reason": bounds.whole_batch_reason or None,
        "saved": {name: bounds.all_at_once.bytes / each.bytes if each.bytes else None for name, each in named.items()},
        "budget": target.budget,
        "sub_batch": asdict(selected) if selected else None,
        "simulated": asdict(fits) if fits else None,
    }


def _amount(tdfg: Tdfg, amount: MemoryBound) -> dict[str, Any]:
    kernel = None if amount.kernel is None else tdfg.graph.kernels[amount.kernel]
    return {
        "bytes": amount.bytes,
        "kernel": kernel.id if kernel else None,
        "op": kernel.op if kernel else None,
        "task": None if amount.kernel is None else tdfg.kinds[amount.kernel].value,
        "shares": {kind.value: size for kind, size in amount.shares.items()},
    }
