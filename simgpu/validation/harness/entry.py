"""`record_cases`, the harness's entry point; imports PyTorch only when called."""

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
    """The recording of the requested cases, and the reason for each case that could not be recorded."""

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
    """Measures a machine and records cases on it; writes each case to the folder as it completes.

    An interrupted recording can be resumed: the machine is not measured again, and cases recorded with the same
    arguments are not repeated.

    folder: of the recording; new, empty, or of the same machine.
    device: ``cuda``, ``cuda:N`` or ``cpu``. `simgpu.validation.harness.session.conditions` changes settings on a CPU.
    repetitions: timed steps.
    warmup: steps before them, at least one.
    seed: of weights and data.
    force: measure the machine and record the cases again.
    say: receives progress messages.

    A method that runs out of memory, and one without a plan, is listed in `simgpu.validation.measured.Case.absent`; a
    case whose trace runs out of memory is listed in `Recorded.left_out`.

    Raises `InputError` for invalid arguments, an unavailable device, a folder that cannot be written, a folder with
    another machine's recording or with cases of other settings, and a model that cannot run; `MissingExtraError`
    without PyTorch or SciPy.

    >>> record_cases("mine", [], repetitions=0)
    Traceback (most recent call last):
    simgpu.errors.InputError: validate: repetitions: 0 is not a number of steps; give an integer >= 1
    """
    target = Path(folder)
    _check_counts({"repetitions": repetitions, "warmup": warmup}, seed)
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("running models on a device", "torch", "record")
    if importlib.util.find_spec("scipy") is None:
        raise MissingExtraError("planning", "scipy", "calibrate")
    check_folder(target, foreign_files)
    _check_machine(target, () if not force else [plan.name for plan in plans])
    recorded = {} if force else _recorded_cases(target, plans, repetitions, warmup, seed)
    with _opened(device) as opened:
        from simgpu.validation.harness.session import CaseSession, conditions
        from simgpu.validation.timelines.recording import warm_up_profiler

        with conditions(opened) as settings:
            warm_up_profiler(opened)
            machine = _machine(target, opened, settings, force, say)
            cases, left_out = [], {}
            for plan in plans:
                if plan.name in recorded:
                    say(f"{plan.name}: already recorded")
                    cases.append(recorded[plan.name])
                    continue
                result = CaseSession(plan, machine, opened, repetitions, warmup, seed, say).run()
                if isinstance(result, str):
                    left_out[plan.name] = result
                    continue
                write_case(result, target)
                cases.append(result)
    return Recorded(Recording(target.resolve().name, machine, tuple(cases)), left_out)


def _check_machine(folder: Path, replaced: Collection[str]) -> None:
    """Raises `InputError` if the folder has cases, other than `replaced`, but no description of their machine."""
    if not folder.is_dir() or (folder / MACHINE_FILE).exists():
        return
    for case_folder in case_folders(folder):
        if case_folder.name not in replaced:
            message = f"contains the case {case_folder.name}, but no {MACHINE_FILE}, the description of its machine"
            raise InputError.single(folder, "", message, f"restore {MACHINE_FILE}, or choose another folder")


def _check_counts(counts: Mapping[str, object], seed: object) -> None:
    problems = [
        Problem("validate", name, f"{count!r} is not a number of steps", "give an integer >= 1")
        for name, count in counts.items()
        if type(count) is not int or count < 1
    ]
    if type(seed) is not int or seed < 0:
        problems.append(Problem("validate", "seed", f"{seed!r} is not a seed", "give an integer >= 0"))
    if problems:
        raise InputError(problems)


@contextmanager
def _opened(name: str) -> Iterator[Device]:
    try:
        device = open_device(name)
    except InputError as error:
        remedy = "run it on a machine with a GPU, or try it here with --device cpu --small"
        raise InputError(
            replace(problem, remedy=remedy) if name.startswith("cuda") else problem for problem in error.problems
        ) from None
    try:
        yield device
    finally:
        device.close()


def _recorded_cases(
    folder: Path, plans: Sequence[CasePlan], repetitions: int, warmup: int, seed: int
) -> dict[str, Case]:
    """The cases already recorded, by name; raises `InputError` if one was recorded with other settings."""
    result, problems = {}, []
    for plan in plans:
        path = folder / plan.name
        if not path.exists():
            continue
        case = read_case(path)
        if _matches_plan(case, plan, repetitions, warmup, seed):
            result[plan.name] = case
        else:
            message = "contains a case recorded with other settings or numbers of steps"
            problems.append(Problem(str(path), "", message, "choose another folder, or record it again with --force"))
    if problems:
        raise InputError(problems)
    return result


def _matches_plan(case: Case, plan: CasePlan, repetitions: int, warmup: int, seed: int) -> bool:
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
    """The machine, from the folder or measured now; raises `InputError` if the folder describes another machine."""
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
            f"the folder was recorded with '{then.get(name, 'none')}', this machine has '{now.get(name, 'none')}'",
            "choose another folder",
        )
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]
    if problems:
        raise InputError(problems)
