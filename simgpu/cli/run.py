"""``simgpu run`` and ``simgpu compare``: a scenario's policies, in detail or in one line each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from simgpu import __version__
from simgpu.cli.group import OUT_OF_MEMORY, fail
from simgpu.cli.report import show_comparison, show_details, show_header
from simgpu.cli.screen import Screen, progress
from simgpu.cli.settings import parse_settings
from simgpu.errors import OutOfMemoryError
from simgpu.experiments import compare as experiment
from simgpu.experiments.compare import Comparison
from simgpu.experiments.outputs import check_outputs, report_document, write_outputs
from simgpu.scenario.load import load_scenario
from simgpu.scenario.model import Scenario

_Command = Callable[..., Any]


def _shared_options(command: _Command) -> _Command:
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help='Change a value of the scenario or its node, e.g. node.gpu.memory="8 GiB". Repeatable.',
        ),
        click.argument("scenario"),
    ):
        command = option(command)
    return command


@click.command()
@_shared_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write the outputs here.")
def run(scenario: str, settings: tuple[str, ...], as_json: bool, quiet: bool, output: Path | None) -> None:
    """Run SCENARIO, a shipped scenario or a YAML file, and report what happened.

    Every policy of the scenario is run. Timelines, figures and report.json are written when the scenario or -o
    names a folder, whole or not at all. Ends with 3 when every policy with limited memory ran out of it.

    \b
    simgpu run quickstart
    simgpu run quickstart -o results/try --set node.gpu.memory="1 GiB"
    simgpu run my-scenario.yaml --set iterations=5 --set policies=vdnn --json
    """
    loaded = load_scenario(scenario, parse_settings(settings))
    folder = output if output is not None else loaded.outputs.folder
    if folder is not None:
        check_outputs(folder, loaded.outputs.timeline)
    with progress(quiet) as say:
        comparison = experiment.compare(loaded, progress=say)
        if folder is not None:
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
    else:
        screen = Screen()
        show_header(screen, loaded, comparison)
        show_details(screen, comparison)
        if folder is not None:
            click.echo(f"\nwritten to {folder}")
    _end(comparison)


@click.command()
@_shared_options
def compare(scenario: str, settings: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Run the policies of SCENARIO side by side, one line each. Writes no files.

    Ends with 3 when every policy with limited memory ran out of it.

    \b
    simgpu compare quickstart
    simgpu compare quickstart --set node=v100 --set "policies=[none, vdnn: {mode: conv}]"
    """
    loaded = load_scenario(scenario, parse_settings(settings))
    with progress(quiet) as say:
        comparison = experiment.compare(loaded, progress=say)
    if as_json:
        _print_json(loaded, comparison)
    else:
        screen = Screen()
        show_header(screen, loaded, comparison)
        show_comparison(screen, comparison)
    _end(comparison)


def _about(scenario: Scenario) -> dict[str, Any]:
    return {"simgpu": __version__, "scenario": scenario.name, "description": scenario.description}


def _print_json(scenario: Scenario, comparison: Comparison) -> None:
    click.echo(json.dumps(report_document(comparison, _about(scenario)), indent=2, allow_nan=False))


def _end(comparison: Comparison) -> None:
    """Tells why policies ran out of memory; the exit code says so when all did whose memory is limited."""
    messages = [f"{run.label}: {run.outcome}" for run in comparison if isinstance(run.outcome, OutOfMemoryError)]
    limited = [run for run in comparison if run.result is None or not run.result.program.unlimited_memory]
    if messages and len(messages) == len(limited):
        fail(messages, OUT_OF_MEMORY)
    for message in messages:
        click.echo(f"\n{message}", err=True)
