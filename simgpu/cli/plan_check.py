"""``simgpu plan check``: what PyTorch does with a plan, compared with what was planned."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from simgpu.cli.group import wrapped
from simgpu.cli.model_options import configuration_options, input_option, model_of, optimizer_of, optimizer_option
from simgpu.cli.screen import Screen, progress, quiet_option, table
from simgpu.cli.suggestions import suggest
from simgpu.recorder import BUILT_IN_MODELS
from simgpu.recorder.inputs import named_inputs
from simgpu.torch.plan import read_plan

_MARKS: Mapping[bool | None, str] = {True: "ok", False: "DIFFERS", None: ""}


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="PLAN")
@click.argument("model", shell_complete=suggest(lambda: BUILT_IN_MODELS))
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda|cuda:N", help="Device to run on.")
@optimizer_option
@input_option
@configuration_options
@quiet_option
def check(
    file: Path,
    model: str,
    device: str,
    optimizer: str | None,
    inputs: tuple[str, ...],
    quiet: bool,
    **configuration: Any,
) -> None:
    """Run MODEL with and without the plan in file PLAN, and compare what happens with what was planned.

    Ends with exit code 1 if gradients, saved tensors, operators, copied bytes or peak memory differ. Of a plan that was
    made for another device, such as a GPU that was modelled, only gradients are compared.

    \b
    simgpu plan check plan.json resnet20
    """
    from simgpu.plans.checking import check_plan

    sys.path.insert(0, str(Path.cwd()))  # module.path may be in the current folder
    plan, created = read_plan(file), model_of(model, configuration)
    with progress(quiet) as say:
        say(f"running {model} with and without the plan")
        given = named_inputs(inputs) if inputs else None
        chosen = optimizer_of(model, optimizer)
        result = check_plan(plan, created, device=device, optimizer=chosen, inputs=given)
    rows = [(each.what, each.planned, each.found, _MARKS[each.agrees]) for each in result.findings]
    Screen().print(table(("", "planned", "found", ""), rows, left=(0, 3)))
    for note in result.notes:
        click.echo(wrapped(note))
    if not result.passed:
        sys.exit(1)
