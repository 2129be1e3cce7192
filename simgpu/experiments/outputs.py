"""The files of a run: a folder that appears whole or not at all.

    report.json                     every number of every policy, and where they come from
    <policy>/timeline.csv           one row per span, likewise .parquet, .perfetto.json
    <policy>/memory.csv             one row per memory sample; beside a timeline in CSV or Parquet, as are
    <policy>/kernels.csv            and blocks.csv: the tasks that ran, in the words of a trace
    <policy>/tasks.json             what these tasks cost when they ran
    <policy>/program.json           the instructions that ran, by the numbers of those kernels and blocks
    <policy>/timeline.png           and memory.png, run.png, or .svg

and of trainings

    report.json                     every number of every policy and epoch
    <policy>/epochs.csv             one row per epoch
    <policy>/decisions.png          which blocks left compressed, epoch by epoch
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, MissingExtraError
from simgpu.graph.tasks_file import tasks_to_json
from simgpu.io.atomic import Foreign, refuse_foreign, unwritable, whole_folder
from simgpu.io.json_files import read_json
from simgpu.program.text import to_json
from simgpu.timeline.export import write_csv, write_memory_csv, write_parquet
from simgpu.timeline.perfetto import write_perfetto
from simgpu.trace.columns import BLOCKS, KERNELS
from simgpu.trace.tables import write_table

if TYPE_CHECKING:
    from simgpu.experiments.compare import Comparison
    from simgpu.experiments.scenarios.model import PlotKind, TimelineFormat
    from simgpu.experiments.training import Training
    from simgpu.simulation.run import Result

REPORT = "report.json"
REPORT_SCHEMA = "simgpu.report/1"
TASKS = "tasks.json"
PROGRAM = "program.json"

_TIMELINES: dict[str, tuple[str, Callable[[Result, Path], None]]] = {
    "csv": ("timeline.csv", lambda result, path: write_csv(result.timeline, path)),
    "parquet": ("timeline.parquet", lambda result, path: write_parquet(result.timeline, path)),
    "perfetto": (
        "timeline.perfetto.json",
        lambda result, path: write_perfetto(
            result.timeline, path, {"run": result.title, "trace": result.trace.provenance}
        ),
    ),
}
#: What `_TIMELINES` writes as tables, to be read again.
TABLES = ("csv", "parquet")


def check_outputs(folder: Path, timeline: Sequence[str]) -> None:
    """What can be known before a long run: the folder can be made or replaced, and the formats can be written.

    Raises `InputError`, or `MissingExtraError` for Parquet without pyarrow. Touches nothing.
    """
    if "parquet" in timeline and find_spec("pyarrow") is None:
        raise MissingExtraError("writing Parquet", "pyarrow", "parquet")
    check_folder(folder, _not_ours)


def check_folder(folder: Path, foreign: Foreign) -> None:
    """What can be known of an output folder before anything is written: `InputError` if it can be neither made nor
    replaced. Touches nothing."""
    refuse_foreign(folder, foreign)
    try:
        home = next(parent for parent in folder.absolute().parents if parent.exists())
    except PermissionError as error:
        raise unwritable(folder, error) from error
    if not home.is_dir():
        raise InputError.single(folder, "", f"cannot be made: {home} is not a folder", "choose another output folder")
    if not os.access(home, os.W_OK | os.X_OK):
        raise InputError.single(folder, "", f"cannot be made: no right to write in {home}", "choose another folder")


def write_outputs(
    comparison: Comparison,
    folder: Path,
    *,
    about: Mapping[str, Any],
    timeline: Sequence[TimelineFormat] = (),
    plots: Sequence[PlotKind] = (),
    image: str = "png",
) -> None:
    """Writes a comparison's report, timelines and figures as one folder.

    about: what the report says of the run beside trace, node and results. An existing folder is replaced when
    simgpu wrote it, or when it is empty. Everything is built beside it first: after an error the folder is as it
    was.

    Raises `InputError` when the system refuses, and what `check_outputs` raises.
    """
    folder = folder.absolute()
    check_outputs(folder, timeline)
    with whole_folder(folder, _not_ours) as part:
        for run, name in zip(comparison, folder_names(run.label for run in comparison), strict=True):
            if run.result is not None:
                home = part / name
                home.mkdir()
                for form in timeline:
                    file, write = _TIMELINES[form]
                    write(run.result, home / file)
                if any(form in TABLES for form in timeline):
                    _write_beside(run.result, home)
                for plot in plots:
                    _write_plot(run.result, plot, home / f"{plot}.{image}")
        report = json.dumps(report_document(comparison, about), indent=2, allow_nan=False)
        (part / REPORT).write_text(report + "\n", encoding="utf-8")


def write_trainings(trainings: Sequence[Training], folder: Path, *, about: Mapping[str, Any]) -> None:
    """Writes trainings as one folder, whole or not at all, as `write_outputs` does."""
    from simgpu.analysis.plots import save_figure

    folder = folder.absolute()
    check_outputs(folder, ())
    with whole_folder(folder, _not_ours) as part:
        for training, name in zip(trainings, folder_names(training.label for training in trainings), strict=True):
            home = part / name
            home.mkdir()
            training.frame().to_csv(home / "epochs.csv", lineterminator="\n")
            save_figure(training.plot(), home / "decisions.png")
        report = json.dumps(trainings_document(trainings, about), indent=2, allow_nan=False)
        (part / REPORT).write_text(report + "\n", encoding="utf-8")


def trainings_document(trainings: Sequence[Training], about: Mapping[str, Any]) -> dict[str, Any]:
    """The report on trainings as plain data."""
    return {"schema": REPORT_SCHEMA, **about, "trainings": [training.to_dict() for training in trainings]}


def report_document(comparison: Comparison, about: Mapping[str, Any]) -> dict[str, Any]:
    """The report as plain data: its schema, what was run and on what, and every policy's numbers."""
    bounds = comparison.bounds
    bound = {"bound": asdict(bounds.least), "bound_of_all": asdict(bounds.of_all)} if bounds else {}
    results = [entry | _of_timeline(run.result) for run, entry in zip(comparison, comparison.to_dict(), strict=True)]
    return {"schema": REPORT_SCHEMA, **about, **comparison.about(), **bound, "results": results}


