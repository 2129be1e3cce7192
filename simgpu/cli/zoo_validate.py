"""``simgpu zoo validate``: the time model beside published and recorded iterations."""

from __future__ import annotations

from pathlib import Path

import click

from simgpu.cli.screen import Screen, facts, progress, table
from simgpu.trace.timemodel.validation import Row, Summary, Validation, validate
from simgpu.units import format_time

_HEADINGS = ("network", "batch", "part", "measured", "modelled", "error", "")


@click.command("validate")
@click.option(
    "--recordings",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder with recordings to compare to as well; those it should hold are told if missing.",
)
@click.option("--parts", is_flag=True, help="Show the sorts of kernels within recordings too.")
def validate_(recordings: Path | None, parts: bool) -> None:
    """Compare the time model to published iteration times, those it was fitted to and held-out ones apart.

    Which are fitted was decided before fitting, by network; the rule, and the source of every figure, is in
    simgpu/trace/timemodel/published.yaml.

    \b
    simgpu zoo validate
    simgpu zoo validate --recordings ../shared/data --parts
    """
    screen = Screen()
    with progress(quiet=False) as say:
        say("comparing the time model to measurements")
        found = validate(recordings)
    for gpu in found.gpus():
        shown = [row for row in found.rows if row.sample.gpu == gpu and (parts or row.sample.whole)]
        if shown:
            screen.print(gpu)
            screen.print(table(_HEADINGS, [_row(row) for row in shown], left=(0, 2, 6)))
            screen.print()
    screen.print("mean and worst absolute error of phases and iterations")
    screen.print(
        table(("GPU", "fitted to", "mean", "worst", "held out", "mean", "worst"), _summaries(found), left=(0,))
    )
    if found.skipped:
        screen.print("\nnot compared")
        screen.print(facts((skipped.what, skipped.why) for skipped in found.skipped))


def _row(row: Row) -> tuple[str, ...]:
    sample = row.sample
    return (
        sample.network,
        str(sample.batch),
        sample.measures,
        format_time(sample.measured_ns),
        format_time(row.modelled_ns),
        f"{row.error:+.1%}",
        "fit" if sample.fitted else "held out",
    )


def _summaries(found: Validation) -> list[tuple[str, ...]]:
    return [
        (gpu or "all", *_short(found.summary(fitted=True, gpu=gpu)), *_short(found.summary(fitted=False, gpu=gpu)))
        for gpu in (*found.gpus(), None)
    ]


def _short(summary: Summary | None) -> tuple[str, str, str]:
    if summary is None:
        return "0", "", ""
    return str(summary.count), f"{summary.mean:.1%}", f"{abs(summary.worst.error):.1%}"
