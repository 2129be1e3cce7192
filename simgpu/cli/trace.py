"""``simgpu trace``: look at a recorded trace."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "import": ("simgpu.cli.importing:import_", "Turn another tool's recording into a trace."),
    "show": ("simgpu.cli.trace_commands:show", "Show what was recorded, layer by layer."),
    "check": ("simgpu.cli.trace_commands:check", "Check a trace; list everything that is wrong with it."),
    "stats": ("simgpu.cli.trace_commands:stats", "Count what is in it: time, blocks by kind, peaks."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS})
def trace() -> None:
    """Look at a recorded trace: a shipped name, or the path of a trace folder.

    \b
    simgpu trace show vgg11-cifar-cpu
    simgpu trace check path/to/trace
    simgpu trace stats path/to/trace
    """
