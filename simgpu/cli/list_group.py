"""``simgpu list``: lists shipped nodes, policies and scenarios, and prints the schemas of files."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "nodes": ("simgpu.cli.nodes:nodes", "List the nodes (machines) that ship with simgpu."),
    "policies": ("simgpu.cli.policies:policies", "List the memory policies and their parameters."),
    "scenarios": ("simgpu.cli.scenarios:scenarios", "List the scenarios and studies that ship with simgpu."),
    "schema": ("simgpu.cli.schema:schema", "Print the JSON Schema of scenario, study, node or plan files."),
}


@click.group("list", cls=LazyGroup, sections={"Commands": _COMMANDS})
def list_() -> None:
    """List nodes, policies and scenarios, or print the schema of their files.

    \b
    simgpu list policies
    simgpu list nodes v100
    """
