"""Compares measured runs with their simulated counterparts.

The counterpart of a method is the policy that models what PyTorch does under that method; that of a plan is the
iteration that it makes of the plain one, with the policy that offloads what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, OutOfMemoryError, did_you_mean
from simgpu.plans.rebuilt import candidate_of
from simgpu.policies.base import no_progress
from simgpu.simulation.run import simulate
from simgpu.timeline.streams import OWN_ENGINES
from simgpu.torch.plan import Plan
from simgpu.validation.calibration import Calibration, calibrate
from simgpu.validation.measured import Case, MeasuredMachine, Method, Recording
from simgpu.validation.outcome import ComparedCase, ComparedRun, Counterpart, Numbers, Validation


def compare_recording(
    recording: Recording | str | Path,
    *,
    cases: Collection[str] = (),
    methods: Collection[Method | str] = (),
    progress: Callable[[str], None] = no_progress,
) -> Validation:
    """Simulates the counterpart of every run of a recording, and compares it with the run.

    recording: a loaded recording, the name of a shipped one, or a folder.
    cases, methods: the selection, all by default. The plain run is always used, to calibrate kernels.

    Raises `InputError` for a recording that cannot be read, and for cases or methods that it does not have.
    """
    if not isinstance(recording, Recording):
        from simgpu.validation.folder import load_recording

        recording = load_recording(recording)
    _check("case", cases, [case.name for case in recording.cases])
    known = [method for method in Method if any(method in (*case.runs, *case.absent) for case in recording.cases)]
    _check("method", methods, known)
    wanted = [method for method in known if not methods or method in methods]
    chosen = [case for case in recording.cases if not cases or case.name in cases]
    chosen.sort(key=lambda case: (case.model, case.batch))
    compared = tuple(_compared(recording.machine, case, wanted, progress) for case in chosen)
    return Validation(recording.name, recording.machine, compared)


def _compared(
    machine: MeasuredMachine, case: Case, wanted: Collection[Method], progress: Callable[[str], None]
) -> ComparedCase:
    calibration, reason = _calibration(machine, case)
    runs = []
    for method in wanted:
        if method in case.runs:
            progress(f"{case.name}, {method}")
            run = case.runs[method]
            counterpart = (
                None if calibration is None else simulate_counterpart(calibration, method, run.settings, run.plan)
            )
            runs.append(ComparedRun(case.name, method, run, counterpart))
    absent = {method: text for method, text in case.absent.items() if method in wanted}
    return ComparedCase(case.name, case.model, case.batch, calibration, tuple(runs), absent, reason)


def _calibration(machine: MeasuredMachine, case: Case) -> tuple[Calibration | None, str]:
    if Method.PLAIN not in case.runs:
        return None, "nothing can be calibrated without a plain run"
    try:
        return calibrate(machine, case.trace, case.runs[Method.PLAIN]), ""
    except InputError as error:
        return None, str(error)


def _check(kind: str, requested: Collection[str], known: Collection[str]) -> None:
    for name in requested:
        if name not in known:
            raise InputError.single("", kind, f"the recording has no {kind} '{name}'", did_you_mean(str(name), known))


#: The counterpart of each method but a plan; its parameters are the method's settings.
POLICY_OF: Mapping[Method, str] = {
    Method.PLAIN: "none",
    Method.CHECKPOINT: "checkpoint",
    Method.SAVE_ON_CPU: "save_on_cpu",
    Method.ASYNC_OFFLOAD: "async_offload",
}
#: Methods under which the host waits for every copy.
_BLOCKING = (Method.SAVE_ON_CPU,)


def simulate_counterpart(
    calibration: Calibration, method: Method, settings: Mapping[str, Any], plan: Plan | None = None
) -> Counterpart:
    """Simulates a method's counterpart with the given settings; that of `Method.PLAN` with its plan.

    Its peak includes the reserved memory (`Calibration.reserved`), like the measured peak.

    >>> from simgpu.trace.chain import chain
    >>> from simgpu.validation.calibration import calibrate
    >>> from simgpu.validation.measured import Copies, MeasuredMachine, MeasuredRun
    >>> machine = MeasuredMachine("a GPU", "cuda", 2**30, 512, 2, Copies(9, 9, 9, 9, 0, 0), 5, "a CPU", "2026-01-31")
    >>> plain = MeasuredRun(Method.PLAIN, {}, (30,), peak_bytes=2048, initial_bytes=1536, d2h_bytes=0, h2d_bytes=0)
    >>> simulate_counterpart(calibrate(machine, chain([5], [10], [1000]), plain), Method.PLAIN, {}).numbers
    Numbers(step_ns=30, peak_bytes=1536, d2h_bytes=0, h2d_bytes=0)
    """
    node = calibration.blocking_node if method in _BLOCKING else calibration.node
    try:
        if plan is None:
            result = simulate(calibration.trace, node, POLICY_OF[method], parameters=settings)
        else:
            candidate = candidate_of(plan, calibration.trace)
            result = simulate(candidate.planned.trace, node, candidate.policy)
    except OutOfMemoryError as error:
        return Counterpart(failure="out of memory", reason=str(error))
    except InputError as error:
        return Counterpart(failure="refused", reason=str(error))
    metrics = result.metrics
    peak = metrics.device_peak_used_bytes + calibration.reserved
    copied = (metrics.copied_bytes[way] for way in OWN_ENGINES)
    return Counterpart(Numbers(result.iteration_ns, peak, *copied), result)
