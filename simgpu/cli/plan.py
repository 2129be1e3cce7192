"""``simgpu plan``: the fastest plan within a budget that PyTorch can run; show it, and check it against PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.choice import size_option
from simgpu.cli.group import wrapped
from simgpu.cli.screen import Screen, facts, indented, progress, quiet_option, table
from simgpu.cli.suggestions import nodes, suggest
from simgpu.errors import InputError
from simgpu.recorder import BUILT_IN_MODELS, BUILT_IN_OPTIMIZERS
from simgpu.recorder.inputs import named_inputs
from simgpu.torch.plan import Plan, read_plan

_POSITIVE = click.IntRange(min=1, max=2**31 - 1)
_OPTIMIZERS = suggest(lambda: BUILT_IN_OPTIMIZERS)


class _Plans(click.Group):
    """A group whose own arguments make a plan: ``simgpu plan MODEL`` is ``simgpu plan make MODEL``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["make", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_Plans)
def plan() -> None:
    """Make a plan that runs in PyTorch, show it, or check it.

    \b
    simgpu plan MODEL --batch 8 --node h100 --budget 24GB -o plan.json
    simgpu plan show plan.json
    simgpu plan check plan.json MODEL
    """


@plan.command()
@click.argument("model", shell_complete=suggest(lambda: BUILT_IN_MODELS))
@click.option("--batch", metavar="N", type=_POSITIVE, help="Batch size in samples. Not with a recorded trace.")
@click.option("--node", metavar="NODE", required=True, shell_complete=nodes, help="A shipped node or a YAML file.")
@size_option("--budget", "--memory", help="Device memory to use, e.g. 24GB. Default: all of the node's.")
@click.option("--optimizer", default="sgd", show_default=True, metavar="NAME", shell_complete=_OPTIMIZERS)
@click.option("--input", "inputs", multiple=True, metavar="NAME=SHAPE[:TYPE[:BELOW]]", help="As in simgpu record.")
@click.option("--here", is_flag=True, help="Run the model on this machine's CPU, and plan for that.")
@click.option("--offload/--no-offload", default=True, show_default=True, help="Whether tensors may go to the host.")
@click.option("--compare", is_flag=True, help="Also run policy joint, which no way of running restricts.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the plan to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan's file instead of its summary.")
@quiet_option
def make(
    model: str,
    batch: int | None,
    node: str,
    budget: str | None,
    optimizer: str,
    inputs: tuple[str, ...],
    here: bool,
    offload: bool,
    compare: bool,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make the fastest plan for MODEL within a budget.

    MODEL is as in `simgpu record`: a built-in model or module.path:function, modelled for the node's GPU unless --here
    is given; or the folder of a trace that simgpu record wrote.
    """
    from simgpu.plans.entry import plan as make_plan
    from simgpu.recorder import record
    from simgpu.trace.folder import load_trace

    is_trace = Path(model).is_dir()
    if batch is None and not is_trace:
        raise InputError.single("plan", "--batch", "it is missing", "give the batch size in samples")
    with progress(quiet) as say:
        if is_trace:
            trace = load_trace(model)
        else:
            given, gpu = named_inputs(inputs) if inputs else None, None if here else node
            trace = record(model, batch=batch or 1, gpu=gpu, optimizer=optimizer, inputs=given, progress=say)
        result = make_plan(trace, node, budget, offload=offload, compare=compare, progress=say)
    if output is not None:
        result.write(output)
    if as_json:
        click.echo(result.text(), nl=False)
        return
    _show(result)
    if output is not None:
        click.echo(f"wrote {output}", err=True)


@plan.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="PLAN")
def show(file: Path) -> None:
    """Show what a plan does and what it is predicted to cost."""
    _show(read_plan(file))


def _show(result: Plan) -> None:
    from simgpu.plans.summary import facts as facts_of
    from simgpu.plans.summary import summary

    screen = Screen()
    screen.print(facts(facts_of(result)))
    screen.print()
    for line in summary(result):
        screen.print(indented(Text(line)))


@plan.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="PLAN")
@click.argument("model", shell_complete=suggest(lambda: BUILT_IN_MODELS))
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda|cuda:N", help="Device to run on.")
@click.option("--optimizer", default="sgd", show_default=True, metavar="NAME", shell_complete=_OPTIMIZERS)
def check(file: Path, model: str, device: str, optimizer: str) -> None:
    """Run MODEL with and without a plan, and compare what happens with what was planned.

    Ends with exit code 1 if gradients, saved tensors, recomputed operators, copied bytes or peak memory differ.
    """
    from simgpu.plans.checking import check_plan

    result = check_plan(read_plan(file), model, device=device, optimizer=optimizer)
    marks: Mapping[bool | None, str] = {True: "ok", False: "DIFFERS", None: ""}
    rows = [(each.what, each.planned, each.found, marks[each.agrees]) for each in result.findings]
    screen = Screen()
    screen.print(table(("", "planned", "found", ""), rows))
    for note in result.notes:
        click.echo(wrapped(note))
    if not result.passed:
        sys.exit(1)
