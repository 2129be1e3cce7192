"""``simgpu trace``: show, check, summarize and import traces."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "import": ("simgpu.cli.importing:import_", "Convert another tool's recording into a trace."),
    "show": ("simgpu.cli.trace_commands:show", "Show a trace layer by layer."),
    "check": ("simgpu.cli.trace_commands:check", "Check a trace and list all its errors."),
    "stats": ("simgpu.cli.trace_commands:stats", "Summarize a trace: time, blocks by kind, peak memory."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS})
def trace() -> None:
    """Show, check, summarize or import a trace: a shipped trace or a trace folder.

    \b
    simgpu trace show vgg11-cifar-cpu
    simgpu trace check path/to/trace
    simgpu trace stats path/to/trace
    """
