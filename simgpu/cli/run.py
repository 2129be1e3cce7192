"""``simgpu run`` and ``simgpu compare``: a scenario's policies, in detail or in one line each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from simgpu.cli.choice import ScenarioChoice, choice_options
from simgpu.cli.group import OUT_OF_MEMORY, show_error, wrapped
from simgpu.cli.run_tables import show_comparison, show_details, show_header
from simgpu.cli.screen import Screen, facts, progress
from simgpu.experiments import compare as experiment
from simgpu.experiments.advice import advice
from simgpu.experiments.compare import Comparison
from simgpu.experiments.outputs import check_outputs, report_document, write_outputs
from simgpu.experiments.scenarios.model import Scenario
from simgpu.version import __version__


@click.command()
@choice_options
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write the outputs to this folder."
)
def run(choice: ScenarioChoice, as_json: bool, quiet: bool, output: Path | None) -> None:
    """Run SCENARIO (a shipped name or a YAML file) under each of its policies, and show detailed results.

    Instead of SCENARIO, --trace and --node select what to run. If the scenario or -o names a folder, timelines, figures
    and report.json are written there atomically.

    Exit code 3: every policy with limited memory ran out of memory. Exit code 2: every policy failed, or does not
    support the trace or the node. If only some policies fail, each failed policy has a row 'error' and a message on
    stderr.

    With data_parallel.gpus, several GPUs train together. They exchange gradients through host memory over PCIe, as in
    moDNN (2019). Policies ddp and fsdp have NCCL's collectives instead.

    \b
    simgpu run quickstart
    simgpu run --trace vgg16-b128-v100 --node v100 --memory "10 GiB"
    simgpu run quickstart -o results/try --set node.gpu.memory="1 GiB"
    simgpu run my-scenario.yaml --set iterations=5 --set policies=vdnn --json
    simgpu run quickstart --set node=k40-x4 --set data_parallel.gpus=4
    """
    loaded = choice.load()
    folder = output if output is not None else loaded.outputs.folder
    if folder is not None:
        check_outputs(folder, loaded.outputs.timeline)
    with progress(quiet) as say:
        comparison = experiment.compare(loaded, progress=say)
    if not as_json:
        screen = Screen()
        show_header(screen, loaded, comparison)
        show_details(screen, comparison)
    if folder is not None:
        # After the tables, because drawing figures takes longer than simulating.
        with progress(quiet) as say:
            say("writing the outputs")
            outputs = loaded.outputs
            write_outputs(
                comparison,
                folder,
                about=_about(loaded),
                timeline=outputs.timeline,
                plots=outputs.plots,
                image=outputs.image,
            )
    if as_json:
        _print_json(loaded, comparison)
    elif folder is not None:
        click.echo(f"\nwritten to {folder}")
    _end(choice, loaded, comparison, quiet)


@click.command()
@choice_options
@click.option("--time-bound", "bound", is_flag=True, help="Show the gap to the lower bound of any placement.")
def compare(choice: ScenarioChoice, as_json: bool, quiet: bool, bound: bool) -> None:
    """Run the policies of SCENARIO and compare them, one line each. Writes no files.

    Instead of SCENARIO, --trace and --node select what to run.

    Exit code 3: every policy with limited memory ran out of memory. Exit code 2: every policy failed, or does not
    support the trace or the node.

    With data_parallel.gpus, several GPUs train together. They exchange gradients through host memory over PCIe, as in
    moDNN (2019). Policies ddp and fsdp have NCCL's collectives instead.

    \b
    simgpu compare quickstart
    simgpu compare quickstart --set "policies=[none, vdnn: {mode: conv}]"
    simgpu compare quickstart --set "policies=[vdnn, home, joint]" --time-bound
    simgpu compare --trace vgg16-b128-v100 --node v100 \\
        --policy none --policy "vdnn: {mode: conv}"
    """
    loaded = choice.load()
    with progress(quiet) as say:
        comparison = experiment.compare(loaded, bound=bound, progress=say)
    if as_json:
        _print_json(loaded, comparison)
    else:
        screen = Screen()
        show_header(screen, loaded, comparison)
        show_comparison(screen, comparison)
    _end(choice, loaded, comparison, quiet)


def _about(scenario: Scenario) -> dict[str, Any]:
    return {"simgpu": __version__, "scenario": scenario.name, "description": scenario.description}


def _print_json(scenario: Scenario, comparison: Comparison) -> None:
    click.echo(json.dumps(report_document(comparison, _about(scenario)), indent=2, allow_nan=False))


def _end(choice: ScenarioChoice, scenario: Scenario, comparison: Comparison, quiet: bool) -> None:
    """Prints why policies have no result and what to try. Exits with an error if no policy with limited memory fits."""
    failed = [run for run in comparison if run.result is None]
    if not failed:
        return
    fits = any(not result.program.unlimited_memory for result in comparison.results.values())
    out_of_memory = any(not run.refused for run in failed)
    none_fits = out_of_memory and not fits
    for run in failed:
        if run.refused:
            click.echo(f"\n{run.message}", err=True)
        elif none_fits:
            show_error(wrapped(run.message))
        else:
            click.echo(f"\n{wrapped(run.message, before=0)}", err=True)
    if out_of_memory:
        with progress(quiet) as say:
            hints = advice(scenario, comparison, written=_as_setting if choice.scenario else _as_option, progress=say)
        click.echo(err=True)
        Screen(error=True).print(facts(hints))
    if none_fits:
        sys.exit(OUT_OF_MEMORY)


def _as_option(policy: str) -> str:
    return f'--policy "{policy}"'


def _as_setting(policy: str) -> str:
    return f'--set "policies=[{policy}]"'
