"""``simgpu validate``: compare real runs under memory management with their simulation."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "record": ("simgpu.cli.validate_record:record", "Measure this machine and training on it under five methods."),
    "node": ("simgpu.cli.record_node:node", "Measure this machine's GPU and link; write a node file."),
    "report": ("simgpu.cli.validate_report:report", "Compare measured runs with their simulation."),
    "memory": ("simgpu.cli.validate_memory:memory", "Compare predicted peaks of memory with measured ones."),
    "public": ("simgpu.cli.validate_public:public", "Compare predictions with published measurements."),
    "replay": ("simgpu.cli.validate_replay:replay", "Run a simulated program's instructions on a real device."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS})
def validate() -> None:
    """Compare the simulation with real hardware.

    \b
    simgpu validate record -o my-gpu
    simgpu validate report my-gpu
    simgpu validate public
    """
