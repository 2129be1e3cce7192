"""Figures of a study: its measures, throughput by batch, and the step-time breakdown of its runs.

Loads matplotlib, so import it only to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from simgpu.analysis.charts import Stack, plot_breakdowns
from simgpu.analysis.measure_charts import plot_measures
from simgpu.analysis.panels import AxisInfo, Bar, BarPanel, CurvePoint, Kind, LinePanel, Panel, RunCurve, TimePanel
from simgpu.errors import InputError
from simgpu.experiments.study_measures import MEASURES
from simgpu.experiments.study_tables import MEAN, OOM, REFUSED
from simgpu.experiments.study_values import aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simgpu.experiments.scenarios.study import StudyRun
    from simgpu.experiments.study_values import StudyValues

#: The figures of a study.
Picture = Literal["measures", "throughput", "breakdown"]
_TITLE_COLUMNS = 100


def plot_study(result: StudyValues, what: Picture) -> Figure:
    """Draw a figure of a study.

    measures: one or more panels per measure of the study's tables
    throughput: samples/s by batch, one panel per sweep of batches
    breakdown: the step-time breakdown, one panel per trace

    Raises `InputError` for the throughput of a study without a sweep of batches, and for measures if there are none.
    """
    study = result.study
    if what == "measures":
        panels = measure_panels(result)
        if not panels:
            remedy = "name a measure too, such as throughput"
            raise InputError.single(study.name, "tables", "has no measure, only breakdown", remedy)
        runs = list(dict.fromkeys(run.sweep or run.label for run in study.runs))
        return plot_measures(panels, runs, title="\n".join(_title_lines(result)))
    if what == "breakdown":
        stacks = {
            f"{study.network(label)}, batch {trace.info.batch}": [_stack(result, label, run) for run in study.runs]
            for label, trace in study.traces.items()
        }
        label = "step time" if len(study.epochs) == 1 else f"step time, sum over {len(study.epochs)} epochs"
        return plot_breakdowns(stacks, title=_title(result), xlabel=label)
    if not study.sweeps:
        remedy = "give a trace batches in place of batch"
        raise InputError.single(study.name, "traces", "none is a sweep of batches", remedy)
    sweeps = [panel for panel in _by_batch(result, "samples_per_s", "") if panel.name in study.sweeps]
    return plot_measures([sweeps], [run.label for run in study.runs], title="\n".join(_title_lines(result)))


def _stack(result: StudyValues, trace: str, run: StudyRun) -> Stack:
    cell = result.cells[trace, run.label]
    return Stack(run.label, cell.parts or None, OOM if cell.out_of_memory else cell.failure)


def _title(result: StudyValues) -> str:
    """The study's name and description, and the provenance of its traces."""
    return "\n".join(fill(text, _TITLE_COLUMNS) for text in _title_lines(result))


def _title_lines(result: StudyValues) -> Iterator[str]:
    study = result.study
    yield f"{study.name}: {study.description}" if study.description else study.name
    yield "; ".join(dict.fromkeys(trace.info.provenance for trace in study.traces.values()))


_NO_BASELINE, _UNKNOWN = "no baseline", "no value"
_DRIFT = ("overflow_min", "overflow_max")
_BUDGET, _SHARE = AxisInfo("budget", "size"), AxisInfo("oversubscription", "share")
_PART = AxisInfo("budget, of the peak without offloading", "share")
_BATCH = AxisInfo("batch", "count")


def measure_panels(result: StudyValues) -> list[list[Panel]]:
    """Panels of every measure of the study's tables over each of its baselines, then of the overflow over time.

    The runs of a sweep of budgets are drawn as curves over the budget, in one panel per trace; a sweep of batches as
    curves over the batch, in one panel per network; everything else as bars. Means are over the traces on which every
    run has a value.
    """
    results = [
        _of_measure(result, measure, over)
        for measure in result.study.tables
        if measure != "breakdown"
        for over in (result.study.baseline if not MEASURES[measure].alone else ("",))
    ]
    if set(_DRIFT).intersection(result.study.tables) and (lines := _drift(result)):
        share = AxisInfo("share of overflowing live entries", "share")
        results.append([TimePanel(share, result.study.epochs, lines)])
    return results


def _of_measure(result: StudyValues, measure: str, over: str) -> list[Panel]:
    study = result.study
    if any(run.sweep for run in study.runs):
        return list(_by_sweep(result, measure, over))
    if study.sweeps and MEASURES[measure].of_sweep is None:
        return list(_by_batch(result, measure, over))
    return [_bars(result, measure, over)]


def _bars(result: StudyValues, measure: str, over: str) -> BarPanel:
    study, axis = result.study, _axis_of(measure, over)
    groups = {
        study.network(label): {run.label: _bar(result, measure, label, run, over) for run in study.runs}
        for label in _labels(result, measure)
    }
    if MEASURES[measure].averaged and len(groups) > 1:
        groups |= _means(result, measure, over, study.runs)
    # Omit runs without this measure, such as the compression ratio without compression.
    shown = [run.label for run in study.runs if any(runs[run.label].why != _UNKNOWN for runs in groups.values())]
    columns = shown or [run.label for run in study.runs]
    return BarPanel(axis, {label: {run: runs[run] for run in columns} for label, runs in groups.items()})


