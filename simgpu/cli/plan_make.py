"""``simgpu plan make``: the fastest plan within a budget that PyTorch can run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpu.cli.choice import size_option
from simgpu.cli.model_options import (
    configuration_options,
    input_option,
    micro_batches_option,
    model_of,
    optimizer_of,
    optimizer_option,
)
from simgpu.cli.plan_show import show_plan, show_settings
from simgpu.cli.screen import progress, quiet_option
from simgpu.cli.settings import parse_budget
from simgpu.cli.suggestions import nodes, policies, suggest
from simgpu.errors import InputError, Problem
from simgpu.recorder import BUILT_IN_MODELS
from simgpu.recorder.inputs import named_inputs

if TYPE_CHECKING:
    from simgpu.plans.compiled.step import CompiledStep
    from simgpu.trace.model import Trace

_POSITIVE = click.IntRange(min=1, max=2**31 - 1)


@click.command()
@click.argument("model", shell_complete=suggest(lambda: BUILT_IN_MODELS))
@click.option("--batch", metavar="N", type=_POSITIVE, help="Batch size in samples. Not with a recorded trace.")
@click.option("--node", metavar="NODE", required=True, shell_complete=nodes, help="A shipped node or a YAML file.")
@size_option(
    "--budget",
    "--memory",
    help="Device memory to use, e.g. 24GB, or 50% of the peak without offloading. Default: all of the node's.",
)
@micro_batches_option
@optimizer_option
@input_option
@configuration_options
@click.option(
    "--execute",
    type=click.Choice(["eager", "compile"]),
    default="eager",
    show_default=True,
    help="Whether the model runs operator by operator or compiled by torch.compile.",
)
@click.option("--here", is_flag=True, help="Run the model on this machine's CPU, and plan for that.")
@click.option("--offload/--no-offload", default=True, show_default=True, help="Whether tensors may go to the host.")
@click.option(
    "--policy",
    metavar="NAME",
    shell_complete=policies,
    help="Follow this policy's decisions as far as PyTorch can, instead of a search.",
)
@click.option("--compare", is_flag=True, help="Also run policy joint, which no way of running restricts.")
@click.option("--settings", is_flag=True, help="Also the settings of other frameworks that come closest.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the plan to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan's file instead of its summary.")
@quiet_option
def make(
    model: str,
    batch: int | None,
    node: str,
    budget: str | None,
    micro_batches: int,
    optimizer: str | None,
    inputs: tuple[str, ...],
    execute: str,
    here: bool,
    offload: bool,
    policy: str | None,
    compare: bool,
    settings: bool,
    output: Path | None,
    as_json: bool,
    quiet: bool,
    **configuration: Any,
) -> None:
    """Make the fastest plan for MODEL within a budget.

    MODEL is as in `simgpu record`: a built-in model, module.path:function or a config.json, modelled for the node's GPU
    unless --here is given; or the folder of a trace that simgpu record wrote. The plan is checked with `simgpu plan
    check` and applied in Python: with simgpu.read_plan("plan.json").apply(model): ...

    With --policy, the plan follows a policy that places blocks, such as vdnn, superneurons, capuchin, home or joint: a
    module is recomputed where the policy recomputes what it saves, and a saved tensor is offloaded where the policy
    does so. The plan says how many bytes of the decisions are lost.

    \b
    simgpu plan make gpt2-small --batch 8 --node v100 --budget 8GB -o plan.json
    simgpu plan make resnet50 --batch 64 --micro-batches 4 --node v100
    simgpu plan make resnet20 --batch 64 --node v100 --here --budget 60MB
    simgpu plan make resnet50 --batch 64 --node v100 --budget 4GB --policy vdnn
    simgpu plan make gpt2-small --batch 8 --node v100 --execute compile
    """
    from simgpu.plans.compiled.recording import record_compiled
    from simgpu.plans.entry import other_settings, why_no_settings
    from simgpu.plans.entry import plan as make_plan
    from simgpu.recorder import record
    from simgpu.trace.folder import load_trace

    sys.path.insert(0, str(Path.cwd()))  # module.path may be in the current folder
    _check(model, batch, execute, policy, micro_batches)
    size = None if budget is None else parse_budget(budget, "--budget")
    with progress(quiet) as say:
        given, gpu = named_inputs(inputs) if inputs else None, None if here else node
        step: Trace | CompiledStep
        if batch is None:
            step = load_trace(model)
        else:
            recording = record if execute == "eager" else record_compiled
            step = recording(
                model_of(model, configuration),
                batch=batch,
                micro_batches=micro_batches,
                gpu=gpu,
                optimizer=optimizer_of(model, optimizer),
                inputs=given,
                progress=say,
            )
        result = make_plan(step, node, size, offload=offload, compare=compare, policy=policy, progress=say)
        others, why_none = [], ""
        if settings:
            say("simulating the settings of other frameworks")
            others = other_settings(step, node, size)
            why_none = "" if others else why_no_settings(step)
    if output is not None:
        result.write(output)
    if as_json:
        click.echo(result.text(), nl=False)
    else:
        show_plan(result)
    if settings:
        show_settings(result, others, why_none, error=as_json)
    if output is not None:
        click.echo(f"wrote {output}", err=True)


def _check(model: str, batch: int | None, execute: str, policy: str | None, micro_batches: int) -> None:
    """Raises `InputError` for options that do not go together."""
    is_trace = Path(model).is_dir() and not (Path(model) / "config.json").is_file()
    problems = []
    if batch is not None and is_trace:
        what = f"{batch} is given, and {model} is a recorded trace, which has its own"
        problems.append(Problem("plan", "--batch", what, "leave it out, or give the model"))
    if batch is None and not is_trace:
        problems.append(Problem("plan", "--batch", "it is missing", "give the batch size in samples"))
    if micro_batches > 1 and is_trace:
        what = f"{model} is a recorded trace, which has its own micro-batches"
        problems.append(Problem("plan", "--micro-batches", what, "leave it out, or give the model"))
    if execute == "compile" and is_trace:
        what = f"{model} is a recorded trace, and a compiled model has to be traced by PyTorch"
        problems.append(Problem("plan", "--execute", what, "give the model"))
    if execute == "compile" and policy is not None:
        what = f"{policy} places blocks of operators that run one by one"
        problems.append(Problem("plan", "--policy", what, "leave it out, or plan with --execute eager"))
    if problems:
        raise InputError(problems)
