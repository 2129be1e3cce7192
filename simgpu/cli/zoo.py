"""``simgpu zoo``: modelled traces of published networks and HPC solvers."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "list": ("simgpu.cli.zoo_list:list_", "List the networks with their inputs and variants."),
    "build": ("simgpu.cli.zoo_build:build", "Model one training iteration of a network and write its trace."),
    "solvers": ("simgpu.cli.solver_list:solvers", "List the HPC solvers and the benchmarks they resemble."),
    "solve": ("simgpu.cli.solver_build:solve", "Run an HPC solver and write one of its steps as a trace."),
    "validate": ("simgpu.cli.zoo_validate:validate_", "Compare the time model with published iteration times."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS})
def zoo() -> None:
    """Model traces of published networks and HPC solvers for a GPU.

    \b
    simgpu zoo list
    simgpu zoo build vgg16 --batch 128 --gpu v100 --input imagenet -o vgg16-b128
    simgpu zoo validate
    """
