"""``simgpu solver``: small HPC solvers, really run, as arrays to profile and traces to run."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "list": ("simgpu.cli.solver_list:list_", "List the solvers, and the benchmarks of whose kind they are."),
    "build": ("simgpu.cli.solver_build:build", "Run a solver and write a step of it as a trace."),
}


@click.group(cls=LazyGroup, commands_elsewhere=_COMMANDS)
def solver() -> None:
    """Small solvers of the kinds that Buddy Compression looked into: run here, for memory with real contents.

    \b
    simgpu solver list
    simgpu solver build cg -o my-cg --arrays my-cg-arrays
    """
