"""Measured runs beside their simulated twins."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from simgpu.errors import InputError, did_you_mean
from simgpu.policies.base import no_progress
from simgpu.validation.calibration import Calibration, calibrate
from simgpu.validation.measured import Case, MeasuredMachine, Method, Recording
from simgpu.validation.outcome import ComparedCase, ComparedRun, Validation
from simgpu.validation.twins import simulate_twin


def compare_recording(
    recording: Recording | str | Path,
    *,
    cases: Collection[str] = (),
    methods: Collection[Method | str] = (),
    progress: Callable[[str], None] = no_progress,
) -> Validation:
    """Simulates the twin of every run of a recording, and compares.

    recording: one in memory, the name of a shipped one, or a folder. cases, methods: only these; all by default, by
    model and batch. The plain run is read in any case, since kernels are calibrated to it. Raises `InputError` for a
    recording that cannot be read, and for cases or methods that it does not have.
    """
    if not isinstance(recording, Recording):
        from simgpu.validation.folder import load_recording

        recording = load_recording(recording)
    _check("case", cases, [case.name for case in recording.cases])
    known = [method for method in Method if any(method in (*case.runs, *case.absent) for case in recording.cases)]
    _check("method", methods, known)
    wanted = [method for method in known if not methods or method in methods]
    found = []
    for case in sorted(recording.cases, key=lambda case: (case.model, case.batch)):
        if not cases or case.name in cases:
            found.append(_compared(recording.machine, case, wanted, progress))
    return Validation(recording.name, recording.machine, tuple(found))


def _compared(
    machine: MeasuredMachine, case: Case, wanted: Collection[Method], progress: Callable[[str], None]
) -> ComparedCase:
    calibration, why = _calibration(machine, case)
    runs = []
    for method in wanted:
        if method in case.runs:
            progress(f"{case.name}, {method}")
            run = case.runs[method]
            twin = None if calibration is None else simulate_twin(calibration, method, run.settings)
            runs.append(ComparedRun(case.name, method, run, twin))
    absent = {method: reason for method, reason in case.absent.items() if method in wanted}
    return ComparedCase(case.name, case.model, case.batch, calibration, tuple(runs), absent, why)


def _calibration(machine: MeasuredMachine, case: Case) -> tuple[Calibration | None, str]:
    if Method.PLAIN not in case.runs:
        return None, "nothing can be calibrated without a plain run"
    try:
        return calibrate(machine, case.trace, case.runs[Method.PLAIN]), ""
    except InputError as error:
        return None, str(error)


def _check(what: str, asked: Collection[str], known: Collection[str]) -> None:
    for name in asked:
        if name not in known:
            raise InputError.single("", what, f"the recording has no {what} '{name}'", did_you_mean(str(name), known))
