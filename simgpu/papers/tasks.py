"""The tasks that claims need: cells of studies, memory amounts and checks, in groups that share loaded data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from simgpu.errors import InputError, MissingExtraError, SimgpuError

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.reading import Library
    from simgpu.experiments.scenarios.study import Study
    from simgpu.experiments.study_measures import StudyCell


def written(values: Mapping[str, object]) -> str:
    """Changes as canonical JSON text.

    >>> written({"epochs": [0], "a": 1})
    '{"a": 1, "epochs": [0]}'
    """
    return json.dumps(dict(values), sort_keys=True)


def narrowed(changes: str, network: str, run: str = "") -> str:
    """The changes to a study that affect a run on a network; without a run, those that affect the network's traces.

    >>> changes = {"epochs": [0], "runs.CSWAP": None, "traces.AlexNet.batch": 8, "traces.VGG16.batch": 9}
    >>> narrowed(written(changes), "VGG16", "vDNN")
    '{"epochs": [0], "traces.VGG16.batch": 9}'
    """
    affected = {"traces": network, "runs": run}
    affecting = {}
    for key, value in json.loads(changes).items():
        kind, _, label = key.partition(".")
        if kind not in affected or not label or label.split(".")[0].split("[")[0] == affected[kind]:
            affecting[key] = value
    return written(affecting)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A run of a study on a trace. changes: to the study, as `written` formats them."""

    study: str
    changes: str
    trace: str
    run: str

    @classmethod
    def of(cls, study: str, changes: str, trace: str, run: str) -> Cell:
        """The cell, with only the changes that affect it."""
        outline = outlined(study, changes)
        (labelled,) = (candidate for candidate in outline.runs if candidate.label == run)
        return cls(study, _affecting(study, changes, outline.network(trace), labelled.sweep or run), trace, run)

    @property
    def group(self) -> tuple[str, ...]:
        """Tasks with the same group run together and share loaded data."""
        return ("study", self.study, self.changes, self.trace)

    @property
    def key(self) -> str:
        """Identifies the task in the cache."""
        return "\n".join((*self.group, self.run))

    def work(self) -> object:
        """Run the cell; returns its numbers as plain data."""
        from simgpu.experiments.study import cell_with_extras

        study = alone(self.study, self.changes, self.trace)
        (run,) = (run for run in study.runs if run.label == self.run)
        return asdict(cell_with_extras(study, self.trace, run))


@dataclass(frozen=True, slots=True, order=True)
class Memory:
    """The amounts of memory that a trace of a study needs."""

    study: str
    changes: str
    trace: str

    @classmethod
    def of(cls, study: str, changes: str, trace: str) -> Memory:
        """The task, with only the changes that affect the trace."""
        return cls(study, _affecting(study, changes, outlined(study, changes).network(trace)), trace)

    @property
    def group(self) -> tuple[str, ...]:
        """Tasks with the same group run together and share loaded data."""
        return ("study", self.study, self.changes, self.trace)

    @property
    def key(self) -> str:
        """Identifies the task in the cache."""
        return "\n".join(("memory", *self.group))

    def work(self) -> object:
        """Returns bytes by the names in `simgpu.experiments.study_measures`."""
        from simgpu.experiments.study_measures import memory_of

        return memory_of(alone(self.study, self.changes, self.trace).traces[self.trace])


@dataclass(frozen=True, slots=True, order=True)
class Check:
    """A call of a function of `simgpu.papers.checks`. arguments: as `written` formats them."""

    paper: str
    name: str
    arguments: str = "{}"

    @property
    def group(self) -> tuple[str, ...]:
        """A group of only this task."""
        return ("check", self.paper, self.name, self.arguments)

    @property
    def key(self) -> str:
        """Identifies the call and the source code of the paper's checks."""
        return "\n".join((*self.group, _source(self.paper)))

    def work(self) -> object:
        """Call the check; returns its results by name."""
        return checks(self.paper)[self.name](**json.loads(self.arguments))


