"""What came of a comparison: errors of each run, the mean, the worst, and the aims.

What counts: the managed runs. The plain run's step is what kernels were calibrated to, so that its error is none by
construction; it is shown and never counted. Of its peak memory only what is held when a step begins is calibrated; it
counts, as its bytes do.
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
from simgpu.validation.calibration import Calibration, at_once, duplex_of
from simgpu.validation.measured import MeasuredMachine, MeasuredRun, Method
from simgpu.validation.timelines.comparison import TimelineComparison, parting_text, side_by_side

if TYPE_CHECKING:
    import pandas as pd


class Quantity(StrEnum):
    """What is compared, by its name in `Numbers`."""

    STEP = "step_ns"
    PEAK = "peak_bytes"
    OUT = "d2h_bytes"
    IN = "h2d_bytes"


class Aim(NamedTuple):
    """How far off a quantity may be: on average over the runs that count (None: not asked), and in each of them."""

    mean: float | None
    worst: float


#: What is aimed at; bytes are told, and nothing is asked of them.
AIMS: Mapping[Quantity, Aim] = {Quantity.STEP: Aim(0.05, 0.10), Quantity.PEAK: Aim(None, 0.02)}


#: Steps that lie further apart than this, as a share of their median, tell little of how wrong a simulation is.
STEADY = 0.05


class Numbers(NamedTuple):
    """What is compared of a run, measured or simulated.

    step_ns: of an iteration. peak_bytes: the most device memory that was in use at once, as the allocator rounds it.
    d2h_bytes, h2d_bytes: copied to and from the host in one iteration.
    """

    step_ns: int
    peak_bytes: int
    d2h_bytes: int
    h2d_bytes: int

    @classmethod
    def measured(cls, run: MeasuredRun) -> Numbers:
        """Those of a measured run; the step that counts is the median."""
        return cls(run.median_ns, run.peak_bytes, run.d2h_bytes, run.h2d_bytes)


@dataclass(frozen=True, slots=True)
class Counterpart:
    """A simulated run: its numbers and everything that happened, or why there are none.

    failure: ``out of memory`` or ``refused`` where it has no result, and why: in words.
    """

    policy: str
    parameters: Mapping[str, Any]
    numbers: Numbers | None = None
    result: Result | None = None
    failure: str = ""
    why: str = ""


def relative_error(simulated: int, measured: int) -> float:
    """Simulated less measured over measured; infinite where something was simulated and nothing measured.

    >>> relative_error(110, 100), relative_error(0, 0), relative_error(1, 0)
    (0.1, 0.0, inf)
    """
    if measured:
        return (simulated - measured) / measured
    return math.inf if simulated else 0.0


@dataclass(frozen=True, repr=False)
class ComparedRun:
    """A run of a case next to its counterpart.

    counterpart: None where nothing could be calibrated (`ComparedCase.why`).
    """

    case: str
    method: Method
    run: MeasuredRun
    counterpart: Counterpart | None

    @property
    def measured(self) -> Numbers:
        """What was measured."""
        return Numbers.measured(self.run)

    @property
    def simulated(self) -> Numbers | None:
        """What was simulated, None where the counterpart came to no end."""
        return None if self.counterpart is None else self.counterpart.numbers

    @property
    def failure(self) -> str:
        """Why nothing was simulated, in a few words; empty where it was."""
        return "not calibrated" if self.counterpart is None else self.counterpart.failure

    def error(self, quantity: Quantity) -> float | None:
        """The relative error; None where nothing was simulated."""
        if self.simulated is None:
            return None
        return relative_error(getattr(self.simulated, quantity), getattr(self.measured, quantity))

    @cached_property
    def comparison(self) -> TimelineComparison | None:
        """The measured timeline next to the counterpart's, stream by stream; None where either is missing."""
        if self.counterpart is None or self.counterpart.result is None or not self.run.spans:
            return None
        return side_by_side(self.run.spans, self.counterpart.result)

    def counts(self, quantity: Quantity) -> bool:
        """Whether it is a prediction: all but the step of the plain run; of bytes, where there are any."""
        if quantity is Quantity.STEP:
            return self.method is not Method.PLAIN
        if quantity is Quantity.PEAK:
            return True
        return bool(getattr(self.measured, quantity) or (self.simulated and getattr(self.simulated, quantity)))

    @property
    def spread(self) -> float | None:
        """How far the measured steps lie apart: third less first quartile, which are steps that were measured, over the
        median (`simgpu.recorder.assemble.spread`); None of a single one."""
        between = spread(self.run.step_ns)
        return None if between is None or not self.run.median_ns else between / self.run.median_ns

    @property
    def notes(self) -> tuple[str, ...]:
        """What the counterpart's policy says of its plan, such as that the trace does not tell what autograd saved."""
        return () if self.counterpart is None or self.counterpart.result is None else self.counterpart.result.notes


@dataclass(frozen=True, repr=False)
class ComparedCase:
    """A model at a batch size: what it was simulated with, and its runs, plain first.

    calibration: None where there is none, and `why` says for what reason. absent: methods that it could not be run
    under on the device, and why not.
    """

    name: str
    model: str
    batch: int
    calibration: Calibration | None
    runs: tuple[ComparedRun, ...]
    absent: Mapping[Method, str]
    why: str = ""

    def __getitem__(self, method: Method | str) -> ComparedRun:
        """The run under a method; `KeyError` where there is none."""
        for each in self.runs:
            if each.method == method:
                return each
        raise KeyError(method)


