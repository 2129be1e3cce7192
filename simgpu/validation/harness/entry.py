"""`record_cases`: the one entry to the harness; imports PyTorch only when called."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from simgpu.errors import InputError, MissingExtraError, Problem
from simgpu.experiments.outputs import check_folder
from simgpu.trace.model import OutputLife
from simgpu.validation.devices import Device, open_device
from simgpu.validation.folder import case_folders, foreign_files, read_case, write_case, write_machine
from simgpu.validation.harness.cases import CasePlan
from simgpu.validation.measured import Case, MeasuredMachine, Recording
from simgpu.validation.recording_files import MACHINE_FILE, read_machine

DEFAULT_REPETITIONS = 20
DEFAULT_WARMUP = 5


@dataclass(frozen=True, slots=True)
class Recorded:
    """What came of it: the cases asked for, and which of them could not be recorded at all, with the reason."""

    recording: Recording
    left_out: Mapping[str, str]


def record_cases(
    folder: str | Path,
    plans: Sequence[CasePlan],
    *,
    device: str = "cuda",
    repetitions: int = DEFAULT_REPETITIONS,
    warmup: int = DEFAULT_WARMUP,
    seed: int = 0,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Recorded:
    """Measure a machine and record cases on it, into a folder in which each case appears when it is done.

    folder: of a recording; new, empty, or one of the same machine. Its machine is not measured again, and its cases
    that were made in the same way are kept, so that a recording that was interrupted goes on.
    device: ``cuda``, ``cuda:N`` or ``cpu``. repetitions: timed steps. warmup: steps before them, at least one. seed: of
    weights and data. force: measure the machine again and make the cases anew. say: told what is being done.

    What is changed of the process meanwhile on a CPU is told by `simgpu.validation.harness.session.conditions`.

    A method that finds too little memory for a case is told in `simgpu.validation.measured.Case.absent`; a case whose
    trace does is left out.

    Raises `InputError` for wrong arguments, a device that is not there, a folder that cannot be written, or holds
    another machine's recording or cases made in another way, and where a model cannot be run; `MissingExtraError`
    without PyTorch.

    >>> record_cases("mine", [], repetitions=0)
    Traceback (most recent call last):
    simgpu.errors.InputError: validate: repetitions: 0 is not a number of steps; give a whole number >= 1
    """
    target = Path(folder)
    _check_counts({"repetitions": repetitions, "warmup": warmup}, seed)
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("running models on a device", "torch", "record")
    check_folder(target, foreign_files)
    _check_machine(target, () if not force else [plan.name for plan in plans])
    there = {} if force else _cases_there(target, plans, repetitions, warmup, seed)
    with _opened(device) as opened:
        from simgpu.validation.harness.session import CaseSession, conditions
        from simgpu.validation.timelines.recording import warm_up_profiler

        with conditions(opened) as settings:
            warm_up_profiler(opened)
            machine = _machine(target, opened, settings, force, say)
            cases, left_out = [], {}
            for plan in plans:
                if plan.name in there:
                    say(f"{plan.name}: there already")
                    cases.append(there[plan.name])
                    continue
                result = CaseSession(plan, opened, repetitions, warmup, seed, say).run()
                if isinstance(result, str):
                    left_out[plan.name] = result
                    continue
                write_case(result, target)
                cases.append(result)
    return Recorded(Recording(target.resolve().name, machine, tuple(cases)), left_out)


def _check_machine(folder: Path, anew: Collection[str]) -> None:
    """`InputError` where cases stay that were recorded on nobody knows which machine. anew: cases that do not stay."""
    if not folder.is_dir() or (folder / MACHINE_FILE).exists():
        return
    for place in case_folders(folder):
        if place.name not in anew:
            what = f"holds the case {place.name}, and no {MACHINE_FILE} that tells of its machine"
            raise InputError.single(folder, "", what, f"put {MACHINE_FILE} back, or choose another folder")


def _check_counts(counts: Mapping[str, object], seed: object) -> None:
    problems = [
        Problem("validate", name, f"{count!r} is not a number of steps", "give a whole number >= 1")
        for name, count in counts.items()
        if type(count) is not int or count < 1
    ]
    if type(seed) is not int or seed < 0:
        problems.append(Problem("validate", "seed", f"{seed!r} is not a seed", "give a whole number >= 0"))
    if problems:
        raise InputError(problems)


@contextmanager
def _opened(name: str) -> Iterator[Device]:
    try:
        device = open_device(name)
    except InputError as error:
        remedy = "run it where there is one, or try it on this machine with --device cpu --small"
        raise InputError(
            replace(problem, remedy=remedy) if name.startswith("cuda") else problem for problem in error.problems
        ) from None
    try:
        yield device
    finally:
        device.close()


def _cases_there(folder: Path, plans: Sequence[CasePlan], repetitions: int, warmup: int, seed: int) -> dict[str, Case]:
    """The cases that need not be recorded again, by name; raises `InputError` where one was made in another way."""
    result, problems = {}, []
    for plan in plans:
        place = folder / plan.name
        if not place.exists():
            continue
        case = read_case(place)
        if _is_as_planned(case, plan, repetitions, warmup, seed):
            result[plan.name] = case
        else:
            what = "holds a case that was made with other settings or numbers of steps"
            problems.append(Problem(str(place), "", what, "choose another folder, or make it again with --force"))
    if problems:
        raise InputError(problems)
    return result


def _is_as_planned(case: Case, plan: CasePlan, repetitions: int, warmup: int, seed: int) -> bool:
    runs = case.runs.items()
    return (
        case.setup == plan.setup(seed, warmup)
        and case.trace.info.output is OutputLife.RELEASED
        and all(run.settings == plan.settings(method) for method, run in runs)
        and all(len(run.step_ns) == repetitions for _, run in runs)
    )


def _machine(
    folder: Path, device: Device, settings: Mapping[str, str], force: bool, say: Callable[[str], None]
) -> MeasuredMachine:
    """As it was measured before, or now; raises `InputError` where the folder is of another one."""
    from simgpu.validation.harness.machine import measure_machine, versions

    file = folder / MACHINE_FILE
    before = read_machine(file) if file.exists() else None
    if before is not None:
        _require_same(file, before, {"device": device.name, **versions(device), **settings})
        if not force:
            return before
    say("measuring copies and launches")
    machine = measure_machine(device, settings=settings)
    write_machine(machine, folder)
    return machine


def _require_same(file: Path, before: MeasuredMachine, now: Mapping[str, str]) -> None:
    then = {"device": before.device, **before.versions, **before.settings}
    problems = [
        Problem(
            str(file),
            name,
            f"the recording there was made with '{then.get(name, 'none')}', and here is '{now.get(name, 'none')}'",
            "choose another folder",
        )
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]
    if problems:
        raise InputError(problems)
