"""``simgpu trace show``, ``check`` and ``stats``: a recorded trace by layers, its soundness, its numbers."""

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
from simgpu.trace.folder import load_trace, other_files
from simgpu.trace.model import NOT_STATED, BlockKind, Phase, Trace
from simgpu.trace.stats import trace_stats
from simgpu.units import format_bytes, format_time


@click.command()
@click.argument("path", shell_complete=traces)
def show(path: str) -> None:
    """Show what was recorded at PATH, layer by layer.

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
    """Check the trace at PATH, every file of it; list everything that is wrong with it.

    PATH is a shipped trace or a trace folder. Ends with 2 when anything is wrong. Files that no trace has, such as a
    README, are not read and named.

    \b
    simgpu trace check vgg11-cifar-cpu
    """
    folder = find("traces", path)
    result, entries = read_trace_and_entries(folder)
    measured = f"; entries of {len(entries.allocations)} blocks" if entries is not None else ""
    click.echo(f"{path}: a sound trace; {len(result.kernels)} kernels, {len(result.blocks)} blocks{measured}")
    if others := other_files(folder):
        click.echo(f"not part of a trace, not read: {', '.join(others)}")


@click.command()
@click.argument("path", shell_complete=traces)
def stats(path: str) -> None:
    """Count what is in the trace at PATH: time, blocks by kind, peaks, what was recorded, what cannot be recomputed.

    PATH is a shipped trace or a trace folder.

    \b
    simgpu trace stats vgg11-cifar-cpu
    """
    trace = load_trace(path)
    counted = trace_stats(trace)
    screen = Screen()
    recomputing = ("not recomputable", _lost(trace))
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


def _lost(trace: Trace) -> str:
    """How much of the saved activations cannot be recomputed, and by which operators."""
    return unrecomputable(TaskGraph.of(trace)).text() if trace.records_reads else "reads not recorded"


def _facts(trace: Trace) -> list[tuple[str, str]]:
    graph = TaskGraph.of(trace)
    layers = graph.layers
    words = "derived from the blocks" if layers.derived else "as recorded"
    return [
        *trace.facts(),
        *_loop(trace),
        ("notes", trace.info.notes or "-"),
        ("layers", f"{sum(not name.startswith('(') for name in layers.names)}, {words}"),
    ]


def _loop(trace: Trace) -> list[tuple[str, str]]:
    """Number formats, and what the training loop holds, as far as the trace states them."""
    info = trace.info
    return [
        ("weight format", info.dtype),
        ("compute format", info.compute or NOT_STATED),
        ("model output", info.output or NOT_STATED),
    ]


def _layer_rows(trace: Trace) -> list[tuple[str, ...]]:
    """Per layer: kernels, time in each phase, and bytes of the feature maps that its forward kernels made."""
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
