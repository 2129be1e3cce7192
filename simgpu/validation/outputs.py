"""The output folder of `simgpu validate report`, written atomically.

report.json                         every number, as `simgpu validate report --json` prints it
RECORDING/runs.csv                  one row per run: measured, simulated, relative errors
RECORDING/validation.png, .svg      step time and peak memory, measured and simulated
RECORDING/CASE/METHOD.csv, .png     both timelines of a run, event by event, and as a figure
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simgpu.experiments.outputs import REPORT, check_folder, folder_name, folder_names, holds_other_than
from simgpu.io.atomic import atomic_folder
from simgpu.policies.base import no_progress
from simgpu.validation.outcome import Validation
from simgpu.version import __version__

SCHEMA = "simgpu.validation/2"


def check_outputs(folder: Path) -> None:
    """Raises `InputError` if the folder can be neither created nor replaced; changes nothing."""
    check_folder(folder, _foreign_files)


def write_outputs(
    validations: Sequence[Validation], folder: Path, *, progress: Callable[[str], None] = no_progress
) -> None:
    """Writes validations as one folder, atomically.

    An earlier output folder is replaced. Raises `InputError` if the folder cannot be written or holds anything else.
    """
    folder = folder.absolute()
    check_outputs(folder)
    with atomic_folder(folder, _foreign_files) as part:
        names = folder_names(validation.name for validation in validations)
        for validation, name in zip(validations, names, strict=True):
            _write(validation, part / name, progress)
        report = json.dumps(document(validations), indent=2, allow_nan=False)
        (part / REPORT).write_text(report + "\n", encoding="utf-8")


def document(validations: Sequence[Validation]) -> dict[str, Any]:
    """Validations as plain data, with the schema and the version of simgpu."""
    return {"schema": SCHEMA, "simgpu": __version__, "recordings": [each.to_dict() for each in validations]}


def _write(validation: Validation, folder: Path, progress: Callable[[str], None]) -> None:
    from simgpu.analysis.plots import save_figure
    from simgpu.validation.figures import plot_run, plot_validation

    folder.mkdir()
    validation.frame().to_csv(folder / "runs.csv", index=False, lineterminator="\n")
    figure = plot_validation(validation)
    for suffix in ("png", "svg"):
        save_figure(figure, folder / f"validation.{suffix}")
    for case in validation.cases:
        timelines = [(run, run.timelines) for run in case.runs if run.timelines is not None]
        if timelines:
            (folder / folder_name(case.name)).mkdir()
        for run, comparison in timelines:
            progress(f"writing {case.name}, {run.method}")
            path = folder / folder_name(case.name) / str(run.method)
            comparison.as_frame().to_csv(path.with_suffix(".csv"), index=False, lineterminator="\n")
            save_figure(plot_run(run), path.with_suffix(".png"))


def _foreign_files(folder: Path) -> str:
    return holds_other_than(folder, SCHEMA, "comparison")
