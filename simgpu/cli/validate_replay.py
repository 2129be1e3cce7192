"""``simgpu validate replay``: run a simulated program's instructions on a real device."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.group import wrapped
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.errors import InputError
from simgpu.io.atomic import atomic_file
from simgpu.validation.replay.outcome import (
    NUMBER_HEADINGS,
    STREAM_HEADINGS,
    Outcome,
    header,
    number_rows,
    stream_rows,
)
from simgpu.validation.replay.run import DEFAULT_REPETITIONS
from simgpu.validation.replay.run import replay as run_replay
from simgpu.validation.tables import CPU_NOTE
from simgpu.validation.timelines.comparison import divergence_text


@click.command("replay")
@click.argument("program", type=click.Path(path_type=Path))
@click.option("--device", default="cuda", show_default=True, metavar="cuda|cuda:N|cpu", help="Device to run on.")
@click.option(
    "--repetitions",
    metavar="N",
    type=click.IntRange(min=1),
    default=DEFAULT_REPETITIONS,
    show_default=True,
    help="Iterations in steady state; their median is reported.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON document to this file."
)
@quiet_option
def replay(program: Path, device: str, repetitions: int, as_json: bool, output: Path | None, quiet: bool) -> None:
    """Run the instructions of PROGRAM on a real device, and compare the times with the machine model.

    PROGRAM is the folder of one policy that `simgpu run NAME -o DIR` wrote, such as DIR/vdnn. Each kernel is replaced
    by a busy loop of its simulated duration; copies, events and memory allocations are real. The device's link is
    measured first, and the program is simulated again with that link. This tests only the machine model, not the
    trace. Needs PyTorch (install simgpu with the extra 'record') and a CUDA device, unless --device cpu is given.

    \b
    simgpu run quickstart -o results/try
    simgpu validate replay results/try/vdnn
    simgpu validate replay results/try/vdnn --device cpu -o vdnn.json
    """
    if output is not None:
        _check_output(output)
    with progress(quiet) as say:
        outcome = run_replay(program, device=device, repetitions=repetitions, progress=say)
    document = json.dumps(outcome.to_dict(), indent=2, allow_nan=False)
    if output is not None:
        with atomic_file(output) as part:
            part.write_text(document + "\n", encoding="utf-8")
    if as_json:
        click.echo(document)
        return
    _show(outcome)
    if output is not None:
        click.echo(f"\nwritten to {output}")


def _show(outcome: Outcome) -> None:
    screen = Screen()
    if outcome.machine.kind == "cpu":
        screen.print(Text(wrapped(f"NOTE: {CPU_NOTE}", before=0), style="bold red"))
    screen.print(facts(header(outcome)))
    screen.print()
    screen.print(table(NUMBER_HEADINGS, number_rows(outcome)))
    screen.print()
    screen.print(table(STREAM_HEADINGS, stream_rows(outcome), left=(0, 5)))
    screen.print()
    screen.print(facts([("divergence", divergence_text(outcome.comparison))]))


def _check_output(output: Path) -> None:
    if output.is_dir():
        raise InputError.single(output, "", "is a folder", "give the path of a file, such as replay.json")
    if not output.parent.is_dir():
        raise InputError.single(output, "", "its folder does not exist", f"create {output.parent} first")
