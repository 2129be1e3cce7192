"""``simgpu validate report``: what was measured, next to its simulation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.group import BAD_INPUT, wrapped
from simgpu.cli.screen import Screen, facts, progress, quiet_option
from simgpu.cli.suggestions import suggest
from simgpu.errors import InputError
from simgpu.validation.comparison import compare_recording
from simgpu.validation.folder import load_recording, shipped_recordings
from simgpu.validation.measured import Method, Recording
from simgpu.validation.outcome import ComparedRun, Validation
from simgpu.validation.outputs import check_outputs, document, write_outputs
from simgpu.validation.tables import (
    STAND_IN,
    Line,
    byte_lines,
    case_lines,
    comparison_lines,
    header_facts,
    notes_on,
    part_lines,
    summary_facts,
)
from simgpu.validation.timelines.comparison import parting_text


@click.command()
@click.argument("recording", required=False, shell_complete=suggest(shipped_recordings, "dir"))
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Only this case, such as vgg16-b64; repeatable.")
@click.option("--method", "methods", multiple=True, type=click.Choice(list(map(str, Method))), help="Only this method.")
@click.option("--timeline", is_flag=True, help="Show both timelines around the first place where they part.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write tables and figures here.")
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
    """Simulate the counterpart of every run in RECORDING, and show by how much it differs from what was measured.

    RECORDING is a shipped recording, or a folder that `simgpu validate record` wrote; without: all that ship.
    Nothing is run on a device. Kernels are calibrated to each case's plain run, copies to the measured machine; managed
    runs are predicted. Files (-o) are written whole or not at all. Ends with 2 when a run could not be simulated for
    another reason than memory.

    \b
    simgpu validate report
    simgpu validate report my-gpu --case vgg16-b64 --timeline
    simgpu validate report my-gpu -o results/validation
    """
    if output is not None:
        check_outputs(output)
    with progress(quiet) as say:
        result = _compared(_chosen(recording, cases, methods), cases, methods, say)
        if output is not None:
            say("writing the outputs")
            write_outputs(result, output, progress=say)
    if as_json:
        click.echo(json.dumps(document(result), indent=2, allow_nan=False))
    else:
        screen = Screen()
        for number, each in enumerate(result):
            if number:
                screen.print()
            _show(screen, each, timeline)
        if output is not None:
            click.echo(f"\nwritten to {output}")
    _end(result)


def _chosen(name: str | None, cases: Sequence[str], methods: Sequence[str]) -> list[Recording]:
    """The recordings asked for; of several that ship, those that have what is asked for."""
    if name is not None:
        return [load_recording(name)]
    result = [load_recording(each) for each in shipped_recordings()]
    if not result:
        remedy = "name one that `simgpu validate record` wrote"
        raise InputError.single("", "RECORDING", "no recording ships with this version of simgpu", remedy)
    return [each for each in result if _has(each, cases, methods)] or result


def _has(recording: Recording, cases: Iterable[str], methods: Iterable[str]) -> bool:
    run = {str(method) for case in recording.cases for method in (*case.runs, *case.absent)}
    return {case.name for case in recording.cases}.issuperset(cases) and run.issuperset(methods)


def _compared(
    recordings: Iterable[Recording], cases: Sequence[str], methods: Sequence[str], say: Callable[[str], None]
) -> list[Validation]:
    return [compare_recording(each, cases=cases, methods=methods, progress=say) for each in recordings]


def _show(screen: Screen, validation: Validation, timeline: bool) -> None:
    screen.print(Text(validation.name, style="bold"))
    if validation.stand_in:
        screen.print(Text(wrapped(f"NOTE: {STAND_IN}", before=0), style="bold red"))
    screen.print(facts(header_facts(validation)))
    for lines in (case_lines(validation.cases), byte_lines(validation), part_lines(validation)):
        _print(screen, lines)
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
    if run.comparison is None:
        screen.print(f"no counterpart ({run.failure})" if run.simulated is None else "no timeline was recorded")
        return
    screen.print(parting_text(run.comparison))
    _print(screen, comparison_lines(run.comparison))


def _print(screen: Screen, lines: Sequence[Line]) -> None:
    if lines:
        screen.print()
    for line in lines:
        screen.print(Text(line.text, style="bold" if line.heading else ""))


def _end(validations: Iterable[Validation]) -> None:
    """The exit code says whether a run could not be simulated, though memory was not the reason; notes_on say why."""
    if any(run.failure not in ("", "out of memory") for each in validations for run in each.runs):
        sys.exit(BAD_INPUT)
