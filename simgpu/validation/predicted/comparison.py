"""Predicts the measured runs, and counts errors and verdicts by one rule for all estimators."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from simgpu.errors import MissingExtraError
from simgpu.memory.caching.replay import replay
from simgpu.memory.caching.requested import allocation_trace
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.recorder.requests import record_requests
from simgpu.validation.predicted.measured import ESTIMATORS, Estimate, MeasuredPeak

OURS = "simgpu"
#: Iterations of the measured loops, which hold the model's output by a name.
_ITERATIONS = 4


@dataclass(frozen=True, slots=True)
class PredictedPeak:
    """A measured run, and what simgpu predicts for it. allocated: peak of allocated bytes."""

    measured: MeasuredPeak
    predicted: Estimate
    allocated: int

    def estimate(self, estimator: str) -> Estimate | None:
        """The estimate of simgpu or of another estimator; None if it gave none."""
        return self.predicted if estimator == OURS else self.measured.estimates.get(estimator)

    def error(self, estimator: str) -> float | None:
        """The relative error of the peak; None for a run that ran out of memory, whose peak is not known."""
        estimate = self.estimate(estimator)
        return None if estimate is None or self.measured.oom else estimate.bytes / self.measured.peak - 1


@dataclass(frozen=True, slots=True)
class EstimatorSummary:
    """One estimator over several runs.

    error: median of the absolute relative errors of runs that fit, None without one. right: verdicts, fits or OOM, that
    were right. verdicts: runs with an estimate.
    """

    estimator: str
    error: float | None
    right: int
    verdicts: int


def predict_peak(run: MeasuredPeak, progress: Callable[[str], None] = lambda _: None) -> PredictedPeak:
    """Predicts a run: its peak of reserved bytes with the memory that the allocator had."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("predicting the measured runs", "torch", "record")
    from simgpu.validation.predicted.networks import NETWORKS, OPTIMIZERS

    program = record_requests(
        NETWORKS[run.model],
        batch=run.batch,
        gpu=run.gpu,
        optimizer=OPTIMIZERS[run.optimizer],
        iterations=_ITERATIONS,
        zero_grad=run.zero_grad or "start",
        hold_output=True,
        progress=progress,
    )
    again = replay(allocation_trace(program), AllocatorSettings(), run.capacity)
    counts = again.allocator.statistics
    return PredictedPeak(run, Estimate(counts.reserved_peak, again.failed is not None), counts.allocated_peak)


def summaries(runs: Iterable[PredictedPeak]) -> list[EstimatorSummary]:
    """Every estimator over the same runs, simgpu first."""
    listed = list(runs)
    return [_summary(estimator, listed) for estimator in (OURS, *ESTIMATORS)]


def _summary(estimator: str, runs: Sequence[PredictedPeak]) -> EstimatorSummary:
    given = [(run, estimate) for run in runs if (estimate := run.estimate(estimator)) is not None]
    errors = [abs(error) for run, _ in given if (error := run.error(estimator)) is not None]
    right = sum(estimate.oom == run.measured.oom for run, estimate in given)
    return EstimatorSummary(estimator, median(errors) if errors else None, right, len(given))
