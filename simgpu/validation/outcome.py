"""Errors of each run, their mean and worst, and the targets.

The plain run's step time is excluded: kernels are calibrated to it, so its error is zero by construction. Its peak
memory is included: only the memory allocated at the start of a step is calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from simgpu.recorder.assemble import spread
from simgpu.simulation.result import Result
from simgpu.validation.calibration import Calibration, bidirectional_bandwidths, duplex_of
from simgpu.validation.measured import MeasuredMachine, MeasuredRun, Method
from simgpu.validation.timelines.comparison import TimelineComparison, compare_timelines, divergence_text

if TYPE_CHECKING:
    import pandas as pd


class Quantity(StrEnum):
    """A compared quantity; the value is its field of `Numbers`."""

    STEP = "step_ns"
    PEAK = "peak_bytes"
    OUT = "d2h_bytes"
    IN = "h2d_bytes"


class Target(NamedTuple):
    """Largest allowed error: `mean` over all included runs (None without limit), `worst` of each run."""

    mean: float | None
    worst: float


#: Copied bytes are reported and have no target.
TARGETS: Mapping[Quantity, Target] = {Quantity.STEP: Target(0.05, 0.10), Quantity.PEAK: Target(None, 0.02)}


#: Largest spread of the steps of a steady run.
STEADY = 0.05


class Numbers(NamedTuple):
    """The compared numbers of a run, measured or simulated, for one iteration.

    step_ns: step time.
    peak_bytes: peak device memory with the allocator's rounding.
    d2h_bytes, h2d_bytes: copied to and from the host.
    """

    step_ns: int
    peak_bytes: int
    d2h_bytes: int
    h2d_bytes: int

    @classmethod
    def measured(cls, run: MeasuredRun) -> Numbers:
        """The numbers of a measured run, with its median step."""
        return cls(run.median_ns, run.peak_bytes, run.d2h_bytes, run.h2d_bytes)


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The simulated counterpart of a measured run: its numbers and result, or its failure.

    failure: ``out of memory`` or ``refused`` if it has no result.
    reason: the error's message.
    """

    numbers: Numbers | None = None
    result: Result | None = None
    failure: str = ""
    reason: str = ""


def relative_error(simulated: int, measured: int) -> float:
    """(simulated - measured) / measured; infinite if only measured is 0.

    >>> relative_error(110, 100), relative_error(0, 0), relative_error(1, 0)
    (0.1, 0.0, inf)
    """
    if measured:
        return (simulated - measured) / measured
    return math.inf if simulated else 0.0


