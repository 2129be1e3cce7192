"""The files of a study: a folder that appears whole or not at all.

report.json                     everything, as `simgpu study --json` prints it
results.csv                     one row a trace and run: batch, samples/s, where the time went
measures.png                    every measure of the study's tables, over each of its baselines
throughput.png                  of a study with a sweep of batches: samples/s against the batch, a line a run
breakdown.png                   of a study with the table breakdown: what the time went to, a bar a run
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simgpu.experiments.outputs import REPORT, check_folder, holds_other_than
from simgpu.io.atomic import atomic_folder

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.study import Study
    from simgpu.experiments.study import StudyResult

RESULTS = "results.csv"


def check_study_outputs(folder: Path) -> None:
    """Before a long run: `InputError` where the folder can be neither made nor replaced. Touches nothing."""
    check_folder(folder, _not_ours)


def write_study(result: StudyResult, folder: Path, *, about: Mapping[str, Any]) -> None:
    """Writes a study's report, table and figures as one folder, whole or not at all.

    about: what the report says beside the result. A folder that an earlier study wrote is replaced. Raises `InputError`
    when the system refuses, or the folder holds anything else.
    """
    from simgpu.analysis.plots import save_figure

    folder = folder.absolute()
    check_study_outputs(folder)
    with atomic_folder(folder, _not_ours) as part:
        result.frame().to_csv(part / RESULTS, lineterminator="\n")
        for what in _figures(result.study):
            save_figure(result.plot(what), part / f"{what}.png")
        report = json.dumps({**about, **result.to_dict()}, indent=2, allow_nan=False)
        (part / REPORT).write_text(report + "\n", encoding="utf-8")


def _figures(study: Study) -> Iterator[Literal["measures", "throughput", "breakdown"]]:
    if set(study.tables) != {"breakdown"}:
        yield "measures"
    if study.sweeps:
        yield "throughput"
    if "breakdown" in study.tables:
        yield "breakdown"


def _not_ours(folder: Path) -> str:
    return holds_other_than(folder, "simgpu.study-report/", "study")
