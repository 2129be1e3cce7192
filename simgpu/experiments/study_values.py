"""The values of a study: measures of each run and trace, means over traces, and comparison with published numbers.

The means of all runs are over the same traces. Otherwise a run that is out of memory on some traces would be averaged
over easier traces than the others.
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
#: Aggregates over traces that papers publish; a published mean is arithmetic.
_AGGREGATES: Mapping[str, Callable[[list[float]], float]] = {"mean": fmean, "min": min, "max": max}


def aggregate(of: str, values: list[float]) -> float | None:
    """The mean, min or max of values; their mean if `of` is the label of a trace; None without values.

    >>> aggregate("max", [1.0, 3.0]), aggregate("VGG16", [3.0]), aggregate("mean", [])
    (3.0, 3.0, None)
    """
    return _AGGREGATES.get(of, fmean)(values) if values else None


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """A published number and the simulated one.

    simulated: None if a required run was out of memory
    traces: number of traces with a value
    expected: number of traces that the published number covers
    values: number of values; a sweep of budgets has several per trace
    points: number of values if no run had failed
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

    values: mean by run; None if it has none
    traces: the traces that the means are over
    total_traces: number of traces of the study
    out_of_memory: number of traces on which a run is out of memory, by run
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
        """The label of the means in tables, with the number of traces if these are not all."""
        word = "geomean" if self.geometric else "mean"
        return word if len(self.traces) == self.total_traces else f"{word} ({len(self.traces)} of {self.total_traces})"


@dataclass(frozen=True, repr=False)
class StudyValues:
    """The cells of a study by labels of trace and run.

    memory: bytes by trace and key of `AMOUNTS` (`simgpu.experiments.study_measures`); empty if no published number
    needs it
    """

    study: Study
    cells: Mapping[tuple[str, str], StudyCell]
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def value(self, measure: str, trace: str, run: str, over: str = "") -> float | None:
        """A measure of one run on a trace, relative to the baseline run `over` if the measure needs one.

        None if one of the runs was out of memory, or the measured quantity is not known.

        trace: label of the trace, or of the network for a measure over all its batches
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
        """Throughput of one run over that of another; None if one of them was out of memory."""
        return self.value("throughput", trace, run, over)

    def values(
        self, measure: str, run: str, over: str = "", without: Iterable[str] = (), of: str = ""
    ) -> dict[str, list[float]]:
        """The known values by trace, of one run or of every run of a sweep.

        over: the baseline run, or a sweep, whose run with the same budget is the baseline
        without, of: see `_labels_of`
        """
        results = {}
        for trace in self._labels_of(measure, of, without):
            values = [self.value(measure, trace, *pair) for pair in self._pairs(run, over)]
            if known := [value for value in values if value is not None]:
                results[trace] = known
        return results

    def mean(self, run: str, over: str = "", measure: str = "throughput") -> float | None:
        """The mean of a measure of one run over the traces on which every run has a value; None without a mean.

        It is geometric for ratios, else arithmetic. `means` also returns the traces.
        """
        return self.means(measure, over).values[run]

    def means(self, measure: str, over: str = "") -> Means:
        """The means of a measure of all runs over a baseline, for the same traces."""
        return means_of(self, measure, over)

    def all_means(self) -> tuple[Means, ...]:
        """The means of every averaged measure of the tables over each of its baselines."""
        return tuple(
            self.means(measure, over)
            for measure in self.study.tables
            if measure != "breakdown" and MEASURES[measure].averaged
            for over in (self.study.baseline if not MEASURES[measure].alone else ("",))
        )

    def _labels_of(self, measure: str, of: str = "", without: Iterable[str] = ()) -> list[str]:
        """The labels with values of a measure: traces, or networks for a measure over all their batches.

        of: a label or a sweep of batches, to select only its labels
        without: labels to exclude
        """
        study, excluded = self.study, set(without)
        of_sweep = MEASURES[measure].of_sweep is not None
        names = {label: study.network(label) for label in (study.networks if of_sweep else study.traces)}
        chosen = of in names or of in study.networks
        return [
            label
            for label, name in names.items()
            if excluded.isdisjoint((label, name)) and (not chosen or of in (label, name))
        ]

    def _pairs(self, run: str, over: str) -> list[tuple[str, str]]:
        """Pairs of labels of a run and its baseline; the second is empty for a measure without a baseline."""
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
        per_trace = 1 if row.memory is not None else len(self._pairs(row.run, row.vs))
        labels = self._labels_of(row.measure, row.aggregate, row.excluding)
        by_trace = self.values_of(row)
        values = [value for known in by_trace.values() for value in known]
        simulated = self._of_sums(row, by_trace) if row.aggregate == "sum" else aggregate(row.aggregate, values)
        return PublishedComparison(row, simulated, len(by_trace), len(values), len(labels), per_trace * len(labels))

    def values_of(self, row: PublishedNumber) -> dict[str, list[float]]:
        """The simulated values behind a published number, by trace; a sweep has several per trace."""
        if row.memory is not None:
            labels = self._labels_of(row.measure, row.aggregate, row.excluding)
            return {trace: [self._of_memory(row, trace)] for trace in labels}
        return self.values(row.measure, row.run, row.vs, row.excluding, row.aggregate)

    def cells_of(self, row: PublishedNumber) -> list[tuple[str, str]]:
        """The labels of trace and run of every cell that a published number depends on."""
        networks, labels = self.study.networks, self._labels_of(row.measure, row.aggregate, row.excluding)
        traces = [trace for label in labels for trace in networks.get(label, (label,))]
        runs = dict.fromkeys(run for pair in self._pairs(row.run, row.vs) for run in pair if run)
        return [(trace, run) for trace in traces for run in runs]

    def _of_sums(self, row: PublishedNumber, traces: Iterable[str]) -> float | None:
        """The sum of a quotient's numerators over traces, divided by the sum of its denominators."""
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
        """Whether there are runs with limited memory, and all of them failed on every trace."""
        limited = [cell for cell in self.cells.values() if cell.limited]
        return bool(limited) and all(cell.samples_per_s is None for cell in limited)


def means_of(result: StudyValues, measure: str, over: str) -> Means:
    """The means of a measure of every run over the traces on which all runs have a value.

    A sweep of budgets counts as one run, which has a value on a trace if any of its budgets has one; a budget without a
    value on one of the traces has no mean. Runs without any value, such as one that never fits, are ignored. Means are
    geometric for ratios and for shares derived from ratios (ratio - 1, 1 - ratio), else arithmetic.
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
    """The known values of a run by trace."""
    other = result.study.compared(run, over) if over else None
    if over and other is None:
        return {}
    results = {label: result.value(measure, label, run.label, other.label if other else "") for label in labels}
    return {label: value for label, value in results.items() if value is not None}


def _out_of_memory(result: StudyValues, label: str, run: StudyRun) -> bool:
    points = result.study.networks.get(label, (label,))
    return all(result.cells[point, run.label].failure == "out of memory" for point in points)


def mean(of: Measure, values: Sequence[float], count: int) -> float | None:
    """The mean of a measure's values; None if there are fewer than `count`, or none.

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
    to_ratio, from_ratio = of.ratio
    ratios = [to_ratio(value) for value in values]
    return from_ratio(exp(fmean(map(log, ratios))) if all(ratio > 0 for ratio in ratios) else 0.0)
