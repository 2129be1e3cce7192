"""``simgpu zoo validate``: compare modelled times and peak memory with published and recorded iterations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.units import format_bytes, format_time
from simgpu.workloads.calibration.samples import SampleUse
from simgpu.workloads.calibration.validation import (
    ErrorSummary,
    MemoryRow,
    TimeModelValidation,
    ValidationRow,
    validate,
)

_HEADINGS = ("network", "batch", "part", "measured", "modelled", "error", "")

_MEMORY_HEADINGS = ("network", "GPU", "batch", "recorded", "modelled", "error", "recorded by")


@click.command("validate")
@click.option(
    "--recordings",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also compare with the recordings in this folder; expected recordings that are missing are listed.",
)
@click.option("--parts", is_flag=True, help="Also show the kinds of kernels in recordings.")
@quiet_option
def validate_(recordings: Path | None, parts: bool, quiet: bool) -> None:
    """Compare the time model with published iteration times; separately for fitted and held-out networks.

    The networks for fitting were selected before the fit. The rule, and the source of each published time, is in
    simgpu/workloads/calibration/published.yaml. No GPU is held out. With --recordings, peak memory is compared too.

    \b
    simgpu zoo validate
    simgpu zoo validate --recordings ../shared/data --parts
    """
    screen = Screen()
    with progress(quiet) as say:
        say("comparing the time model with measurements")
        result = validate(recordings)
    for gpu in result.gpus():
        shown = [row for row in result.rows if row.sample.gpu == gpu and (parts or row.sample.full)]
        if shown:
            screen.print(gpu)
            screen.print(table(_HEADINGS, [_row(row) for row in shown], left=(0, 2, 6)))
            screen.print()
    screen.print("errors of phases and iterations: mean and worst absolute error, mean signed error (bias)")
    headings = ("fit", "mean", "worst", "bias", "held out", "mean", "worst", "bias")
    screen.print(table(("GPU", *headings), _by_gpu(result), left=(0,)))
    screen.print()
    screen.print(table(("network", *headings), _by_network(result), left=(0,)))
    seen = result.summary(SampleUse.SEEN_NETWORK)
    if seen is not None:
        screen.print(
            f"\nother samples of fitted networks: {seen.count}, mean {seen.mean:.1%}, worst {abs(seen.worst.error):.1%}"
        )
    if result.memory:
        screen.print("\npeak memory, recorded and modelled (no parameter is fitted to it)")
        screen.print(table(_MEMORY_HEADINGS, [_memory_row(row) for row in result.memory], left=(0, 1, 6)))
        screen.print("\nknown differences between recording and model")
        screen.print(facts((row.recording.name, row.recording.differs or "none known") for row in result.memory))
    screen.print("\nnot compared")
    screen.print(facts([*((each.what, each.why) for each in result.skipped), ("no measurement", _unmeasured(result))]))


def _unmeasured(validation: TimeModelValidation) -> str:
    return f"for {', '.join(validation.unmeasured())}"


def _row(row: ValidationRow) -> tuple[str, ...]:
    sample = row.sample
    return (
        sample.network,
        str(sample.batch),
        sample.measures,
        format_time(sample.measured_ns),
        format_time(row.modelled_ns),
        f"{row.error:+.1%}",
        sample.use.value,
    )


def _memory_row(row: MemoryRow) -> tuple[str, ...]:
    recording = row.recording
    return (
        recording.network,
        recording.gpu,
        str(recording.batch),
        format_bytes(row.recorded),
        format_bytes(row.modelled),
        f"{row.error:+.1%}",
        row.counted,
    )


def _by_gpu(validation: TimeModelValidation) -> list[tuple[str, ...]]:
    return _error_rows(
        (gpu or "all", validation.summary(SampleUse.FIT, gpu=gpu), validation.summary(SampleUse.HELD_OUT, gpu=gpu))
        for gpu in (*validation.gpus(), None)
    )


def _by_network(validation: TimeModelValidation) -> list[tuple[str, ...]]:
    return _error_rows(
        (name, validation.summary(SampleUse.FIT, network=name), validation.summary(SampleUse.HELD_OUT, network=name))
        for name in validation.networks()
    )


def _error_rows(rows: Iterable[tuple[str, ErrorSummary | None, ErrorSummary | None]]) -> list[tuple[str, ...]]:
    """Rows with at least one compared phase or iteration."""
    return [(name, *_short(fit), *_short(held_out)) for name, fit, held_out in rows if fit or held_out]


def _short(summary: ErrorSummary | None) -> tuple[str, str, str, str]:
    if summary is None:
        return "0", "", "", ""
    return str(summary.count), f"{summary.mean:.1%}", f"{abs(summary.worst.error):.1%}", f"{summary.bias:+.1%}"