@dataclass(frozen=True)
class Summary:
    """Errors of a quantity over the runs that count.

    compared: how many. mean, worst: of the errors without their signs, None where nothing was compared. worst_run:
    where the worst is. failed: runs that were measured, should count, and could not be simulated. as_plain: the mean
    error of taking what the plain run of the same case measured for what a managed run would; None where nobody would.
    """

    quantity: Quantity
    compared: int
    mean: float | None
    worst: float | None
    worst_run: ComparedRun | None
    failed: tuple[ComparedRun, ...]
    as_plain: float | None = None

    @property
    def aim(self) -> Aim | None:
        """What is aimed at, None for a quantity of which nothing is asked."""
        return AIMS.get(self.quantity)

    @property
    def met(self) -> bool | None:
        """Whether the aim is met, by every run that was measured; None where nothing was compared, or asked."""
        if self.aim is None or self.mean is None or self.worst is None:
            return None
        mean = self.aim.mean is None or self.mean <= self.aim.mean
        return mean and self.worst <= self.aim.worst and not self.failed


@dataclass(frozen=True, repr=False)
class Validation:
    """A recording next to its simulation. `frame` has one row a run.

    name: of the recording.
    """

    name: str
    machine: MeasuredMachine
    cases: tuple[ComparedCase, ...]

    @property
    def stand_in(self) -> bool:
        """Whether a CPU stood in for the GPU, so that nothing here tells of any GPU."""
        return self.machine.kind != "cuda"

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        """All runs, case by case."""
        return tuple(run for case in self.cases for run in case.runs)

    def __getitem__(self, name: str) -> ComparedCase:
        """A case by its name; `KeyError`, with their names, for one that is not among these."""
        for each in self.cases:
            if each.name == name:
                return each
        raise KeyError(f"{name} is none of {', '.join(each.name for each in self.cases)}")

    @cached_property
    def summaries(self) -> Mapping[Quantity, Summary]:
        """Mean and worst of each quantity."""
        return {
            quantity: replace(_summary(quantity, self.runs), as_plain=_as_plain(quantity, self.cases))
            for quantity in Quantity
        }

    @property
    def in_order(self) -> tuple[int, int]:
        """In how many runs every stream did the same in the same order, and of how many with both timelines."""
        result = [run.comparison.is_same_order for run in self.runs if run.comparison is not None]
        return sum(result), len(result)

    def frame(self) -> pd.DataFrame:
        """One row a run: case, model, batch, method, settings, failure, steps, spread, whether its step is calibrated,
        and of each quantity what was measured, what was simulated, and the relative error."""
        import pandas as pd

        return pd.DataFrame([_row(case, run) for case in self.cases for run in case.runs])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON; of timelines, where they part."""
        return {
            "recording": self.name,
            "stand_in": self.stand_in,
            "machine": asdict(self.machine),
            "link": _link(self),
            "cases": [_case(case) for case in self.cases],
            "in_order": dict(zip(("same", "of"), self.in_order, strict=True)),
            "summary": {str(quantity): _told(summary) for quantity, summary in self.summaries.items()},
        }


def _summary(quantity: Quantity, runs: Collection[ComparedRun]) -> Summary:
    counted = [run for run in runs if run.counts(quantity)]
    errors = [(abs(error), run) for run in counted if (error := run.error(quantity)) is not None]
    failed = tuple(run for run in counted if run.simulated is None)
    if not errors:
        return Summary(quantity, 0, None, None, None, failed)
    worst, where = max(errors, key=lambda pair: pair[0])
    return Summary(quantity, len(errors), fmean(error for error, _ in errors), worst, where, failed)


def _as_plain(quantity: Quantity, cases: Iterable[ComparedCase]) -> float | None:
    if quantity not in AIMS:
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
        | {
            "settings": dict(run.run.settings),
            "why": run.counterpart.why if run.counterpart else "",
            "notes": list(run.notes),
        }
        | {"timeline": None if run.comparison is None else parting_text(run.comparison)}
        for run in case.runs
    ]
    return {
        "name": case.name,
        "held_bytes": None if case.calibration is None else case.calibration.held,
        "calibrated": None if case.calibration is None else case.calibration.times_recorded,
        "why": case.why,
        "absent": {str(method): why for method, why in case.absent.items()},
        "runs": runs,
    }


def _link(validation: Validation) -> dict[str, Any]:
    """What the model of the link is, and what it gives both ways at once."""
    duplex = duplex_of(validation.machine.copies)
    both_d2h, both_h2d = at_once(validation.machine.copies, duplex)
    return {"duplex": str(duplex), "model_both_d2h": both_d2h, "model_both_h2d": both_h2d}


def _told(summary: Summary) -> dict[str, Any]:
    where = summary.worst_run
    return {
        "compared": summary.compared,
        "mean": _finite(summary.mean),
        "worst": _finite(summary.worst),
        "worst_run": None if where is None else {"case": where.case, "method": str(where.method)},
        "as_plain": _finite(summary.as_plain),
        "failed": [{"case": run.case, "method": str(run.method)} for run in summary.failed],
        "aim": None if summary.aim is None else summary.aim._asdict(),
        "met": summary.met,
    }
