"""Means of a study's measures over its traces: of every run over the same ones, so that they compare.

A run that is out of memory on a trace would otherwise have a mean of easier traces than the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import TYPE_CHECKING

from simgpu.experiments.study_measures import MEASURES, Measure

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.study import StudyRun
    from simgpu.experiments.study import StudyResult


@dataclass(frozen=True, slots=True)
class Means:
    """The means of a measure over a baseline.

    values: by run, None where it has none. traces: those that they are over. of: how many the study has. out_of_memory:
    by run, on how many of these it is out of memory.
    """

    measure: str
    over: str
    geometric: bool
    values: Mapping[str, float | None]
    traces: tuple[str, ...]
    of: int
    out_of_memory: Mapping[str, int]

    @property
    def label(self) -> str:
        """What the means are called in a table, with the number of traces where these are not all."""
        word = "geomean" if self.geometric else "mean"
        return word if len(self.traces) == self.of else f"{word} ({len(self.traces)} of {self.of})"


def means_of(result: StudyResult, measure: str, over: str) -> Means:
    """The means of a measure of every run over the traces on which all of them have a value.

    A sweep of budgets counts as one run, which has a value where any of its budgets has one; a budget that lacks one of
    the traces has no mean. Runs that never have a value, as one that never fits, are left aside. Of ratios, and of
    shares that are ratios less one, means are geometric; of everything else arithmetic.
    """
    study, of_measure = result.study, MEASURES[measure]
    labels = list(study.networks if of_measure.of_sweep is not None else study.traces)
    values = {run.label: _values(result, measure, labels, run, over) for run in study.runs}
    known: dict[str, set[str]] = {}
    for run in study.runs:
        known.setdefault(run.sweep or run.label, set()).update(values[run.label])
    having = [each for each in known.values() if each]
    common = tuple(label for label in labels if having and all(label in each for each in having))
    return Means(
        measure,
        over,
        of_measure.ratio is not None,
        {
            run: mean(of_measure, [found[label] for label in common if label in found], len(common))
            for run, found in values.items()
        },
        common,
        len(labels),
        {run.label: sum(_out_of_memory(result, label, run) for label in labels) for run in study.runs},
    )


def _values(result: StudyResult, measure: str, labels: Sequence[str], run: StudyRun, over: str) -> dict[str, float]:
    """The values of a run by trace, where it has one."""
    other = result.study.compared(run, over) if over else None
    if over and other is None:
        return {}
    found = {label: result.value(measure, label, run.label, other.label if other else "") for label in labels}
    return {label: value for label, value in found.items() if value is not None}


def _out_of_memory(result: StudyResult, label: str, run: StudyRun) -> bool:
    points = result.study.networks.get(label, (label,))
    return all(result.cells[point, run.label].failure == "out of memory" for point in points)


def mean(of: Measure, values: Sequence[float], count: int) -> float | None:
    """The mean of a measure's values if there are so many, None of fewer, and of none.

    >>> from simgpu.experiments.study_measures import MEASURES
    >>> round(mean(MEASURES["time"], [1.0, 4.0], 2), 9), mean(MEASURES["peak_memory"], [1.0, 4.0], 2)
    (2.0, 2.5)
    >>> round(mean(MEASURES["time_added"], [0.0, 3.0], 2), 9)
    1.0
    """
    if not values or len(values) < count:
        return None
    if of.ratio is None:
        return fmean(values)
    there, back = of.ratio
    ratios = [there(value) for value in values]
    return back(exp(fmean(map(log, ratios))) if all(ratio > 0 for ratio in ratios) else 0.0)
