"""Options of commands that run or record a user's model."""

from __future__ import annotations

import click

from simgpu.cli.suggestions import suggest
from simgpu.recorder import BUILT_IN_OPTIMIZERS

optimizer_option = click.option(
    "--optimizer",
    default="sgd",
    show_default=True,
    metavar="NAME",
    shell_complete=suggest(lambda: BUILT_IN_OPTIMIZERS),
    help="A built-in optimizer, or module.path:factory.",
)

micro_batches_option = click.option(
    "--micro-batches",
    metavar="K",
    type=click.IntRange(min=1, max=2**31 - 1),
    default=1,
    show_default=True,
    help="Gradient accumulation: K micro-batches, whose losses are divided by K and whose gradients are added up. "
    "K divides the batch.",
)

input_option = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=SHAPE[:TYPE[:BELOW]]",
    help="Input of your module, if your function returns only the module. B is the batch size: x=Bx3x224x224, or "
    "ids=Bx128:int64:50257 for integers below 50257. Repeatable.",
)
