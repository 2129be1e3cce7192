"""``simgpu trace show``, ``check`` and ``stats``: show a trace by layer, check it, summarize it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from simgpu.cli.screen import Screen, facts, table
from simgpu.cli.suggestions import traces
from simgpu.compression.buddy.sources import read_trace_and_entries
from simgpu.graph.recompute import unrecomputable
from simgpu.graph.taskgraph import TaskGraph
from simgpu.io.shipped import find
from simgpu.trace.allocation_folder import is_allocation_folder, read_allocations
from simgpu.trace.folder import load_trace, other_files
from simgpu.trace.model import NOT_STATED, BlockKind, Phase, Trace
from simgpu.trace.stats import trace_stats
from simgpu.units import format_bytes, format_time


@click.command()
@click.argument("path", shell_complete=traces)
def show(path: str) -> None:
    """Show the trace at PATH layer by layer: kernels, time per phase, and feature maps.

    PATH is a shipped trace or a trace folder.

    \b
    simgpu trace show vgg11-cifar-cpu
    """
    trace = load_trace(path)
    screen = Screen()
    screen.print(facts(_facts(trace)))
    screen.print()
    screen.print(table(("layer", "kernels", "forward", "backward", "optimizer", "feature maps"), _layer_rows(trace)))


@click.command()
@click.argument("path", shell_complete=traces)
def check(path: str) -> None:
    """Check all files of the trace at PATH, and list all errors.

    PATH is a shipped trace or a trace folder. Files that are not part of a trace, such as a README, are listed but not
    checked. Exit code 2: the trace has errors.

    \b
    simgpu trace check vgg11-cifar-cpu
    """
    folder = find("traces", path)
    if is_allocation_folder(folder):
        recorded = read_allocations(folder)
        counts = f"{len(recorded.events)} events, {len(recorded.allocations)} allocations"
        click.echo(f"{path}: valid allocation trace; {counts}; no kernels")
        return
    result, entries = read_trace_and_entries(folder)
    measured = f"; entries of {len(entries.allocations)} blocks" if entries is not None else ""
    click.echo(f"{path}: valid trace; {len(result.kernels)} kernels, {len(result.blocks)} blocks{measured}")
    if others := other_files(folder):
        click.echo(f"not part of the trace, not checked: {', '.join(others)}")


@click.command()
@click.argument("path", shell_complete=traces)
def stats(path: str) -> None:
    """Summarize the trace at PATH: time, blocks by kind, peak memory, recorded data, and unrecomputable activations.

    PATH is a shipped trace or a trace folder.

    \b
    simgpu trace stats vgg11-cifar-cpu
    """
    trace = load_trace(path)
    counted = trace_stats(trace)
    screen = Screen()
    recomputing = ("not recomputable", _unrecomputable(trace))
    screen.print(facts([*trace.facts(), *_loop(trace), *counted.summary_rows(), recomputing]))
    tables: tuple[tuple[tuple[str, ...], Sequence[Sequence[str]]], ...] = (
        (("phase", "kernels", "time"), counted.phase_rows()),
        (("kind", "blocks", "size"), counted.kind_rows()),
        (("largest blocks", "kind", "size"), counted.biggest_rows()),
        (("sparsity over training", "first epoch", "minimum", "maximum", "last epoch"), counted.sparsity_rows()),
    )
    for headings, rows in tables:
        if rows:
            screen.print()
            screen.print(table(headings, rows))


def _unrecomputable(trace: Trace) -> str:
    """Size of the saved activations that cannot be recomputed, and their operators."""
    return unrecomputable(TaskGraph.of(trace)).text() if trace.records_reads else "reads not recorded"


def _facts(trace: Trace) -> list[tuple[str, str]]:
    graph = TaskGraph.of(trace)
    layers = graph.layers
    origin = "derived from the blocks" if layers.derived else "as recorded"
    return [
        *trace.facts(),
        *_loop(trace),
        ("notes", trace.info.notes or "-"),
        ("layers", f"{sum(not name.startswith('(') for name in layers.names)}, {origin}"),
    ]


def _loop(trace: Trace) -> list[tuple[str, str]]:
    """Number formats, and whether the training loop keeps the model's output, if the trace states them."""
    info = trace.info
    return [
        ("weight format", info.dtype),
        ("compute format", info.compute or NOT_STATED),
        ("model output", info.output or NOT_STATED),
    ]


def _layer_rows(trace: Trace) -> list[tuple[str, ...]]:
    """Per layer: kernels, time in each phase, and size of the feature maps that the layer produces."""
    graph = TaskGraph.of(trace)
    layers = graph.layers
    count: Counter[int] = Counter(layers.of_kernel)
    time: Counter[tuple[int, Phase]] = Counter()
    origins: Counter[int] = Counter()
    seen: set[str] = set()
    blocks = trace.block_by_id
    for layer, kernel in zip(layers.of_kernel, trace.kernels, strict=True):
        time[layer, kernel.phase] += kernel.duration_ns
        new = [name for name in kernel.writes if name not in seen]
        seen.update(new)
        origins[layer] += sum(blocks[name].bytes for name in new if blocks[name].kind is BlockKind.ACTIVATION)
    return [
        (
            name,
            str(count[layer]),
            *(format_time(time[layer, phase]) if (layer, phase) in time else "-" for phase in Phase),
            format_bytes(origins[layer]) if origins[layer] else "-",
        )
        for layer, name in enumerate(layers.names)
    ]
