"""Output folders of commands: each is written atomically, and replaces only a folder that the same command wrote.

Every folder holds report.json with all numbers and their provenance. Further files:

of a run        <policy>/timeline.csv               one row per span, likewise .parquet, .perfetto.json
                <policy>/snapshot.pickle            a memory snapshot as of PyTorch, see `simgpu.simulation.snapshot`;
                                                    with pool caching also of a run out of memory, up to the OOM
                <policy>/memory.csv                 one row per memory sample; with a timeline in CSV or Parquet
                <policy>/addresses.csv              with pool: caching: where blocks and segments were
                <policy>/kernels.csv, blocks.csv    with such a timeline: the tasks that ran, in a trace's columns
                <policy>/tasks.json                 the simulated costs of these tasks
                <policy>/program.json               the instructions that ran; kernels and blocks by number
                <policy>/timeline.png               and memory.png, run.png, or .svg, .pdf
of trainings    <policy>/epochs.csv                 one row per epoch
                <policy>/decisions.png              which blocks were offloaded compressed, per epoch
of a study      results.csv                         one row per trace and run: batch, samples/s, step-time breakdown
                measures.png                        every measure of the study's tables, over each of its baselines
                throughput.png                      with a sweep of batches: samples/s by batch, a line per run
                breakdown.png                       with the table breakdown: a bar per run
of searches     <policy>/placement.csv              one row per feature map: its action, its times, its overhead
                <policy>/convergence.csv, .png      of a swarm: worst, mean and best by iteration
of a profile    allocations.csv                     one row per allocation: its target and its overflow
                threshold.csv, .png                 ratio and overflow by Buddy Threshold
                drift.csv, .png                     of several snapshots: overflow in each
                heatmap.csv, .png                   of arrays: compressed bytes by position
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError
from simgpu.experiments.study_values import STUDY_REPORT_SCHEMA
from simgpu.graph.tasks_file import tasks_to_json
from simgpu.io.atomic import Foreign, atomic_folder, refuse_foreign, unwritable
from simgpu.io.input_files import read_json
from simgpu.program.text import to_json
from simgpu.simulation.addresses import address_ranges
from simgpu.timeline.addresses import ADDRESSES
from simgpu.timeline.export import write_csv, write_memory_csv, write_parquet
from simgpu.timeline.perfetto import write_perfetto
from simgpu.trace.columns import BLOCKS, KERNELS
from simgpu.trace.tables import write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simgpu.analysis.buddy_profile import BuddyProfile
    from simgpu.experiments.compare import Comparison
    from simgpu.experiments.scenarios.model import PlotKind, TimelineFormat
    from simgpu.experiments.scenarios.study import Study
    from simgpu.experiments.search_result import Search
    from simgpu.experiments.study import StudyResult
    from simgpu.experiments.training import Training
    from simgpu.simulation.run import Result

REPORT = "report.json"
REPORT_SCHEMA = "simgpu.report/2"
TASKS = "tasks.json"
PROGRAM = "program.json"


def _write_snapshot(result: Result, path: Path) -> None:
    from simgpu.simulation.snapshot import write_memory_snapshot

    write_memory_snapshot(result, path)


_TIMELINES: dict[str, tuple[str, Callable[[Result, Path], None]]] = {
    "csv": ("timeline.csv", lambda result, path: write_csv(result.timeline, path)),
    "parquet": ("timeline.parquet", lambda result, path: write_parquet(result.timeline, path)),
    "perfetto": (
        "timeline.perfetto.json",
        lambda result, path: write_perfetto(
            result.timeline, path, {"run": result.title, "trace": result.trace.provenance}
        ),
    ),
    "snapshot": ("snapshot.pickle", _write_snapshot),
}
#: The formats of `_TIMELINES` that can be read again as tables.
TABLES = ("csv", "parquet")


@dataclass(frozen=True)
class ReportFolder:
    """The output folders of one command. schema: schema of their report. kind: name of the result in messages."""

    schema: str
    kind: str

    def foreign(self, folder: Path) -> str:
        """What the folder holds that must not be replaced; empty if its report has this schema, in any version."""
        return holds_other_than(folder, f"{self.schema.partition('/')[0]}/", self.kind)

    def check(self, folder: Path) -> None:
        """Raise `InputError` before long work if the folder can be neither created nor replaced. Writes nothing."""
        check_folder(folder, self.foreign)

    @contextmanager
    def write(self, folder: Path, report: Mapping[str, Any]) -> Iterator[Path]:
        """Yield a temporary folder to fill. It replaces `folder` when the block ends without an error.

        After an error the folder is unchanged. Raises the errors of `check`, and `InputError` for errors of the system.
        """
        folder = folder.absolute()
        self.check(folder)
        with atomic_folder(folder, self.foreign) as part:
            yield part
            text = json.dumps(report, indent=2, allow_nan=False)
            (part / REPORT).write_text(text + "\n", encoding="utf-8")


RUN_FOLDER = ReportFolder(REPORT_SCHEMA, "run")
STUDY_FOLDER = ReportFolder(STUDY_REPORT_SCHEMA, "study")
SEARCH_FOLDER = ReportFolder("simgpu.search-report/2", "search")
PROFILE_FOLDER = ReportFolder("simgpu.buddy-profile/1", "profile")


def holds_other_than(folder: Path, schema: str, kind: str) -> str:
    """What a folder holds that must not be replaced; empty if the schema of its report begins with `schema`."""
    try:
        report = read_json(folder / REPORT)
        if str(report["schema"]).startswith(schema):
            return ""
    except (InputError, KeyError, TypeError):
        pass
    return f"files that are not from an earlier {kind} of simgpu"


def check_folder(folder: Path, foreign: Foreign) -> None:
    """Raise `InputError` if an output folder can be neither created nor replaced. Leaves nothing behind."""
    refuse_foreign(folder, foreign)
    try:
        home = next(parent for parent in folder.absolute().parents if parent.exists())
    except PermissionError as error:
        raise unwritable(folder, error) from error
    if not home.is_dir():
        what = f"cannot be created: {home} is not a folder"
        raise InputError.single(folder, "", what, "choose another output folder")
    if not os.access(home, os.W_OK | os.X_OK):
        what = f"cannot be created: no permission to write in {home}"
        raise InputError.single(folder, "", what, "choose another folder")
    try:  # a full disk, or a file system that takes no folders
        Path(tempfile.mkdtemp(prefix=".", dir=home)).rmdir()
    except OSError as error:
        raise unwritable(folder, error) from error


def check_outputs(folder: Path, timeline: Sequence[str]) -> None:
    """Check before a long run that the folder can be created or replaced, and the formats can be written.

    Raises `InputError`, or `MissingExtraError` for Parquet without pyarrow. Writes nothing.
    """
    if "parquet" in timeline and find_spec("pyarrow") is None:
        raise MissingExtraError("writing Parquet", "pyarrow", "parquet")
    RUN_FOLDER.check(folder)


def write_outputs(
    comparison: Comparison,
    folder: Path,
    *,
    about: Mapping[str, Any],
    timeline: Sequence[TimelineFormat] = (),
    plots: Sequence[PlotKind] = (),
    image: str = "png",
) -> None:
    """Write a comparison's report, timelines and figures. about: the report's entries on the command.

    Raises the errors of `check_outputs` and `ReportFolder.write`.
    """
    check_outputs(folder, timeline)
    with RUN_FOLDER.write(folder, report_document(comparison, about)) as part:
        for run, name in zip(comparison, folder_names(run.label for run in comparison), strict=True):
            home = part / name
            if run.snapshot is not None and "snapshot" in timeline:
                _write_failed_snapshot(run.snapshot, home)
            if run.result is not None:
                home.mkdir()
                for form in timeline:
                    file, write = _TIMELINES[form]
                    write(run.result, home / file)
                if any(form in TABLES for form in timeline):
                    _write_tables(run.result, home)
                for plot in plots:
                    _save(run.result.plot(plot), home / f"{plot}.{image}")


def _write_failed_snapshot(snapshot: Callable[[], dict[str, Any]], home: Path) -> None:
    """Write the snapshot of a run out of memory; nothing if it failed in its plan, or for want of another memory."""
    from simgpu.simulation.snapshot import write_snapshot_document

    try:
        document = snapshot()
    except (InputError, OutOfMemoryError):
        return
    home.mkdir()
    write_snapshot_document(document, home / timeline_file("snapshot"))


def write_trainings(trainings: Sequence[Training], folder: Path, *, about: Mapping[str, Any]) -> None:
    """Write trainings. about: the report's entries on the command."""
    with RUN_FOLDER.write(folder, trainings_document(trainings, about)) as part:
        for training, name in zip(trainings, folder_names(training.label for training in trainings), strict=True):
            home = part / name
            home.mkdir()
            training.frame().to_csv(home / "epochs.csv", lineterminator="\n")
            _save(training.plot(), home / "decisions.png")


