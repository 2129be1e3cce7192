"""``simgpu zoo validate``: the time model beside published and recorded iterations."""

from __future__ import annotations

import csv
from pathlib import Path

import click

from simgpu.cli.screen import Screen, facts, progress, table
from simgpu.trace.timemodel.validation import Row, Summary, Validation, validate
from simgpu.units import format_time

_HEADINGS = ("GPU", "network", "batch", "part", "measured", "modelled", "error", "")


@click.command("validate")
@click.option(
    "--recordings",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder with recordings to compare to as well (simgpu.trace.timemodel.recordings says which).",
)
@click.option("--parts", is_flag=True, help="Show the sorts of kernels within recordings too.")
@click.option(
    "--csv", "csv_path", type=click.Path(path_type=Path), metavar="FILE", help="Write all rows to a CSV file."
)
def validate_(recordings: Path | None, parts: bool, csv_path: Path | None) -> None:
    """Compare the time model to published iteration times, fitted and held-out ones apart.

    Which figures were fitted was decided by network before fitting; every figure's source is in
    simgpu/trace/timemodel/published.yaml.

    \b
    simgpu zoo validate
    simgpu zoo validate --recordings ../shared/data --parts
    """
    screen = Screen()
    with progress(quiet=False) as say:
        say("comparing the time model to measurements")
        found = validate(recordings)
    shown = [row for row in found.rows if parts or row.sample.whole]
    screen.print(table(_HEADINGS, [_row(row) for row in shown], left=(0, 1, 3, 7)))
    screen.print()
    screen.print("mean and worst absolute error of phases and iterations")
    screen.print(
        table(("GPU", "fitted to", "mean", "worst", "held out", "mean", "worst"), _summaries(found), left=(0,))
    )
    if found.skipped:
        screen.print("\nnot compared")
        screen.print(facts((skipped.what, skipped.why) for skipped in found.skipped))
    if csv_path is not None:
        _write(csv_path, found)


def _row(row: Row) -> tuple[str, ...]:
    sample = row.sample
    return (
        sample.gpu,
        sample.network,
        str(sample.batch),
        sample.measures,
        format_time(sample.measured_ns),
        format_time(row.modelled_ns),
        f"{row.error:+.1%}",
        _use(sample.fitted),
    )


def _use(fitted: bool) -> str:
    return "fit" if fitted else "held out"


def _summaries(found: Validation) -> list[tuple[str, ...]]:
    return [
        (gpu or "all", *_short(found.summary(fitted=True, gpu=gpu)), *_short(found.summary(fitted=False, gpu=gpu)))
        for gpu in (*found.gpus(), None)
    ]


def _short(summary: Summary | None) -> tuple[str, str, str]:
    if summary is None:
        return "0", "", ""
    return str(summary.count), f"{summary.mean:.1%}", f"{abs(summary.worst.error):.1%}"


def _write(path: Path, found: Validation) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(
            ("gpu", "network", "batch", "part", "measured_ns", "modelled_ns", "error", "use", "whole", "source")
        )
        for row in found.rows:
            sample = row.sample
            where = sample.gpu, sample.network, sample.batch, sample.measures, sample.measured_ns, row.modelled_ns
            writer.writerow((*where, f"{row.error:.6f}", _use(sample.fitted), sample.whole, sample.source))
