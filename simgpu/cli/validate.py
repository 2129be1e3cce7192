"""``simgpu validate``: real runs under memory management, next to their simulated counterparts."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "record": ("simgpu.cli.validate_record:record", "Measure this machine and run models on it under four methods."),
    "node": ("simgpu.cli.record_node:node", "Measure this machine's GPU and link as a node."),
    "report": ("simgpu.cli.validate_report:report", "Compare what was measured with its simulation."),
    "replay": ("simgpu.cli.validate_replay:replay", "Issue a simulated program's instructions on a real device."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS})
def validate() -> None:
    """Hold the simulation against real hardware: the same iterations, really run and simulated.

    \b
    simgpu validate record -o my-gpu
    simgpu validate report my-gpu
    """