def write_study(result: StudyResult, folder: Path, *, about: Mapping[str, Any]) -> None:
    """Write a study. about: the report's entries on the command."""
    with STUDY_FOLDER.write(folder, {**about, **result.to_dict()}) as part:
        result.frame().to_csv(part / "results.csv", lineterminator="\n")
        for picture in _study_pictures(result.study):
            _save(result.plot(picture), part / f"{picture}.png")


def write_searches(searches: Sequence[Search], folder: Path, *, about: Mapping[str, Any]) -> None:
    """Write searches of one trace on one node. about: the report's entries on the command.

    The same command writes the same bytes, as wall-clock times are omitted.
    """
    with SEARCH_FOLDER.write(folder, searches_document(searches, about)) as part:
        for search, name in zip(searches, folder_names(search.label for search in searches), strict=True):
            home = part / name
            home.mkdir()
            search.frame().to_csv(home / "placement.csv", lineterminator="\n")
            if (curves := search.convergence_frame()) is not None:
                curves.to_csv(home / "convergence.csv", lineterminator="\n")
            if (figure := search.plot()) is not None:
                _save(figure, home / "convergence.png")


def write_profile(profile: BuddyProfile, folder: Path, *, about: Mapping[str, Any]) -> None:
    """Write a profile. about: the report's entries on the command."""
    with PROFILE_FOLDER.write(folder, profile_document(profile, about)) as part:
        profile.frame().to_csv(part / "allocations.csv", lineterminator="\n")
        profile.sweep_frame().to_csv(part / "threshold.csv", lineterminator="\n")
        _save(profile.plot("threshold"), part / "threshold.png")
        if len(profile.drift) > 1:
            profile.drift_frame().to_csv(part / "drift.csv", lineterminator="\n")
            _save(profile.plot("drift"), part / "drift.png")
        if (heat_map := profile.heat_map()) is not None:
            heat_map.frame().to_csv(part / "heatmap.csv", lineterminator="\n", float_format="%.4g")
            _save(profile.plot("heatmap"), part / "heatmap.png")