def timeline_file(form: str) -> str:
    """The name of the file that holds a policy's timeline in that format."""
    return _TIMELINES[form][0]


def _of_timeline(result: Result | None) -> dict[str, Any]:
    """What the tables of a timeline do not tell and `simgpu.timeline.reading` asks for."""
    if result is None:
        return {}
    timeline = result.timeline
    return {
        "timeline": {
            "iteration_ends_ns": list(timeline.iteration_ends_ns),
            "device_capacity_bytes": timeline.device_memory.capacity,
            "host_capacity_bytes": timeline.host_memory.capacity,
        }
    }


def _write_beside(result: Result, home: Path) -> None:
    """What makes a timeline's rows understood: the memory in use, the kernels and blocks that they name, and what was
    told to run."""
    write_memory_csv(result.timeline, home / "memory.csv")
    write_table(home / KERNELS.file, KERNELS, result.graph.kernels)
    write_table(home / BLOCKS.file, BLOCKS, result.graph.blocks)
    (home / TASKS).write_text(tasks_to_json(result.graph), encoding="utf-8")
    (home / PROGRAM).write_text(to_json(result.program), encoding="utf-8")


def folder_name(label: str) -> str:
    """A policy's label as a name of a folder on any system.

    >>> folder_name("vdnn(mode=conv)"), folder_name("vdnn++")
    ('vdnn-mode-conv', 'vdnn-plus-plus')
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", label.replace("+", "-plus")).strip("-.")


def folder_names(labels: Iterable[str]) -> list[str]:
    """A folder name for each label, told apart by a number where they would be the same."""
    names: list[str] = []
    for label in labels:
        name, number = folder_name(label), 2
        while name in names:
            name, number = f"{folder_name(label)}-{number}", number + 1
        names.append(name)
    return names


def _write_plot(result: Result, word: PlotKind, path: Path) -> None:
    from simgpu.analysis.plots import save_figure

    save_figure(result.plot(word), path)


def _not_ours(folder: Path) -> str:
    return holds_other_than(folder, "simgpu.report/", "run")


def holds_other_than(folder: Path, schema: str, word: str) -> str:
    """What a folder holds that may not be replaced: only one that simgpu wrote may, and its report says so."""
    try:
        report = read_json(folder / REPORT)
        if str(report["schema"]).startswith(schema):
            return ""
    except (InputError, KeyError, TypeError):
        pass
    return f"files that are not from an earlier {word} of simgpu"
