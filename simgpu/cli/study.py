"""``simgpu study``: several networks under several policies, next to the numbers that a paper states."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.group import BAD_INPUT, OUT_OF_MEMORY
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import parse_settings
from simgpu.cli.suggestions import studies, study_keys
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
    help="Change a value of the study or of all its nodes, e.g. epochs=[0,48], or leave a network or run out: "
    "traces.VGG16=null. Repeatable.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write report and figures here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def study(study: str, settings: tuple[str, ...], output: Path | None, as_json: bool, quiet: bool) -> None:
    """Run STUDY, a shipped study or a YAML file: one row a network, one column a run, and what was published.

    Its cells are throughput over a baseline, or what else the study tells; where a run is out of memory or its policy
    refuses the network, they say so. A sweep of budgets has one row a run, one of batches one row a batch. -o writes
    report.json and results.csv, and figures of every measure, of throughput against batch and of where the time goes.
    Ends with 3 when every run with limited memory was out of it, with 2 when every such run was refused.

    \b
    simgpu study cswap-6a
    simgpu study cdma-13-pascal --set epochs=[25] --json
    simgpu study my-study.yaml -o results/my-study
    """
    loaded = load_study(study, parse_settings(settings))
    about = {"simgpu": __version__}
    if output is not None:
        STUDY_FOLDER.check(output)
    with progress(quiet) as say:
        result = run_study(loaded, progress=say)
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
        click.echo(f"\n{failure}", err=True)
    if result.nothing_fitted:
        sys.exit(OUT_OF_MEMORY if any(cell.out_of_memory for cell in result.cells.values()) else BAD_INPUT)


def show_study(screen: Screen, result: StudyResult) -> None:
    """What was run, the tables, and the published numbers next to ours."""
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