def report_document(comparison: Comparison, about: Mapping[str, Any]) -> dict[str, Any]:
    """The report as plain data: its schema, the command, the trace and node, and every policy's numbers."""
    bounds = comparison.bounds
    bound = {"bound": asdict(bounds.tightest), "bound_of_all": asdict(bounds.of_all)} if bounds else {}
    results = [entry | _of_timeline(run.result) for run, entry in zip(comparison, comparison.to_dict(), strict=True)]
    return {"schema": REPORT_SCHEMA, **about, **comparison.about(), **bound, "results": results}


def trainings_document(trainings: Sequence[Training], about: Mapping[str, Any]) -> dict[str, Any]:
    """The report on trainings as plain data."""
    return {"schema": REPORT_SCHEMA, **about, "trainings": [training.to_dict() for training in trainings]}


def searches_document(searches: Sequence[Search], about: Mapping[str, Any]) -> dict[str, Any]:
    """The report on searches as plain data: trace, node and budget, and each search."""
    of: dict[str, Any] = {}
    if searches:
        first = searches[0]
        trace = {"name": first.trace_name, **asdict(first.trace), "origin": first.trace.origin.value}
        of = {"trace": trace, "node": first.node.to_dict(context=False), "budget_bytes": first.budget}
    return {"schema": SEARCH_FOLDER.schema, **about, **of, "searches": [search.to_dict() for search in searches]}


def profile_document(profile: BuddyProfile, about: Mapping[str, Any]) -> dict[str, Any]:
    """The report on a profile as plain data."""
    return {"schema": PROFILE_FOLDER.schema, **about, **profile.to_dict()}


def _study_pictures(study: Study) -> Iterator[Literal["measures", "throughput", "breakdown"]]:
    if set(study.tables) != {"breakdown"}:
        yield "measures"
    if study.sweeps:
        yield "throughput"
    if "breakdown" in study.tables:
        yield "breakdown"


def _save(figure: Figure, path: Path) -> None:
    from simgpu.analysis.plots import save_figure  # loads matplotlib

    save_figure(figure, path)


def timeline_file(form: str) -> str:
    """The name of a policy's timeline file in a format."""
    return _TIMELINES[form][0]


def _of_timeline(result: Result | None) -> dict[str, Any]:
    """The report's entries that `simgpu.timeline.reading` needs in addition to a timeline's tables."""
    if result is None:
        return {}
    timeline = result.timeline
    return {
        "timeline": {
            "iteration_ends_ns": list(timeline.iteration_ends_ns),
        }
        | {f"{curve.memory}_capacity_bytes": curve.capacity for curve in timeline.memories}
    }


def _write_tables(result: Result, home: Path) -> None:
    """Write the files that complete a timeline: memory in use, kernels, blocks, task costs and the program."""
    write_memory_csv(result.timeline, home / "memory.csv")
    write_table(home / KERNELS.file, KERNELS, result.graph.kernels)
    write_table(home / BLOCKS.file, BLOCKS, result.graph.blocks)
    if addresses := address_ranges(result):
        write_table(home / ADDRESSES.file, ADDRESSES, addresses)
    (home / TASKS).write_text(tasks_to_json(result.graph), encoding="utf-8")
    (home / PROGRAM).write_text(to_json(result.program), encoding="utf-8")


def folder_name(label: str) -> str:
    """The folder name for a policy's label, valid on every system.

    >>> folder_name("vdnn(mode=conv)"), folder_name("vdnn++")
    ('vdnn-mode-conv', 'vdnn-plus-plus')
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", label.replace("+", "-plus")).strip("-.")


def folder_names(labels: Iterable[str]) -> list[str]:
    """A folder name for each label; repeated names get a number."""
    names: list[str] = []
    for label in labels:
        name, number = folder_name(label), 2
        while name in names:
            name, number = f"{folder_name(label)}-{number}", number + 1
        names.append(name)
    return names
