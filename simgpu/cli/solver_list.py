"""``simgpu zoo solvers``: lists the solvers with their memory."""

from __future__ import annotations

import click

from simgpu.cli.screen import Screen, table
from simgpu.units import format_bytes
from simgpu.workloads.solvers.catalogue import SOLVERS
from simgpu.workloads.solvers.solver import Solver


@click.command()
def solvers() -> None:
    """List the solvers with the benchmark that each resembles, the default problem size, and the memory.

    Column "memory" is for the measured run, column "trace memory" for the modelled trace.

    \b
    simgpu zoo solvers
    """
    headings = ("solver", "resembles", "run", "memory", "trace memory", "description")
    Screen().print(table(headings, [_row(solver.at()) for solver in SOLVERS.values()], left=(0, 1, 5), unbroken=(0, 1)))


def _row(solver: Solver) -> tuple[str, ...]:
    memory, reference = (format_bytes(each.bytes) for each in (solver, solver.reference()))
    return solver.name, solver.like, solver.scale, memory, reference, solver.what
