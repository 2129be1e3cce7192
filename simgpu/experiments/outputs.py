"""The files of a run: a folder that appears whole or not at all.

Lives here: which file holds what, and which folder may be replaced. Does not live here: the formats
themselves (`simgpu.timeline.export`, `simgpu.analysis.plots`), or the replacing (`simgpu.whole`).

    report.json                     every number of every policy, and where they come from
    <policy>/timeline.csv           one row per span, likewise .parquet, .perfetto.json
    <policy>/timeline.png           and memory.png, run.png, or .svg
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, MissingExtraError
from simgpu.timeline.export import write_csv, write_parquet, write_perfetto
from simgpu.whole import refuse_foreign, unwritable, whole_folder

if TYPE_CHECKING:
    from simgpu.experiments.compare import Comparison
    from simgpu.simulate import Result
    from simgpu.trace.model import Phase

REPORT = "report.json"
REPORT_SCHEMA = "simgpu.report/1"

_TIMELINES: dict[str, tuple[str, Callable[..., None]]] = {
    "csv": ("timeline.csv", write_csv),
    "parquet": ("timeline.parquet", write_parquet),
    "perfetto": ("timeline.perfetto.json", write_perfetto),
}


def check_outputs(folder: Path, timeline: Sequence[str]) -> None:
    """What can be known before a long run: the folder can be made or replaced, and the formats can be written.

    Raises `InputError`, or `MissingExtraError` for Parquet without pyarrow. Touches nothing.
    """
    if "parquet" in timeline and find_spec("pyarrow") is None:
        raise MissingExtraError("writing Parquet", "pyarrow", "parquet")
    refuse_foreign(folder, _not_ours)
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
    timeline: Sequence[str] = (),
    plots: Sequence[str] = (),
    image: str = "png",
    phases: Mapping[str, Phase] | None = None,
) -> None:
    """Writes a comparison's report, timelines and figures as one folder.

    about: what the report says of the run beside the results. phases: of each kernel by id, for the figures.
    An existing folder is replaced when simgpu wrote it, or when it is empty. Everything is built beside it
    first: after an error the folder is as it was.

    Raises `InputError` when the system refuses, and what `check_outputs` raises.
    """
    folder = folder.absolute()
    check_outputs(folder, timeline)
    with whole_folder(folder, _not_ours) as part:
        for run in comparison:
            if run.result is not None:
                home = part / folder_name(run.label)
                home.mkdir()
                for word in timeline:
                    name, write = _TIMELINES[word]
                    write(run.result.timeline, home / name)
                for word in plots:
                    _write_plot(run.result, run.label, word, home / f"{word}.{image}", phases)
        report = json.dumps(report_document(comparison, about), indent=2, allow_nan=False)
        (part / REPORT).write_text(report + "\n", encoding="utf-8")


def report_document(comparison: Comparison, about: Mapping[str, Any]) -> dict[str, Any]:
    """The report as plain data: its schema, what was run, and every policy's numbers."""
    return {"schema": REPORT_SCHEMA, **about, "results": comparison.to_dict()}


def folder_name(label: str) -> str:
    """A policy's label as a name of a folder on any system.

    >>> folder_name("vdnn(mode=conv)")
    'vdnn-mode-conv'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-.")


def _write_plot(result: Result, label: str, word: str, path: Path, phases: Mapping[str, Phase] | None) -> None:
    from simgpu.analysis.plots import plot_memory, plot_run, plot_timeline, save_figure

    title = f"{label}: {result.trace_name or result.trace.model} on {result.node.name}"
    match word:
        case "timeline":
            figure = plot_timeline(result.timeline, title=title, phases=phases)
        case "memory":
            figure = plot_memory(result.timeline, title=title)
        case _:
            figure = plot_run(result.timeline, title=title, phases=phases)
    save_figure(figure, path)


def _not_ours(folder: Path) -> str:
    """Only a folder that simgpu wrote may be replaced: its report says so."""
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        if str(report["schema"]).startswith("simgpu.report/"):
            return ""
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return "files that are not from an earlier run of simgpu"
