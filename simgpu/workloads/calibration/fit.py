"""Fits the time model's parameters to the samples with use `fit`.

``python -m simgpu.workloads.calibration RECORDINGS -o FILE`` writes the fitted table; it requires SciPy (the extra
``calibrate``).

Each fitted sample has one residual: the logarithm of modelled over measured time, divided by `_TOLERANCE`. The residual
of one type of kernels in a recording is weighted by its fraction of the time. Parameters are fitted as logarithms and
within bounds: fractions at most 1, launch times at most 10 us. One more residual per parameter is the distance of its
logarithm from the starting value, divided by `_REGULARIZATION`; so a parameter that no sample depends on keeps its
starting value.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from math import exp, inf, log
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from simgpu.errors import MissingExtraError
from simgpu.workloads.calibration.published import load_published
from simgpu.workloads.calibration.published_samples import published_samples
from simgpu.workloads.calibration.recorded_samples import recorded_samples
from simgpu.workloads.calibration.recordings import load_recordings, require_recordings
from simgpu.workloads.calibration.samples import Sample
from simgpu.workloads.timemodel.parameters import Parameters, load_parameters

#: Units of the residuals of samples, and of a parameter's distance from its starting value (logarithms).
_TOLERANCE, _REGULARIZATION = 0.1, 1.0
_LONGEST_LAUNCH_NS = 10_000
START = Path(__file__).with_name("start.yaml")
#: Free parameters common to all architectures.
_SHARED = (
    "halves.rows",
    "halves.columns",
    "halves.depth",
    "halves.results",
    "split_depth",
    "directions.backward_data",
    "directions.backward_weights",
    "algorithms.winograd",
    "algorithms.winograd_nonfused",
    "algorithms.fft",
    "algorithms.fft_tiling",
    "kinds.pooling.forward",
    "kinds.pooling.backward",
    "kinds.reduction.backward",
    "kinds.convolution.forward",
)
#: Free parameters of each architecture.
_OWN = ("compute", "matrix", "memory", "normalization", "launch")


def calibrate(samples: Iterable[Sample], start: Parameters | None = None) -> Parameters:
    """Returns the best-fitting parameters; uses only samples with use `fit`.

    Raises `MissingExtraError` if SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise MissingExtraError("fitting the time model", "scipy", "calibrate") from None
    problem = FitProblem([sample for sample in samples if sample.fitted], start or load_parameters(START))
    result = least_squares(problem.residuals, problem.start, problem.jacobian, bounds=problem.bounds, xtol=1e-4)
    return problem.parameters(result.x)


class FitProblem:
    """The least-squares problem: maps logarithms of the free parameters (`keys`) to residuals."""

    def __init__(self, samples: Sequence[Sample], start: Parameters) -> None:
        self.samples = samples
        self.table: dict[str, Any] = start.model_dump(mode="json", by_alias=True)
        self.keys = _free(self.table, {sample.spec.architecture or "" for sample in samples})
        self.first = self.logs(start)
        upper = np.array([_upper(key) for key in self.keys])
        self.bounds = (np.full(len(upper), -inf), upper)
        self.start = np.minimum(self.first, upper - 1e-3)

    def logs(self, parameters: Parameters) -> np.ndarray:
        """The logarithms of the free parameters in a table."""
        table = parameters.model_dump(mode="json", by_alias=True)
        return np.array([log(_get(table, key)) for key in self.keys])

    def parameters(self, logs: np.ndarray) -> Parameters:
        """The table with these values; launch times are rounded to a nanosecond."""
        table = copy.deepcopy(self.table)
        for key, value in zip(self.keys, logs, strict=True):
            _put(table, key, exp(value))
        return _parameters(table)

    def residuals(self, logs: np.ndarray, chosen: Sequence[int] | None = None) -> np.ndarray:
        """Residuals of all samples, then of the parameters; or only of the samples with indices `chosen`."""
        parameters = self.parameters(logs)
        samples = self.samples if chosen is None else [self.samples[index] for index in chosen]
        errors = [
            log(sample.modelled_ns(parameters) / sample.measured_ns) / _TOLERANCE * sample.weight for sample in samples
        ]
        return (
            np.array(errors) if chosen is not None else np.concatenate([errors, (logs - self.first) / _REGULARIZATION])
        )

    def jacobian(self, logs: np.ndarray) -> np.ndarray:
        """Finite differences; a parameter of one architecture is evaluated only for that architecture's samples."""
        count, step = len(self.samples), 1e-3
        at, matrix = self.residuals(logs), np.zeros((len(self.samples) + len(self.keys), len(self.keys)))
        for column, key in enumerate(self.keys):
            touched = [i for i, sample in enumerate(self.samples) if _touches(key, sample)]
            moved = logs.copy()
            moved[column] -= step
            matrix[touched, column] = (at[touched] - self.residuals(moved, touched)) / step
            matrix[count + column, column] = 1 / _REGULARIZATION
        return matrix


def _free(table: dict[str, Any], architectures: set[str]) -> list[str]:
    own = [f"architectures.{name}.{key}" for name in sorted(architectures) for key in _OWN]
    return [key for key in (*_SHARED, *own) if _get(table, key) is not None]


def _upper(key: str) -> float:
    """The logarithm of a parameter's upper bound."""
    if key.endswith(".launch"):
        return log(_LONGEST_LAUNCH_NS)
    return inf if key.startswith(("halves.", "split_depth")) else 0.0


def _touches(key: str, sample: Sample) -> bool:
    return not key.startswith("architectures.") or key.split(".")[1] == sample.spec.architecture


def _get(table: dict[str, Any], key: str) -> Any:
    value: Any = table
    for part in key.split("."):
        value = value.get(part)
    return value


def _put(table: dict[str, Any], key: str, value: object) -> None:
    *parents, last = key.split(".")
    for part in parents:
        table = table[part]
    table[last] = value


def _parameters(table: dict[str, Any]) -> Parameters:
    """Parses a dumped table as parameters, after adding the units of its quantities."""
    written = copy.deepcopy(table)
    written["in_flight"] = f"{written['in_flight']} B"
    for architecture in written["architectures"].values():
        architecture["launch"] = f"{round(architecture['launch'])} ns"
    return Parameters.model_validate(written)


def written(parameters: Parameters) -> str:
    """The parameters as YAML text: fractions and counts with four digits, launch times rounded to 10 ns."""
    table = parameters.model_dump(mode="json", by_alias=True, exclude_none=True)
    table["in_flight"] = f"{table['in_flight']} B"
    for architecture in table["architectures"].values():
        architecture["launch"] = f"{round(architecture['launch'], -1)} ns"
    return yaml.safe_dump(_rounded(table), sort_keys=False, width=120)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def fitted_table(recordings: Path) -> str:
    """Returns the text of `parameters.yaml`, fitted to the published figures and to the recordings in a folder.

    The texts in `sources` are copied from simgpu's table. Raises `InputError` if the folder or a required recording is
    missing or damaged, and `MissingExtraError` if SciPy is not installed.
    """
    fitted = load_recordings().fitted
    require_recordings(recordings, fitted)
    samples = [*published_samples(load_published()), *recorded_samples(recordings, fitted)]
    result = calibrate(sample for sample in samples if isinstance(sample, Sample))
    return written(result.model_copy(update={"sources": load_parameters().sources}))
