"""``simgpu zoo``: networks from their published descriptions, HPC solvers, and modelled traces of both."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "list": ("simgpu.cli.zoo_list:list_", "List the networks, and what can be chosen."),
    "build": ("simgpu.cli.zoo_build:build", "Model one training iteration of a network and write its trace."),
    "solvers": ("simgpu.cli.solver_list:solvers", "List the HPC solvers, and the benchmarks that they resemble."),
    "solve": ("simgpu.cli.solver_build:solve", "Run an HPC solver and write a step of it as a trace."),
    "validate": ("simgpu.cli.zoo_validate:validate_", "Compare the time model to published iteration times."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS})
def zoo() -> None:
    """Networks from their published descriptions, as modelled traces for a named GPU.

    \b
    simgpu zoo list
    simgpu zoo build vgg16 --batch 128 --gpu v100 --input imagenet -o vgg16-b128
    simgpu zoo validate
    """
