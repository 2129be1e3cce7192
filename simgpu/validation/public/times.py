"""Predictions of the times of covered rows, their slowdowns over a baseline, and the order within a group.

The stored ones were made with default settings; nothing is fitted. `predict_time` makes one again, which needs PyTorch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from simgpu.errors import MissingExtraError
from simgpu.io.input_files import read_json
from simgpu.validation.public.predicted import ComparedPeak
from simgpu.validation.public.rows import PublishedRow, published_rows
from simgpu.validation.public.selection import Subject, baselines, pairs, reasons

_FILE = Path(__file__).with_name("times.json")


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """A step as simgpu predicts it: nanoseconds, those of its kernels alone, and its samples.

    cause: why it is off, where that is known.
    """

    step_ns: int
    kernels_ns: int
    samples: int
    cause: str = ""

    @property
    def sample_ns(self) -> int:
        """Nanoseconds of a sample."""
        return round(self.step_ns / self.samples)


@dataclass(frozen=True, slots=True)
class ComparedTime:
    """A published time of a sample and the predicted one, in nanoseconds."""

    row: PublishedRow
    published: int
    predicted: PredictedTime

    @property
    def error(self) -> float:
        """The relative error."""
        return self.predicted.sample_ns / self.published - 1


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A row's time of a sample as a multiple of that of its baseline; below 1 for an option that saves time."""

    row: PublishedRow
    baseline: PublishedRow
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """The relative error."""
        return self.predicted / self.published - 1


@dataclass(frozen=True, slots=True)
class Order:
    """Pairs of rows of one group whose measured values differ, and those that are predicted in the measured order."""

    subject: Subject
    pairs: int
    right: int


def stored_times() -> Mapping[str, PredictedTime]:
    """The shipped predictions, by the id of the row."""
    return {name: PredictedTime(**given) for name, given in read_json(_FILE)["predictions"].items()}


def timed_rows() -> list[PublishedRow]:
    """The rows whose time is predicted."""
    return [row for row in published_rows() if not reasons(row, Subject.TIME)]


def predict_time(row: PublishedRow) -> PredictedTime:
    """The prediction of a covered row. Raises `MissingExtraError` without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("predicting published rows", "torch", "record")
    from simgpu.validation.public.ao_rows import timed_ao_loop
    from simgpu.validation.public.bert_rows import timed_bert_loop
    from simgpu.validation.public.prime_rl_rows import policy_time
    from simgpu.validation.public.prime_rows import timed_prime_loop
    from simgpu.validation.public.timed_loop import time_of
    from simgpu.validation.public.titan_experts import time_with_experts

    assert row.node is not None
    if "policy-gradient loss" in row.uses:
        return PredictedTime(*policy_time(row))
    if row.project == "torchtitan":
        return PredictedTime(*time_with_experts(row))
    loops = {"ao": timed_ao_loop, "prime-rl": timed_prime_loop, "transformers": timed_bert_loop}
    loop, runs = loops[row.project](row)
    return PredictedTime(*time_of(loop, row.node, runs))


def compared_times(rows: Iterable[PublishedRow], predictions: Mapping[str, PredictedTime]) -> list[ComparedTime]:
    """Each published time of these rows with the predicted one."""
    return [
        ComparedTime(row, published, predictions[row.id]) for row in rows if (published := row.sample_ns) is not None
    ]


def slowdowns(times: Iterable[ComparedTime]) -> list[Slowdown]:
    """The slowdown of each row over its baseline, where both are predicted.

    >>> [each.baseline.id for each in slowdowns(compared_times(timed_rows(), stored_times()))][:3]
    ['t-039', 't-039', 't-088']
    """
    compared = {each.row.id: each for each in times}
    found = []
    for name, baseline in baselines(published_rows()).items():
        if name in compared and baseline.id in compared:
            one, other = compared[name], compared[baseline.id]
            predicted = one.predicted.sample_ns / other.predicted.sample_ns
            found.append(Slowdown(one.row, baseline, one.published / other.published, predicted))
    return found


def order_of_times(times: Sequence[ComparedTime]) -> Order:
    """The order of the times of a sample."""
    predicted = {each.row.id: float(each.predicted.sample_ns) for each in times}
    measured = {each.row.id: float(each.published) for each in times}
    return _order(Subject.TIME, [(measured, predicted)])


def order_of_peaks(peaks: Sequence[ComparedPeak]) -> Order:
    """The order of the peaks; those of each kind apart, as a row may have several."""
    both = []
    for kind in dict.fromkeys(peak.kind for peak in peaks):
        alike = [peak for peak in peaks if peak.kind == kind]
        measured = {peak.row.id: float(peak.published) for peak in alike if peak.published is not None}
        both.append((measured, {peak.row.id: float(peak.predicted) for peak in alike}))
    return _order(Subject.MEMORY, both)


def _order(subject: Subject, values: Iterable[tuple[Mapping[str, float], Mapping[str, float]]]) -> Order:
    rows, count, right = published_rows(), 0, 0
    for measured, predicted in values:
        ordered = pairs(rows, measured)
        count += len(ordered)
        right += sum(predicted[smaller.id] < predicted[larger.id] for smaller, larger in ordered)
    return Order(subject, count, right)


def median_of(errors: Iterable[float]) -> float | None:
    """The median of the absolute errors; None without any.

    >>> median_of([0.5, -0.25, 0.125])
    0.25
    """
    absolute = [abs(error) for error in errors]
    return median(absolute) if absolute else None
