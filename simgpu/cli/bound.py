"""``simgpu memory-bound``: memory of an iteration with all tensors, its peak without offloading, its lower bounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from simgpu.cli.choice import is_scenario, size_option
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import parse_size
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
class _Asked:
    """What is bounded. node: None where none is named. budget: bytes, None where neither option nor node says."""

    graph: TaskGraph
    node: NodeSpec | None
    budget: int | None
    alignment: int


@click.command("memory-bound")
@click.argument("what", metavar="WHAT", shell_complete=workloads)
@click.option("--batch", type=click.IntRange(min=1), help="Samples; the recorded ones where left out.")
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=nodes,
    help="A shipped node or a YAML file: its memory, alignment and time model.",
)
@size_option("--budget", "--memory", help="Memory to find a sub-batch for, e.g. 4GiB; all that the node has.")
@click.option("--framework", type=click.Choice([each.value for each in Framework]), help="Of a network of the zoo.")
@click.option("--optimizer", type=click.Choice([each.value for each in Optimizer]), help="Of a network of the zoo.")
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
    """Show the memory that the iteration of WHAT needs, with the limiting operators: moDNN's bounds and sub-batch.

    With a node, also what fits its memory by simulation: the sub-batch, and the largest undivided batch.

    WHAT is a shipped trace or a trace folder, zoo:NETWORK with --batch and --node, or a scenario (where several GPUs
    train together, one GPU's share of the batch).

    \b
    simgpu memory-bound vgg16-b128-v100 --node v100
    simgpu memory-bound zoo:resnet34 --batch 256 --node k40 --framework fused \\
        --budget 5GB
    simgpu memory-bound quickstart --json
    """
    if not what.startswith(ZOO):
        for option, value in (("--framework", framework), ("--optimizer", optimizer)):
            if value is not None:
                raise click.UsageError(f"{option} goes with {ZOO}NETWORK: {what} is what it was recorded with.")
    with progress(quiet) as say:
        say(f"bounding {what}")
        size = None if budget is None else parse_size(budget, "--budget")
        asked = _asked(what, batch, node, size, framework or Framework.PYTORCH, optimizer or Optimizer.SGD)
        bounds = memory_bounds(asked.graph, asked.alignment)
        selected = _selected(asked)
        fits = _simulated(asked, selected, say)
    if as_json:
        document = _document(asked, bounds, selected, fits)
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        _show(Screen(), asked, bounds, selected, fits)


def _asked(
    what: str, batch: int | None, node_name: str | None, budget: int | None, framework: str, optimizer: str
) -> _Asked:
    node = None if node_name is None else load_node(node_name)
    alignment = None
    if what.startswith(ZOO):
        if batch is None or node is None:
            missing = "--batch" if batch is None else "--node"
            raise click.UsageError(f"Missing option '{missing}': a network of the zoo is modelled for both.")
        network = what.removeprefix(ZOO)
        trace = build_trace(network, batch=batch, gpu=node.gpu, framework=framework, optimizer=optimizer)
        trace = replace(trace, name=trace_name(network, None, batch, Path(node_name or "").stem))
    elif is_scenario(what):
        if node is not None:
            raise click.UsageError(f"--node goes with a trace or {ZOO}NETWORK: scenario {what} has its own node.")
        scenario = load_scenario(what)
        trace, node, alignment = scenario.trace, scenario.node, scenario.alignment
        if scenario.data_parallel is not None:
            trace = at_batch(trace, trace.info.batch // scenario.data_parallel.gpus, node.gpu)
        budget = scenario.budget if budget is None else budget
    elif what in NETWORKS and not Path(what).exists():
        told = f"{what} is a network of the zoo, not a trace"
        raise InputError.single("", "", told, f"write {ZOO}{what}, with --batch and --node")
    else:
        trace = load_trace(what)
    gpu = None if node is None else node.gpu
    if batch is not None:
        trace = at_batch(trace, batch, gpu)
    if node is not None and budget is not None and budget > node.budget:
        told = f"{format_bytes(budget)} is more than the {format_bytes(node.budget)} that node {node.name} has"
        raise InputError.single("", "--budget", told, "lower it, or name another node")
    if budget is None and node is not None:
        budget = node.budget
    graph = TaskGraph.of(trace) if node is None else task_graph(trace, node)
    return _Asked(graph, node, budget, alignment or (gpu.alignment if gpu else 1))


def _selected(asked: _Asked) -> SubBatch | None:
    if asked.budget is None:
        return None
    return select_sub_batch(asked.graph, GpuSpec("", asked.budget, alignment=asked.alignment), asked.budget)


def _simulated(asked: _Asked, selected: SubBatch | None, say: Callable[[str], None]) -> WhatFits | None:
    """What fits by simulation; None without a node, whose link a run needs."""
    if selected is None or asked.node is None or asked.budget is None:
        return None
    return what_fits(
        asked.graph.trace, asked.node, asked.budget, selected.size, alignment=asked.alignment, progress=say
    )


def _peak(asked: _Asked) -> Peak | None:
    """The most bytes alive without offloading, as the policies `none` and `ideal` have it; None where not recorded."""
    trace = asked.graph.trace
    blocks = tuple(replace(block, bytes=padded(block.bytes, asked.alignment)) for block in trace.blocks)
    stats = trace_stats(replace(trace, blocks=blocks))
    return stats.peak_recorded or stats.peak_needed


# --- as tables ----------------------------------------------------------------------------------------------


def _show(
    screen: Screen, asked: _Asked, bounds: MemoryBounds, selected: SubBatch | None, fits: WhatFits | None
) -> None:
    trace, node = asked.graph.trace, asked.node
    screen.print(facts([*trace.facts(), *([("node", _node_text(node))] if node else [])]))
    screen.print()
    rows = list(_rows(asked, bounds))
    screen.print(table(("", "memory", "reduction", "limiting operator"), [row[:4] for row in rows], left=(0, 3)))
    screen.print()
    found = [amount for *_, amount in rows]
    all_kinds = {kind for each in found for kind in each.shares}
    kinds = sorted(all_kinds, key=lambda kind: (-found[0].shares.get(kind, 0), kind))
    shares = [
        (kind.value, *(format_bytes(each.shares[kind]) if kind in each.shares else "-" for each in found))
        for kind in kinds
    ]
    screen.print(table(("kind", *(row[0] for row in rows)), shares))
    screen.print()
    screen.print(facts([*_notes(asked, bounds, selected), *_fitting(fits, selected)]))


def _node_text(node: NodeSpec) -> str:
    return f"{node.name}: {node.gpu.name}, {format_bytes(node.budget)} usable"


def _rows(asked: _Asked, bounds: MemoryBounds) -> Iterator[tuple[str, str, str, str, MemoryBound]]:
    """What it is, its bytes, all tensors at once over it, the kernel that sets it, and all of it."""
    together = bounds.all_at_once
    by = _setter(asked.graph, together, "workspace: ")
    yield "all tensors", format_bytes(together.bytes), "", by, together
    named = [("lower bound", bounds.bound), ("weights offloaded", bounds.offloaded)]
    if bounds.without_updates.bytes != bounds.offloaded.bytes:
        named.append(("optimizer excluded", bounds.without_updates))
    for name, amount in named:
        saved = f"{together.bytes / amount.bytes:.1f}x" if amount.bytes else "-"
        yield name, format_bytes(amount.bytes), saved, _setter(bounds.graph, amount), amount


def _setter(graph: TaskGraph, amount: MemoryBound, why: str = "") -> str:
    if amount.kernel is None:
        return "-"
    kernel = graph.kernels[amount.kernel]
    return f"{why}{kernel.id}" if kernel.op in kernel.id else f"{why}{kernel.id} ({kernel.op})"


def _notes(asked: _Asked, bounds: MemoryBounds, selected: SubBatch | None) -> Iterator[tuple[str, str]]:
    yield "all tensors", "of the whole batch at the same time: moDNN's ideal memory"
    if peak := _peak(asked):
        most = f"{format_bytes(peak.bytes)} at {peak.kernel}"
        yield "peak without offloading", f"{most}, as under the policies none and ideal"
    whole = asked.graph.trace.info.batch
    at = "a sub-batch of 1" if bounds.batch == 1 else f"the whole batch of {whole}"
    yield "lower bounds", f"for {at}, each convolution by its algorithm with the smallest workspace"
    yield "", f"exactly {bounds.bound.bytes} B, a sufficient budget"
    if bounds.why_full_batch:
        yield "", f"the iteration is not known at another batch: {bounds.why_full_batch}"
    if bounds.without_updates.bytes != bounds.offloaded.bytes:
        kernel = bounds.graph.kernels[bounds.offloaded.kernel or 0].id
        yield "optimizer", f"{kernel} updates weights together; one at a time they would not limit memory"
    if selected is None or asked.budget is None:
        yield "sub-batch", "not computed: give a node with --node, or memory with --budget"
        return
    yield "sub-batch", f"{_sub_batch_text(asked.budget, bounds, selected)} (moDNN, equation 8)"
    if len(selected.steps) > 1 and asked.budget >= bounds.bound.bytes:
        yield "", "profiled at -> chosen: " + ", ".join(f"{batch} -> {led_to}" for batch, led_to in selected.steps)


def _sub_batch_text(budget: int, bounds: MemoryBounds, selected: SubBatch) -> str:
    memory = format_bytes(budget)
    if budget < bounds.bound.bytes:
        return f"none: {memory} is below the lower bound"
    if selected.size == selected.whole:
        why = f", which cannot be partitioned: {selected.why_whole}" if selected.why_whole else ""
        return f"the whole batch of {selected.whole} in {memory}{why}"
    how = "" if selected.fits else "no sub-batch satisfies it; the smallest is "
    return f"{how}{selected.size} of {selected.whole} samples in {memory}"


def _fitting(fits: WhatFits | None, selected: SubBatch | None) -> Iterator[tuple[str, str]]:
    if selected is None:
        return
    if fits is None:
        yield "simulated", "nothing: give a node with --node, whose link a run needs"
        return
    for number, (policy, failure) in enumerate(fits.sub_batch.items()):
        verdict = f"does not run: {failure}" if failure else "fits"
        yield "" if number else "simulated", f"{policy} with sub-batches of {selected.size} {verdict}"
    for policy, batch in fits.largest_batch.items():
        most = "no batch, not even of one sample" if batch is None else f"batches of up to {batch}"
        yield "", f"{policy}, undivided, fits {most}"


# --- as JSON ------------------------------------------------------------------------------------------------


def _document(asked: _Asked, bounds: MemoryBounds, selected: SubBatch | None, fits: WhatFits | None) -> dict[str, Any]:
    trace: Trace = asked.graph.trace
    peak = _peak(asked)
    named = {
        "bound": bounds.bound,
        "offloaded": bounds.offloaded,
        "weights_offloaded_without_optimizer": bounds.without_updates,
    }
    of_one = Tdfg.of(bounds.graph, asked.alignment)
    return {
        "simgpu": __version__,
        "trace": trace.name or trace.info.model,
        "provenance": trace.info.provenance,
        "batch": trace.info.batch,
        "node": asked.node.name if asked.node else None,
        "alignment": asked.alignment,
        "all_at_once": _amount(Tdfg.of(asked.graph, asked.alignment), bounds.all_at_once),
        "peak": asdict(peak) if peak else None,
        **{name: _amount(of_one, amount) for name, amount in named.items()},
        "bounds_batch": bounds.batch,
        "why_whole": bounds.why_full_batch or None,
        "saved": {name: bounds.all_at_once.bytes / each.bytes if each.bytes else None for name, each in named.items()},
        "budget": asked.budget,
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