@dataclass(frozen=True, repr=False)
class ComparedRun:
    """A measured run and its counterpart, which is None if its case was not calibrated (`ComparedCase.reason`)."""

    case: str
    method: Method
    run: MeasuredRun
    counterpart: Counterpart | None

    @property
    def measured(self) -> Numbers:
        """The measured numbers."""
        return Numbers.measured(self.run)

    @property
    def simulated(self) -> Numbers | None:
        """The simulated numbers; None if the run could not be simulated."""
        return None if self.counterpart is None else self.counterpart.numbers

    @property
    def failure(self) -> str:
        """The reason why it was not simulated, in a few words; empty if it was."""
        return "not calibrated" if self.counterpart is None else self.counterpart.failure

    def error(self, quantity: Quantity) -> float | None:
        """The relative error; None if the run could not be simulated."""
        if self.simulated is None:
            return None
        return relative_error(getattr(self.simulated, quantity), getattr(self.measured, quantity))

    @cached_property
    def timelines(self) -> TimelineComparison | None:
        """The measured and the simulated timeline, stream by stream; None if either is missing."""
        if self.counterpart is None or self.counterpart.result is None or not self.run.spans:
            return None
        return compare_timelines(self.run.spans, self.counterpart.result)

    def counts(self, quantity: Quantity) -> bool:
        """Whether the error is included; excluded: the plain run's step, and copied bytes in a run without copies."""
        if quantity is Quantity.STEP:
            return self.method is not Method.PLAIN
        if quantity is Quantity.PEAK:
            return True
        return bool(getattr(self.measured, quantity) or (self.simulated and getattr(self.simulated, quantity)))

    @property
    def spread(self) -> float | None:
        """Interquartile range of the measured steps over their median; None for a single step."""
        iqr = spread(self.run.step_ns)
        return None if iqr is None or not self.run.median_ns else iqr / self.run.median_ns

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the simulated result, such as that saved tensors are derived and not recorded."""
        return () if self.counterpart is None or self.counterpart.result is None else self.counterpart.result.notes


@dataclass(frozen=True, repr=False)
class ComparedCase:
    """A model at one batch size: its calibration, and its runs, plain first.

    calibration: None if it could not be calibrated.
    absent: methods without a measured run, with the reason.
    reason: why it could not be calibrated, empty if it was.
    """

    name: str
    model: str
    batch: int
    calibration: Calibration | None
    runs: tuple[ComparedRun, ...]
    absent: Mapping[Method, str]
    reason: str = ""

    def __getitem__(self, method: Method | str) -> ComparedRun:
        """The run of a method; `KeyError` if there is none."""
        for run in self.runs:
            if run.method == method:
                return run
        raise KeyError(method)


@dataclass(frozen=True)
class Summary:
    """Errors of a quantity over the included runs.

    compared: number of runs.
    mean, worst: of the errors' magnitudes, None if nothing was compared.
    worst_run: the run with the worst error.
    failed: measured runs that could not be simulated.
    plain_error: mean error of assuming the plain run's measured value for the managed runs of its case; None for a
        quantity without a target, or without managed runs.
    """

    quantity: Quantity
    compared: int
    mean: float | None
    worst: float | None
    worst_run: ComparedRun | None
    failed: tuple[ComparedRun, ...]
    plain_error: float | None = None

    @property
    def target(self) -> Target | None:
        """The target of the quantity, None if it has none."""
        return TARGETS.get(self.quantity)

    @property
    def met(self) -> bool | None:
        """Whether every measured run was simulated and the target is met; None without a target or runs."""
        if self.target is None or self.mean is None or self.worst is None:
            return None
        mean_met = self.target.mean is None or self.mean <= self.target.mean
        return mean_met and self.worst <= self.target.worst and not self.failed


@dataclass(frozen=True, repr=False)
class Validation:
    """A recording compared with its simulation; `name` is the recording's."""

    name: str
    machine: MeasuredMachine
    cases: tuple[ComparedCase, ...]

    @property
    def on_cpu(self) -> bool:
        """Whether it was measured on a CPU, so that no result is about a GPU."""
        return self.machine.kind != "cuda"

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        """All runs, case by case."""
        return tuple(run for case in self.cases for run in case.runs)

    def __getitem__(self, name: str) -> ComparedCase:
        """A case by its name; `KeyError` with the known names for another."""
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(f"no case {name}; known: {', '.join(case.name for case in self.cases)}")

    @cached_property
    def summaries(self) -> Mapping[Quantity, Summary]:
        """Mean and worst error of each quantity."""
        return {
            quantity: replace(_summary(quantity, self.runs), plain_error=_plain_error(quantity, self.cases))
            for quantity in Quantity
        }

    @property
    def same_order_counts(self) -> tuple[int, int]:
        """The number of runs whose streams have the measured order, and of runs with both timelines."""
        same = [run.timelines.is_same_order for run in self.runs if run.timelines is not None]
        return sum(same), len(same)

    def frame(self) -> pd.DataFrame:
        """One row per run: case, model, batch, method, settings, failure, steps, spread, calibrated (its step), and the
        measured and simulated value and the relative error of each quantity."""
        import pandas as pd

        return pd.DataFrame([_row(case, run) for case in self.cases for run in case.runs])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the first divergence of each timeline."""
        return {
            "recording": self.name,
            "on_cpu": self.on_cpu,
            "machine": asdict(self.machine),
            "link": _link(self.machine),
            "cases": [_case(case) for case in self.cases],
            "order": dict(zip(("same", "compared"), self.same_order_counts, strict=True)),
            "summary": {str(quantity): _summary_dict(summary) for quantity, summary in self.summaries.items()},
        }


def _summary(quantity: Quantity, runs: Collection[ComparedRun]) -> Summary:
    counted = [run for run in runs if run.counts(quantity)]
    errors = [(abs(error), run) for run in counted if (error := run.error(quantity)) is not None]
    failed = tuple(run for run in counted if run.simulated is None)
    if not errors:
        return Summary(quantity, 0, None, None, None, failed)
    worst, where = max(errors, key=lambda pair: pair[0])
    return Summary(quantity, len(errors), fmean(error for error, _ in errors), worst, where, failed)


def _plain_error(quantity: Quantity, cases: Iterable[ComparedCase]) -> float | None:
    if quantity not in TARGETS:
        return None
    errors = [
        abs(relative_error(getattr(plain.measured, quantity), getattr(run.measured, quantity)))
        for case in cases
        for plain in case.runs
        if plain.method is Method.PLAIN
        for run in case.runs
        if run.method is not Method.PLAIN
    ]
    return fmean(errors) if errors else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _row(case: ComparedCase, run: ComparedRun) -> dict[str, Any]:
    row: dict[str, Any] = {
        "case": case.name,
        "model": case.model,
        "batch": case.batch,
        "method": str(run.method),
        "settings": ", ".join(f"{key}={value}" for key, value in run.run.settings.items()),
        "failure": run.failure,
        "steps": len(run.run.step_ns),
        "spread": run.spread,
        "calibrated": run.method is Method.PLAIN,
    }
    for quantity in Quantity:
        row[f"measured_{quantity}"] = getattr(run.measured, quantity)
        row[f"simulated_{quantity}"] = getattr(run.simulated, quantity) if run.simulated else None
        row[f"error_{quantity}"] = run.error(quantity)
    return row


def _case(case: ComparedCase) -> dict[str, Any]:
    runs = [
        {key: value if not isinstance(value, float) else _finite(value) for key, value in _row(case, run).items()}
        | {"settings": dict(run.run.settings), "reason": run.counterpart.reason if run.counterpart else ""}
        | {"notes": list(run.notes), "timeline": None if run.timelines is None else divergence_text(run.timelines)}
        for run in case.runs
    ]
    return {
        "name": case.name,
        "reserved_bytes": None if case.calibration is None else case.calibration.reserved,
        "kernel_times": None if case.calibration is None else case.calibration.times_text,
        "reason": case.reason,
        "absent": {str(method): reason for method, reason in case.absent.items()},
        "runs": runs,
    }


def _link(machine: MeasuredMachine) -> dict[str, Any]:
    """The modelled link and its bandwidths with both directions busy."""
    duplex = duplex_of(machine.copies)
    d2h, h2d = bidirectional_bandwidths(machine.copies, duplex)
    return {"duplex": str(duplex), "modelled_bidirectional_d2h": d2h, "modelled_bidirectional_h2d": h2d}


def _summary_dict(summary: Summary) -> dict[str, Any]:
    where = summary.worst_run
    return {
        "compared": summary.compared,
        "mean": _finite(summary.mean),
        "worst": _finite(summary.worst),
        "worst_run": None if where is None else {"case": where.case, "method": str(where.method)},
        "plain_error": _finite(summary.plain_error),
        "failed": [{"case": run.case, "method": str(run.method)} for run in summary.failed],
        "target": None if summary.target is None else summary.target._asdict(),
        "met": summary.met,
    }
