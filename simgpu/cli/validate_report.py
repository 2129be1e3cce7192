"""``simgpu validate report``: compare measured runs with their simulation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.group import BAD_INPUT, wrapped
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import arguments_as_options
from simgpu.cli.suggestions import suggest
from simgpu.errors import InputError
from simgpu.validation.comparison import compare_recording
from simgpu.validation.folder import load_recording, shipped_recordings
from simgpu.validation.measured import Method, Recording
from simgpu.validation.outcome import ComparedRun, Validation
from simgpu.validation.outputs import check_outputs, document, write_outputs
from simgpu.validation.tables import (
    CPU_NOTE,
    TextTable,
    header_facts,
    notes_on,
    report_tables,
    summary_facts,
    timeline_tables,
)
from simgpu.validation.timelines.comparison import divergence_text


@click.command()
@click.argument("recording", required=False, shell_complete=suggest(shipped_recordings, "dir"))
@click.option(
    "--case", "cases", multiple=True, metavar="NAME", help="Compare only this case, e.g. vgg16-b64. Repeatable."
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(list(map(str, Method))),
    help="Compare only this method. Repeatable.",
)
@click.option("--timeline", is_flag=True, help="Show both timelines around their first divergence.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write tables and figures to this folder.",
)
@quiet_option
def report(
    recording: str | None,
    cases: tuple[str, ...],
    methods: tuple[str, ...],
    timeline: bool,
    as_json: bool,
    output: Path | None,
    quiet: bool,
) -> None:
    """Simulate each run in RECORDING, and show the error of the simulation.

    RECORDING is a shipped recording or a folder that `simgpu validate record` wrote. Default: all shipped recordings.
    Nothing runs on a device. Kernel times are calibrated with the plain run of each case, and copies with the measured
    machine. The runs with memory management are predicted. Outputs (-o) are written atomically.

    Exit code 2: a run could not be simulated for a reason other than out of memory.

    \b
    simgpu validate report
    simgpu validate report my-gpu --case vgg16-b64 --timeline
    simgpu validate report my-gpu -o results/validation
    """
    if output is not None:
        check_outputs(output)
    with progress(quiet) as say, arguments_as_options(("case", "method")):
        validations = _compared(_chosen(recording, cases, methods), cases, methods, say)
        if output is not None:
            say("writing the outputs")
            write_outputs(validations, output, progress=say)
    if as_json:
        click.echo(json.dumps(document(validations), indent=2, allow_nan=False))
    else:
        screen = Screen()
        for number, each in enumerate(validations):
            if number:
                screen.print()
            _show(screen, each, timeline)
        if output is not None:
            click.echo(f"\nwritten to {output}")
    _exit(validations)


def _chosen(name: str | None, cases: Sequence[str], methods: Sequence[str]) -> list[Recording]:
    """The requested recording, or the shipped ones that have the requested cases and methods; all if none has."""
    if name is not None:
        return [load_recording(name)]
    shipped = [load_recording(each) for each in shipped_recordings()]
    if not shipped:
        remedy = "give a folder that `simgpu validate record` wrote"
        raise InputError.single("", "RECORDING", "no recording ships with this version of simgpu", remedy)
    return [each for each in shipped if _has(each, cases, methods)] or shipped


def _has(recording: Recording, cases: Iterable[str], methods: Iterable[str]) -> bool:
    known = {str(method) for case in recording.cases for method in (*case.runs, *case.absent)}
    return {case.name for case in recording.cases}.issuperset(cases) and known.issuperset(methods)


def _compared(
    recordings: Iterable[Recording], cases: Sequence[str], methods: Sequence[str], say: Callable[[str], None]
) -> list[Validation]:
    return [compare_recording(each, cases=cases, methods=methods, progress=say) for each in recordings]


def _show(screen: Screen, validation: Validation, timeline: bool) -> None:
    screen.print(Text(validation.name, style="bold"))
    if validation.on_cpu:
        screen.print(Text(wrapped(f"NOTE: {CPU_NOTE}", before=0), style="bold red"))
    screen.print(facts(header_facts(validation)))
    for each in report_tables(validation):
        _print(screen, each)
    if timeline:
        for run in validation.runs:
            _show_timeline(screen, run)
    screen.print()
    screen.print(facts(summary_facts(validation)))
    screen.print()
    for note in notes_on(validation):
        screen.print(Text(note, style="dim"))


def _show_timeline(screen: Screen, run: ComparedRun) -> None:
    screen.print()
    screen.print(Text(f"{run.case}, {run.method}: timelines", style="bold"))
    if run.timelines is None:
        screen.print(f"not simulated: {run.failure}" if run.simulated is None else "no timeline was recorded")
        return
    screen.print(divergence_text(run.timelines))
    for each in timeline_tables(run.timelines):
        _print(screen, each)


def _print(screen: Screen, each: TextTable) -> None:
    screen.print()
    screen.print(table(each.headings, each.rows, each.left, unbroken=(0,)))


def _exit(validations: Iterable[Validation]) -> None:
    """Exits with 2 if a run could not be simulated for a reason other than out of memory."""
    if any(run.failure not in ("", "out of memory") for each in validations for run in each.runs):
        sys.exit(BAD_INPUT)
