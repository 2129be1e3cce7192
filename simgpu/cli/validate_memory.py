"""``simgpu validate memory``: compare predicted peaks of memory with those that others measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import click

from simgpu.cli.screen import Screen, progress, quiet_option, table
from simgpu.cli.suggestions import suggest
from simgpu.errors import InputError, did_you_mean
from simgpu.validation.predicted.comparison import OURS, EstimatorSummary, PredictedPeak, predict_peak, summaries
from simgpu.validation.predicted.measured import ESTIMATORS, MeasuredPeak, measured_peaks
from simgpu.version import __version__

_MIB = 2**20


@click.command()
@click.argument("runs", nargs=-1, shell_complete=suggest(lambda: sorted({run.model for run in measured_peaks()})))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def memory(runs: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Predict the peak memory of 55 training runs that the xMem project measured, and show the errors.

    RUNS are names of models or runs; by default all, which takes some minutes. Nothing runs on a GPU. The columns of
    simgpu and of three other estimators, from the same source, show by the same rule the error of the peak for runs
    that fit, or the wrong verdict: OOM or fits. Needs the extras 'record' and 'predict'.

    \b
    simgpu validate memory vgg16
    simgpu validate memory
    """
    chosen = _chosen(runs)
    compared = []
    with progress(quiet) as say:
        for number, run in enumerate(chosen, start=1):
            say(f"predicting {run.id}, {run.model}, {number} of {len(chosen)}")
            compared.append(predict_peak(run))
    if as_json:
        click.echo(json.dumps(_document(compared), indent=2))
        return
    screen = Screen()
    screen.print("peaks in MiB, and the error of each estimator, or its wrong verdict")
    headers = ("run", "measured", OURS, "error", *ESTIMATORS)
    screen.print(table(headers, _rows(compared), unbroken=range(len(headers))))
    for title, part in _groups(compared):
        screen.print()
        screen.print(table((title, "median error", "right verdicts"), _summary_rows(summaries(part))))


def _chosen(names: Sequence[str]) -> list[MeasuredPeak]:
    known = measured_peaks()
    words = {word for run in known for word in (run.id, run.model)}
    for name in names:
        if name not in words:
            raise InputError.single("", "runs", f"{name!r} is neither a run nor a model", did_you_mean(name, words))
    return [run for run in known if not names or run.id in names or run.model in names]


def _rows(compared: Sequence[PredictedPeak]) -> Iterator[tuple[str, ...]]:
    for run in compared:
        measured = run.measured
        errors = (_error(run, estimator) for estimator in (OURS, *ESTIMATORS))
        yield (
            f"{measured.model} {measured.optimizer} {measured.batch}",
            "OOM" if measured.oom else str(measured.peak // _MIB),
            "OOM" if run.predicted.oom else str(run.predicted.bytes // _MIB),
            *errors,
        )


def _error(run: PredictedPeak, estimator: str) -> str:
    """The error of the peak, or a wrong verdict; nothing for an estimator without an estimate."""
    error, estimate = run.error(estimator), run.estimate(estimator)
    if estimate is None:
        return ""
    if estimate.oom != run.measured.oom:
        return "OOM" if estimate.oom else "fits"
    return "right" if error is None else f"{100 * error:+.1f}%"


def _groups(compared: Sequence[PredictedPeak]) -> Iterator[tuple[str, list[PredictedPeak]]]:
    """All runs, and those whose recording says where they call zero_grad apart."""
    yield f"all {len(compared)} runs", list(compared)
    recorded = [run for run in compared if run.measured.zero_grad is not None]
    rest = [run for run in compared if run.measured.zero_grad is None]
    if recorded and rest:
        yield f"{len(recorded)} with zero_grad recorded", recorded
        yield f"{len(rest)} without, taken as start", rest


def _summary_rows(listed: Sequence[EstimatorSummary]) -> Iterator[tuple[str, str, str]]:
    for each in listed:
        error = "" if each.error is None else f"{100 * each.error:.1f}%"
        yield each.estimator, error, f"{each.right} of {each.verdicts}"


def _document(compared: Sequence[PredictedPeak]) -> dict[str, object]:
    return {
        "simgpu": __version__,
        "runs": [
            {
                "id": run.measured.id,
                "model": run.measured.model,
                "optimizer": run.measured.optimizer,
                "batch": run.measured.batch,
                "gpu": run.measured.gpu.name,
                "zero_grad": run.measured.zero_grad,
                "measured_bytes": run.measured.peak,
                "measured_oom": run.measured.oom,
                "allocated_bytes": run.allocated,
                "estimates": {
                    name: {"bytes": estimate.bytes, "oom": estimate.oom, "error": run.error(name)}
                    for name in (OURS, *ESTIMATORS)
                    if (estimate := run.estimate(name)) is not None
                },
            }
            for run in compared
        ],
        "estimators": [
            {"estimator": each.estimator, "median_error": each.error, "right": each.right, "verdicts": each.verdicts}
            for each in summaries(compared)
        ],
    }