def _by_sweep(result: StudyValues, measure: str, over: str) -> Iterator[LinePanel]:
    """One panel per trace and kind of sweep, and one for the mean."""
    study = result.study
    labels = _labels(result, measure)
    for along, place in ((_BUDGET, _budget), (_SHARE, _share), (_PART, _peak_part)):
        members = [run for run in study.runs if run.sweep and place(run) is not None]
        if not members:
            continue
        shown = [run for run in study.runs if not run.sweep or run in members]
        for label in labels:
            bars = {run.label: _bar(result, measure, label, run, over) for run in shown}
            yield LinePanel(_axis_of(measure, over), label, along, _curves(shown, bars, place))
        if MEASURES[measure].averaged and len(labels) > 1:
            for name, bars in _means(result, measure, over, shown).items():
                yield LinePanel(_axis_of(measure, over), name, along, _curves(shown, bars, place))


def _curves(
    runs: Sequence[StudyRun], bars: dict[str, Bar], place: Callable[[StudyRun], float | None]
) -> tuple[RunCurve, ...]:
    """One curve per sweep, and one level line per run outside a sweep."""
    points: dict[str, list[CurvePoint]] = {}
    for run in runs:
        if (at := place(run)) is not None and run.sweep:
            points.setdefault(run.sweep, []).append(CurvePoint(at, bars[run.label]))
    labels = dict.fromkeys(run.sweep or run.label for run in runs)
    return tuple(
        RunCurve(each, tuple(points[each])) if each in points else RunCurve(each, level=bars[each]) for each in labels
    )


def _by_batch(result: StudyValues, measure: str, over: str) -> Iterator[LinePanel]:
    """One panel per network, including networks with a single batch."""
    study = result.study
    for network, labels in study.networks.items():
        batches = {label: study.traces[label].info.batch for label in labels}
        curves = []
        for run in study.runs:
            bars = {label: _bar(result, measure, label, run, over) for label in labels}
            curves.append(RunCurve(run.label, tuple(CurvePoint(batches[label], bars[label]) for label in labels)))
        yield LinePanel(_axis_of(measure, over), network, _BATCH, tuple(curves))


def _drift(result: StudyValues) -> dict[str, tuple[float, ...]]:
    """One line per trace and compressing run; a single line per trace if all its runs are equal."""
    results: dict[str, tuple[float, ...]] = {}
    for trace in result.study.traces:
        drifts = {run.label: drift for run in result.study.runs if (drift := result.cells[trace, run.label].drift)}
        same = len(set(drifts.values())) == 1
        results |= {trace if same else f"{trace}, {run}": drift for run, drift in drifts.items()}
    return results


def _axis_of(measure: str, over: str) -> AxisInfo:
    of = MEASURES[measure]
    kind: Kind = "share" if of.share else "size" if of.size else "count" if of.decimals == 0 else "number"
    return AxisInfo(of.title.format(over=over), kind, None if of.alone else 0.0 if of.share else 1.0)


def _labels(result: StudyValues, measure: str) -> list[str]:
    """The labels with values of a measure: networks if it covers all their batches, else traces."""
    study = result.study
    return list(study.networks if MEASURES[measure].of_sweep is not None else study.traces)


def _bar(result: StudyValues, measure: str, label: str, run: StudyRun, over: str) -> Bar:
    """The value, or why there is none, with the published values of the same run, trace, measure and baseline."""
    study = result.study
    published = _published(result, measure, run, over, label)
    cells = [result.cells[trace, run.label] for trace in study.networks.get(label, (label,))]
    if all(cell.failure for cell in cells):
        return Bar(None, REFUSED if cells[-1].refused else OOM, published)
    other = study.compared(run, over) if over else None
    if over and other is None:
        return Bar(None, _NO_BASELINE, published)
    value = result.value(measure, label, run.label, other.label if other else "")
    if value is None and other is not None and result.cells[_last(result, label), other.label].failure:
        return Bar(None, _NO_BASELINE, published)
    return Bar(value, "" if value is not None else _UNKNOWN, published)


def _last(result: StudyValues, label: str) -> str:
    return result.study.networks.get(label, (label,))[-1]


def _means(result: StudyValues, measure: str, over: str, runs: Sequence[StudyRun]) -> dict[str, dict[str, Bar]]:
    """The means of runs, by their label.

    Published means are arithmetic and are drawn at the simulated arithmetic mean, which is a second entry if the
    measure's own mean is geometric.
    """
    means = result.means(measure, over)
    published = {run.label: _published(result, measure, run, over, MEAN) for run in runs}
    same = not means.geometric
    results = {
        means.label: {
            run.label: Bar(value, "", published[run.label] if same else ())
            if (value := means.values[run.label]) is not None
            else Bar(None, _UNKNOWN, published[run.label] if same else ())
            for run in runs
        }
    }
    if not same and any(published.values()):
        results[f"arithmetic {MEAN}"] = {
            run.label: Bar(_of_paper(result, measure, run, over), "", published[run.label])
            if published[run.label]
            else Bar(None, _UNKNOWN)
            for run in runs
        }
    return results


def _of_paper(result: StudyValues, measure: str, run: StudyRun, over: str) -> float | None:
    """The simulated mean that the table of published numbers shows."""
    values = result.values(measure, run.label, over).values()
    return aggregate(MEAN, [value for each in values for value in each])


def _published(result: StudyValues, measure: str, run: StudyRun, over: str, of: str) -> tuple[float, ...]:
    """Published numbers of this run, measure, baseline and trace or aggregate, without those that exclude traces."""
    return tuple(
        row.value
        for row in result.study.published
        if (row.measure, row.run, row.vs, row.aggregate) == (measure, run.label, over, of) and not row.excluding
    )


def _budget(run: StudyRun) -> float | None:
    return run.budget


def _share(run: StudyRun) -> float | None:
    return run.oversubscribed


def _peak_part(run: StudyRun) -> float | None:
    return run.peak_part
