"""``simgpu zoo``: networks from their published descriptions, and modelled traces of them."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "list": ("simgpu.cli.zoo_list:list_", "List the networks, and what can be chosen."),
    "build": ("simgpu.cli.zoo_build:build", "Model one training iteration of a network and write its trace."),
    "validate": ("simgpu.cli.zoo_validate:validate_", "Compare the time model to published iteration times."),
}


@click.group(cls=LazyGroup, commands_elsewhere=_COMMANDS)
def zoo() -> None:
    """Networks from their published descriptions, as modelled traces for a named GPU.

    \b
    simgpu zoo list
    simgpu zoo build vgg16 --batch 128 --gpu v100 --input imagenet -o vgg16-b128
    simgpu zoo validate
    """
