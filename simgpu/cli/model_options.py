"""Options of commands that run or record a user's model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from simgpu.cli.settings import arguments_as_options, option_of
from simgpu.cli.suggestions import suggest
from simgpu.cli.zoo_configured import is_configuration
from simgpu.errors import InputError, Problem
from simgpu.recorder import BUILT_IN_OPTIMIZERS
from simgpu.recorder.configured import ATTENTION, DTYPES, configured_model

optimizer_option = click.option(
    "--optimizer",
    metavar="NAME",
    shell_complete=suggest(lambda: BUILT_IN_OPTIMIZERS),
    help="A built-in optimizer, or module.path:factory.  [default: sgd; adamw for a config.json]",
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


def configuration_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a model that a Hugging Face ``config.json`` describes; `model_of` reads them."""
    for option in (
        click.option(
            "--attention",
            type=click.Choice(ATTENTION),
            help="With a config.json: implementation.  [default: sdpa; eager where the model has no other]",
        ),
        click.option(
            "--dtype",
            type=click.Choice(DTYPES),
            help="With a config.json: of weights and activations.  [default: bfloat16]",
        ),
        click.option(
            "--sample-size",
            metavar="N",
            type=click.IntRange(min=1),
            help="With a U-Net's config.json: side of latent images.  [default: its own]",
        ),
        click.option(
            "--length",
            metavar="N",
            type=click.IntRange(min=1),
            help="With a config.json: tokens in each sample; of a U-Net's text.",
        ),
    ):
        command = option(command)
    return command


def optimizer_of(model: str, given: str | None) -> str:
    """The optimizer's name; by default AdamW for a configuration, as in all commands that take one.

    >>> optimizer_of("resnet20", None), optimizer_of("Llama-3.1-8B/config.json", None)
    ('sgd', 'adamw')
    """
    return given or ("adamw" if is_configuration(model) else "sgd")


def model_of(model: str, chosen: Mapping[str, Any]) -> str | Callable[..., Any]:
    """MODEL as `simgpu.record` takes it: a name, or the factory of a configuration.

    chosen: values of `configuration_options`, None for those that were not given. Raises `InputError` if they do not
    belong to the model, or one that a configuration needs is missing.
    """
    given = {name: value for name, value in chosen.items() if value is not None}
    if is_configuration(model):
        with arguments_as_options(chosen):
            return configured_model(model, **given)
    if given:
        what = f"describes the model of a config.json, and {model} is none"
        raise InputError([Problem("", option_of(name), what, "leave it out") for name in given])
    return model
