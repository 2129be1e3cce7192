"""The values of a study: each measure of a run on a trace, means over traces, and comparison with published numbers.

Means of all runs are over the same traces: a run that is out of memory on a trace would otherwise be averaged over
easier traces than the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import fmean
from typing import TYPE_CHECKING

from simgpu.experiments.study_measures import MEASURES, Measure, StudyCell

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.study import PublishedNumber, Study, StudyRun

STUDY_REPORT_SCHEMA = "simgpu.study-report/3"
#: Aggregates over traces that a published number can be of; a published mean is arithmetic.
_AGGREGATES: Mapping[str, Callable[[list[float]], float]] = {"mean": fmean, "min": min, "max": max}


def aggregate(of: str, values: list[float]) -> float | None:
    """The mean, min or max of values; of a trace their mean; None without values.

    >>> aggregate("max", [1.0, 3.0]), aggregate("VGG16", [3.0]), aggregate("mean", [])
    (3.0, 3.0, None)
    """
    return _AGGREGATES.get(of, fmean)(values) if values else None


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """A published number and the simulated one.

    simulated: None where a run it needs was out of memory.
    traces, expected: the number of traces with a value, and of all that the number is of.
    values, points: the number of values, and of all points; several per trace of a sweep of budgets.
    """

    published: PublishedNumber
    simulated: float | None
    traces: int
    values: int
    expected: int
    points: int

    @property
    def difference(self) -> float | None:
        """The simulated minus the published number."""
        return None if self.simulated is None else self.simulated - self.published.value


@dataclass(frozen=True, slots=True)
class Means:
    """The means of a measure over a baseline.

    values: by run, None where it has none. traces: those that they are over. total_traces: how many the study
    has. out_of_memory: by run, on how many of these it is out of memory.
    """

    measure: str
    vs: str
    geometric: bool
    values: Mapping[str, float | None]
    traces: tuple[str, ...]
    total_traces: int
    out_of_memory: Mapping[str, int]

    @property
    def label(self) -> str:
        """What the means are called in a table, with the number of traces where these are not all."""
        word = "geomean" if self.geometric else "mean"
        return word if len(self.traces) == self.total_traces else f"{word} ({len(self.traces)} of {self.total_traces})"


@dataclass(frozen=True, repr=False)
class StudyValues:
    """The cells of a study by labels of trace and run. Prints as its tables; `frame` has all numbers.

    memory: of each trace, where published numbers are of it: bytes by the names of `simgpu.experiments.study_measures`.
    """

    study: Study
    cells: Mapping[tuple[str, str], StudyCell]
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def value(self, measure: str, trace: str, run: str, over: str = "") -> float | None:
        """A measure of one run on a trace, relative to another run where the measure needs one.

        trace: its label; that of a network, for a measure of all its batches together. None where one of the runs was
        out of memory, or where what is measured is not known.
        """
        if (of_sweep := MEASURES[measure].of_sweep) is not None:
            batches = self.study.networks[trace]
            return of_sweep(*([self.cells[batch, each] for batch in batches] for each in (run, over or run)))
        simulated = self.cells[trace, run]
        reference = self.cells[trace, over] if over else simulated
        if simulated.samples_per_s is None or reference.samples_per_s is None:
            return None
        return MEASURES[measure].of(simulated, reference)

    def ratio(self, trace: str, run: str, over: str) -> float | None:
        """Throughput of one run over that of another, None where one of them was out of memory."""
        return self.value("throughput", trace, run, over)

    def values(
        self, measure: str, run: str, over: str = "", without: Iterable[str] = (), of: str = ""
    ) -> dict[str, list[float]]:
        """The values by trace, where there are any: of one run, or of every run of a sweep.

        over: a run, or a sweep, of which the run with the same budget is meant. without, of: see `_labels_of`.
        """
        results = {}
        for trace in self._labels_of(measure, of, without):
            values = [self.value(measure, trace, *pair) for pair in self._pairs(run, over)]
            if text := [value for value in values if value is not None]:
                results[trace] = text
        return results

    def mean(self, run: str, over: str = "", measure: str = "throughput") -> float | None:
        """Mean of a measure of one run over the traces on which every run of the study has a value; None without one.

        Geometric of ratios, else arithmetic; `means` says over which traces it is.
        """
        return self.means(measure, over).values[run]

    def means(self, measure: str, over: str = "") -> Means:
        """The means of a measure of all runs over a baseline, taken over the same traces."""
        return means_of(self, measure, over)

    def all_means(self) -> tuple[Means, ...]:
        """The means of every measure of the tables over each of its baselines, where means say something."""
        return tuple(
            self.means(measure, over)
            for measure in self.study.tables
            if measure != "breakdown" and MEASURES[measure].averaged
            for over in (self.study.baseline if not MEASURES[measure].alone else ("",))
        )

    def _labels_of(self, measure: str, of: str = "", without: Iterable[str] = ()) -> list[str]:
        """The labels that a measure has values of: of traces, or of networks where it is of all their batches.

        of: one of them or a sweep of batches, in place of all. without: those that are left out.
        """
        study, left = self.study, set(without)
        of_sweep = MEASURES[measure].of_sweep is not None
        names = {label: study.network(label) for label in (study.networks if of_sweep else study.traces)}
        chosen = of in names or of in study.networks
        return [
            label
            for label, name in names.items()
            if left.isdisjoint((label, name)) and (not chosen or of in (label, name))
        ]

    def _pairs(self, run: str, over: str) -> list[tuple[str, str]]:
        """Labels of runs that are compared; the second is empty for a measure of runs alone."""
        members = self.study.members(run)
        if not over:
            return [(member.label, "") for member in members]
        pairs = [(member, self.study.compared(member, over)) for member in members]
        return [(member.label, other.label) for member, other in pairs if other is not None]

    def comparisons(self) -> tuple[PublishedComparison, ...]:
        """Every published number with the simulated one."""
        return tuple(map(self.compared_with, self.study.published))

    def compared_with(self, row: PublishedNumber) -> PublishedComparison:
        """A published number with the simulated one."""
        each = 1 if row.memory is not None else len(self._pairs(row.run, row.vs))
        labels = self._labels_of(row.measure, row.aggregate, row.excluding)
        of = self.values_of(row)
        values = [value for text in of.values() for value in text]
        simulated = self._of_sums(row, of) if row.aggregate == "sum" else aggregate(row.aggregate, values)
        return PublishedComparison(row, simulated, len(of), len(values), len(labels), each * len(labels))

    def values_of(self, row: PublishedNumber) -> dict[str, list[float]]:
        """The values behind a published number by trace; several per trace of a sweep."""
        if row.memory is not None:
            text = self._labels_of(row.measure, row.aggregate, row.excluding)
            return {trace: [self._of_memory(row, trace)] for trace in text}
        return self.values(row.measure, row.run, row.vs, row.excluding, row.aggregate)

    def cells_of(self, row: PublishedNumber) -> list[tuple[str, str]]:
        """The labels of trace and run of every cell that a published number depends on."""
        networks, labels = self.study.networks, self._labels_of(row.measure, row.aggregate, row.excluding)
        traces = [trace for label in labels for trace in networks.get(label, (label,))]
        runs = dict.fromkeys(run for pair in self._pairs(row.run, row.vs) for run in pair if run)
        return [(trace, run) for trace in traces for run in runs]

    def _of_sums(self, row: PublishedNumber, traces: Iterable[str]) -> float | None:
        """The sum over traces of what a measure divides, over the sum of what it is divided by."""
        part = MEASURES[row.measure].quotient_of
        simulated, reference = (
            sum(self.value(part, trace, run) or 0 for trace in traces for run in runs)
            for runs in zip(*self._pairs(row.run, row.vs), strict=True)
        )
        return simulated / reference if reference else None

    def _of_memory(self, row: PublishedNumber, trace: str) -> float:
        together, amount = self.memory[trace]["all_at_once"], self.memory[trace][row.memory or ""]
        return 1 - amount / together if row.measure == "memory_saved" else together / amount

    @property
    def nothing_fitted(self) -> bool:
        """Whether there are runs with limited memory, and every one of them was out of it on every trace."""
        limited = [cell for cell in self.cells.values() if cell.limited]
        return bool(limited) and all(cell.samples_per_s is None for cell in limited)


def means_of(result: StudyValues, measure: str, over: str) -> Means:
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
            run: mean(of_measure, [results[label] for label in common if label in results], len(common))
            for run, results in values.items()
        },
        common,
        len(labels),
        {run.label: sum(_out_of_memory(result, label, run) for label in labels) for run in study.runs},
    )


def _values(result: StudyValues, measure: str, labels: Sequence[str], run: StudyRun, over: str) -> dict[str, float]:
    """The values of a run by trace, where it has one."""
    other = result.study.compared(run, over) if over else None
    if over and other is None:
        return {}
    results = {label: result.value(measure, label, run.label, other.label if other else "") for label in labels}
    return {label: value for label, value in results.items() if value is not None}


def _out_of_memory(result: StudyValues, label: str, run: StudyRun) -> bool:
    points = result.study.networks.get(label, (label,))
    return all(result.cells[point, run.label].failure == "out of memory" for point in points)


def mean(of: Measure, values: Sequence[float], count: int) -> float | None:
    """The mean of a measure's values if there are so many, None of fewer, and of none.

    >>> from simgpu.experiments.study_measures import MEASURES
    >>> round(mean(MEASURES["time"], [1.0, 4.0], 2), 9), mean(MEASURES["peak_memory"], [1.0, 4.0], 2)
    (2.0, 2.5)
    >>> round(mean(MEASURES["time_increase"], [0.0, 3.0], 2), 9)
    1.0
    """
    if not values or len(values) < count:
        return None
    if of.ratio is None:
        return fmean(values)
    there, back = of.ratio
    ratios = [there(value) for value in values]
    return back(exp(fmean(map(log, ratios))) if all(ratio > 0 for ratio in ratios) else 0.0)
