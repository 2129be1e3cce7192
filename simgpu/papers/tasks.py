"""What claims need to have run: cells of studies and checks, each known by a key, in groups that share what they
load."""

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
    """Changes as a text by which they are told apart.

    >>> written({"epochs": [0], "a": 1})
    '{"a": 1, "epochs": [0]}'
    """
    return json.dumps(dict(values), sort_keys=True)


def narrowed(changes: str, network: str, run: str = "") -> str:
    """Of changes to a study those that a run on a network can feel; without a run those that the network can.

    >>> changes = {"epochs": [0], "runs.CSWAP": None, "traces.AlexNet.batch": 8, "traces.VGG16.batch": 9}
    >>> narrowed(written(changes), "VGG16", "vDNN")
    '{"epochs": [0], "traces.VGG16.batch": 9}'
    """
    felt = {"traces": network, "runs": run}
    kept = {}
    for key, value in json.loads(changes).items():
        kind, _, label = key.partition(".")
        if kind not in felt or not label or label.split(".")[0].split("[")[0] == felt[kind]:
            kept[key] = value
    return written(kept)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A run of a study on a trace; changes: to the study, as `written` has them."""

    study: str
    changes: str
    trace: str
    run: str

    @classmethod
    def of(cls, study: str, changes: str, trace: str, run: str) -> Cell:
        """The cell that is the same whatever becomes of others."""
        outline = outlined(study, changes)
        (found,) = (each for each in outline.runs if each.label == run)
        return cls(study, _felt(study, changes, outline.network(trace), found.sweep or run), trace, run)

    @property
    def group(self) -> tuple[str, ...]:
        """What runs together, since it loads the same."""
        return ("study", self.study, self.changes, self.trace)

    @property
    def key(self) -> str:
        """What tells it apart from everything else."""
        return "\n".join((*self.group, self.run))

    def work(self) -> object:
        """Its numbers as plain data."""
        from simgpu.experiments.study import cell_with_extras

        study = alone(self.study, self.changes, self.trace)
        (run,) = (run for run in study.runs if run.label == self.run)
        return asdict(cell_with_extras(study, self.trace, run))


@dataclass(frozen=True, slots=True, order=True)
class Memory:
    """Amounts of memory that a trace of a study needs."""

    study: str
    changes: str
    trace: str

    @classmethod
    def of(cls, study: str, changes: str, trace: str) -> Memory:
        """The amounts that are the same whatever becomes of other traces."""
        return cls(study, _felt(study, changes, outlined(study, changes).network(trace)), trace)

    @property
    def group(self) -> tuple[str, ...]:
        """What runs together, since it loads the same."""
        return ("study", self.study, self.changes, self.trace)

    @property
    def key(self) -> str:
        """What tells it apart from everything else."""
        return "\n".join(("memory", *self.group))

    def work(self) -> object:
        """Bytes by the names of `simgpu.experiments.study_measures`."""
        from simgpu.experiments.study_measures import memory_of

        return memory_of(alone(self.study, self.changes, self.trace).traces[self.trace])


@dataclass(frozen=True, slots=True, order=True)
class Check:
    """A function of `simgpu.papers.checks`; arguments: as `written` has them."""

    paper: str
    name: str
    arguments: str = "{}"

    @property
    def group(self) -> tuple[str, ...]:
        """What runs together: this alone."""
        return ("check", self.paper, self.name, self.arguments)

    @property
    def key(self) -> str:
        """What tells it apart from everything else, also from what it was before its module changed."""
        return "\n".join((*self.group, _source(self.paper)))

    def work(self) -> object:
        """What it finds, by name."""
        return checks(self.paper)[self.name](**json.loads(self.arguments))


class Task(Protocol):
    """What runs: one of the above, or a comparison with a recording (`simgpu.papers.recordings_tasks`)."""

    @property
    def group(self) -> tuple[str, ...]:
        """What runs together, since it loads the same."""

    @property
    def key(self) -> str:
        """What tells it apart from everything else."""

    def work(self) -> object:
        """What it finds, as plain data."""


def checks(paper: str) -> Mapping[str, Any]:
    """A paper's checks by name."""
    found: Mapping[str, Any] = import_module(f"simgpu.papers.checks.{paper}").CHECKS
    return found


@lru_cache
def _source(paper: str) -> str:
    """A hash of the modules that a paper's checks stand in."""
    folder = Path(str(files("simgpu.papers") / "checks"))
    found = hashlib.sha256()
    for path in sorted((*folder.glob(f"{paper}*.py"), folder / "results.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _felt(study: str, changes: str, network: str, run: str = "") -> str:
    """As `narrowed`, but all changes where other runs without theirs do not fit the rest, as budgets a smaller node."""
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
    """A study with its changes and one of its traces, which is made once for all that runs in this process."""
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
    """A study with its changes and all its traces."""
    from simgpu.experiments.scenarios.load_study import load_study

    return load_study(study, json.loads(changes), library=_library())


@lru_cache
def outlined(study: str, changes: str) -> Study:
    """The same without its traces, which tells what must run."""
    from simgpu.experiments.scenarios.load_study import outline_study

    # What the study itself puts beside its numbers is no matter here, and may be of traces that are left out.
    return outline_study(study, {**json.loads(changes), "published": []})


def restored(cell: Mapping[str, Any]) -> StudyCell:
    """The numbers of a run from what `Cell.work` gave, or from the same read back from JSON."""
    from simgpu.experiments.study_measures import StudyCell

    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in cell.items()}
    return StudyCell(**values)


@dataclass(frozen=True, slots=True)
class Done:
    """A group that has run. found: by key; failed: why, by key, where something broke or is missing."""

    group: int
    found: dict[str, object]
    failed: dict[str, str]


@dataclass(frozen=True)
class Groups:
    """Tasks in groups; a process runs a group at a time."""

    groups: tuple[tuple[Task, ...], ...]

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Groups:
        """The tasks without those given twice; in the order in which their groups first appear."""
        found: dict[tuple[str, ...], dict[Task, None]] = {}
        for task in tasks:
            found.setdefault(task.group, {})[task] = None
        return cls(tuple(map(tuple, found.values())))

    def points(self) -> Groups:
        """What a process is given."""
        return self


def run_group(groups: Groups, number: int) -> Done:
    """Runs the tasks of a group, whatever becomes of each."""
    found: dict[str, object] = {}
    failed: dict[str, str] = {}
    for task in groups.groups[number]:
        try:
            found[task.key] = _plain(task.work())
        except (SimgpuError, MissingExtraError) as error:
            failed[task.key] = str(error)
        except Exception as error:
            failed[task.key] = f"{type(error).__name__}: {error}"
    return Done(number, found, failed)


def _plain(found: object) -> object:
    """What was found, as it is. Raises `ValueError` or `TypeError` for what cannot be kept, such as no number."""
    json.dumps(found, allow_nan=False)
    return found
