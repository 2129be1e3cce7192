"""``simgpu study``: run several networks under several policies, and compare with a paper's numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.group import BAD_INPUT, OUT_OF_MEMORY, wrapped
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import parse_settings
from simgpu.cli.suggestions import studies, study_keys
from simgpu.cli.sweep import Count, cores
from simgpu.experiments.outputs import STUDY_FOLDER, write_study
from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.study import StudyResult, run_study
from simgpu.experiments.study_tables import (
    PUBLISHED_HEADINGS,
    failures,
    published_notes,
    published_rows,
    study_tables,
    table_notes,
)
from simgpu.version import __version__


@click.command()
@click.argument("study", shell_complete=studies)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=study_keys,
    help="Change a value in the study or in all its nodes, e.g. epochs=[0,48]. null removes a network or run: "
    "traces.VGG16=null. Repeatable.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes. Default: one per core."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write results and figures to this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def study(
    study: str, settings: tuple[str, ...], jobs: int | None, output: Path | None, as_json: bool, quiet: bool
) -> None:
    """Run STUDY (a shipped name or a YAML file) and compare its results with published numbers.

    Tables have one row per network and one column per run. A study of budgets has one row per run, a study of batch
    sizes one row per batch size. Cells show throughput relative to a baseline, or another measure that the study
    selects. Runs that are out of memory or not supported are marked.

    -o writes report.json, results.csv, and figures of each measure, of throughput by batch size, and of the time
    breakdown.

    Exit code 3: every run with limited memory ran out of memory. Exit code 2: no policy supports its network.

    \b
    simgpu study cswap-6a
    simgpu study cdma-13-pascal --set epochs=[25] --json
    simgpu study my-study.yaml -o results/my-study
    """
    loaded = load_study(study, parse_settings(settings))
    about = {"simgpu": __version__}
    if output is not None:
        STUDY_FOLDER.check(output)
    count = Count(of="runs", last="comparing")
    with progress(quiet) as say:
        result = run_study(loaded, jobs=jobs or cores(), progress=lambda done, total: say(count.text(done, total)))
        if output is not None:
            say("writing the outputs")
            write_study(result, output, about=about)
    if as_json:
        click.echo(json.dumps({**about, **result.to_dict()}, indent=2, allow_nan=False))
    else:
        show_study(Screen(), result)
        if output is not None:
            click.echo(f"\nwritten to {output}")
    for failure in failures(result):
        lines = (wrapped(line, before=0) for line in failure.splitlines())
        click.echo("\n".join(["", *lines]), err=True)
    if result.nothing_fitted:
        sys.exit(OUT_OF_MEMORY if any(cell.out_of_memory for cell in result.cells.values()) else BAD_INPUT)


def show_study(screen: Screen, result: StudyResult) -> None:
    """Prints a summary of the study, its tables, and the comparison with published numbers."""
    screen.print(Text(result.study.name, style="bold"))
    screen.print(facts(result.study.facts()))
    for title, headings, rows in study_tables(result):
        screen.print()
        screen.print(Text(title, style="bold"))
        screen.print(table(headings, rows))
    for note in table_notes(result):
        screen.print(Text(note, style="dim"))
    if result.study.published:
        screen.print()
        screen.print(table(PUBLISHED_HEADINGS, published_rows(result), left=(0, 4)))
        for note in published_notes(result):
            screen.print(note)