class Task(Protocol):
    """A unit of work: one of the above, or a comparison with a recording (`simgpu.papers.recordings_tasks`)."""

    @property
    def group(self) -> tuple[str, ...]:
        """Tasks with the same group run together and share loaded data."""

    @property
    def key(self) -> str:
        """Identifies the task in the cache."""

    def work(self) -> object:
        """Run the task; returns its results as plain data."""


def checks(paper: str) -> Mapping[str, Any]:
    """A paper's checks by name."""
    functions: Mapping[str, Any] = import_module(f"simgpu.papers.checks.{paper}").CHECKS
    return functions


@lru_cache
def _source(paper: str) -> str:
    """A hash of the source code of a paper's checks."""
    folder = Path(str(files("simgpu.papers") / "checks"))
    digest = hashlib.sha256()
    for path in sorted((*folder.glob(f"{paper}*.py"), folder / "results.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _affecting(study: str, changes: str, network: str, run: str = "") -> str:
    """As `narrowed`, or all changes if the narrowed ones alone are invalid, such as a smaller node without budgets."""
    own = narrowed(changes, network, run)
    try:
        outlined(study, own)
    except InputError:
        return changes
    return own


@lru_cache(maxsize=1)
def _library() -> Library:
    from simgpu.experiments.scenarios.reading import Library

    return Library()


@lru_cache(maxsize=2)
def alone(study: str, changes: str, trace: str) -> Study:
    """A changed study with only one of its traces. The latest two are cached per process."""
    from simgpu.experiments.scenarios.load_study import load_study

    outline = outlined(study, changes)
    network = outline.network(trace)
    others: dict[str, object] = {"published": []} | {
        f"traces.{label}": None for label in outline.networks if label != network
    }
    if network in outline.sweeps:
        others[f"traces.{network}.batches"] = [outline.traces[trace].info.batch]
    return load_study(study, {**json.loads(changes), **others}, library=_library())


@lru_cache(maxsize=4)
def loaded(study: str, changes: str) -> Study:
    """A changed study with all its traces."""
    from simgpu.experiments.scenarios.load_study import load_study

    return load_study(study, json.loads(changes), library=_library())


@lru_cache
def outlined(study: str, changes: str) -> Study:
    """A changed study without its traces' contents: enough to list its tasks."""
    from simgpu.experiments.scenarios.load_study import outline_study

    # The study's published numbers are not needed, and may refer to removed traces.
    return outline_study(study, {**json.loads(changes), "published": []})


def restored(cell: Mapping[str, Any]) -> StudyCell:
    """The numbers of a run, from the result of `Cell.work` or its JSON."""
    from simgpu.experiments.study_measures import StudyCell

    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in cell.items()}
    return StudyCell(**values)


@dataclass(frozen=True, slots=True)
class Done:
    """A finished group. results: by task key. failed: error messages by task key."""

    group: int
    results: dict[str, object]
    failed: dict[str, str]


@dataclass(frozen=True)
class Groups:
    """Tasks in groups; a process runs one group at a time."""

    groups: tuple[tuple[Task, ...], ...]

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Groups:
        """Group the tasks, without duplicates; groups are in order of first appearance."""
        groups: dict[tuple[str, ...], dict[Task, None]] = {}
        for task in tasks:
            groups.setdefault(task.group, {})[task] = None
        return cls(tuple(map(tuple, groups.values())))

    def points(self) -> Groups:
        """The argument that `run_group` gets in each process: all groups."""
        return self


def run_group(groups: Groups, number: int) -> Done:
    """Run the tasks of a group. A failed task does not stop the others."""
    results: dict[str, object] = {}
    failed: dict[str, str] = {}
    for task in groups.groups[number]:
        try:
            results[task.key] = _plain(task.work())
        except (SimgpuError, MissingExtraError) as error:
            failed[task.key] = str(error)
        except Exception as error:
            failed[task.key] = f"{type(error).__name__}: {error}"
    return Done(number, results, failed)


def _plain(result: object) -> object:
    """The result, unchanged. Raises `ValueError` or `TypeError` if JSON cannot represent it, such as a NaN."""
    json.dumps(result, allow_nan=False)
    return result
