"""Compares scenarios with the timings stored in a folder, for `simgpu check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simgpu.errors import InputError, Problem
from simgpu.experiments.outputs import check_folder, folder_name
from simgpu.experiments.regression.difference import TimingDifference, compare_timings
from simgpu.experiments.regression.store import foreign, read_timings, write_timings
from simgpu.experiments.regression.timings import Timings, timings_of
from simgpu.experiments.regression.tolerances import Tolerance, read_tolerances

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.model import Scenario

#: The result of a check (`same` includes differences within tolerances), or how an update changed stored timings.
Verdict = Literal["same", "differs", "not stored", "new", "changed", "replaced"]


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of one scenario.

    folder: folder of its stored timings
    difference: difference of the current from the stored timings; None if there are none or they cannot be read
    """

    name: str
    folder: Path
    verdict: Verdict
    difference: TimingDifference | None

    @property
    def failed(self) -> bool:
        """Whether the check failed."""
        return self.verdict in ("differs", "not stored")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        difference = self.difference.to_dict() if self.difference is not None and not self.difference.empty else None
        return {"name": self.name, "verdict": self.verdict, "difference": difference}


@dataclass(frozen=True, slots=True)
class _Case:
    scenario: Scenario
    folder: Path
    stored: Timings | None
    damaged: bool


def check_scenarios(
    scenarios: Sequence[Scenario],
    against: Path,
    *,
    overrides: Mapping[str, object] | None = None,
    tolerances: Sequence[Tolerance] = (),
    update: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Iterator[CheckOutcome]:
    """Run scenarios one after the other, and compare each with the timings stored in a folder.

    against: a folder with a subfolder for each scenario, named after it, and an optional `tolerances.yaml`
    overrides: the overrides that the scenarios were loaded with; stored with the timings
    tolerances: take precedence over those of the folder
    update: store the current timings if anything differs, even within tolerances
    progress: called before each run

    Raises `InputError`, before anything runs, for invalid tolerances or stored files (an update replaces invalid
    files), and if two scenarios have the same name; then the errors of the runs.
    """
    changes = dict(overrides or {})
    every = (*read_tolerances(against), *tolerances)
    for case in _cases(scenarios, against, update):
        yield _checked(case, changes, every, update, progress)


def _checked(
    case: _Case,
    overrides: Mapping[str, object],
    tolerances: Sequence[Tolerance],
    update: bool,
    progress: Callable[[str], None] | None,
) -> CheckOutcome:
    name = case.scenario.name

    def say(what: str) -> None:
        if progress:
            progress(f"{name}: {what}")

    if case.stored is None and not update:
        return CheckOutcome(name, case.folder, "not stored", None)
    now = timings_of(case.scenario, overrides=overrides, progress=say)
    difference = None if case.stored is None else compare_timings(case.stored, now, () if update else tolerances)
    if not update:
        assert difference is not None
        return CheckOutcome(name, case.folder, "differs" if difference.counts else "same", difference)
    if difference is not None and difference.empty:
        return CheckOutcome(name, case.folder, "same", difference)
    write_timings(now, case.folder)
    verdict: Verdict = "changed" if difference is not None else "replaced" if case.damaged else "new"
    return CheckOutcome(name, case.folder, verdict, difference)


def _cases(scenarios: Sequence[Scenario], against: Path, update: bool) -> list[_Case]:
    """Read all stored timings before the first run. Raises `InputError` with all problems."""
    if not update and not against.is_dir():
        what = "is a file" if against.exists() else "no such folder"
        raise InputError.single(against, "", what, "give the folder of stored timings, or create it with --update")
    problems: list[Problem] = []
    cases: list[_Case] = []
    for scenario in scenarios:
        try:
            case = _case(scenario, against, update)
        except InputError as error:
            problems += error.problems
            continue
        if any(other.folder == case.folder for other in cases):
            what = f"two scenarios are called {scenario.name!r}"
            problems.append(Problem("", "name", what, "check each once, or give them different names"))
        cases.append(case)
    if problems:
        raise InputError(dict.fromkeys(problems))
    return cases


def _case(scenario: Scenario, against: Path, update: bool) -> _Case:
    name = folder_name(scenario.name)
    if not name:
        what = f"{scenario.name!r} cannot be converted to a folder name"
        raise InputError.single("", "name", what, "use letters or digits in the scenario's name")
    folder = against / name
    if not folder.exists():
        if update:
            check_folder(folder, foreign)
        return _Case(scenario, folder, None, False)
    if update:
        check_folder(folder, foreign)
    try:
        return _Case(scenario, folder, read_timings(folder), False)
    except InputError:
        if not update:
            raise
        return _Case(scenario, folder, None, True)
