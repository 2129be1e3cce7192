"""A study as pictures: its measures, throughput against the batch, and what the time of its runs went to.

Loads matplotlib, so import it only where something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from simgpu.analysis.charts import Line, Stack, plot_breakdowns, plot_throughputs
from simgpu.analysis.measure_charts import plot_measures
from simgpu.errors import InputError
from simgpu.experiments.study_panels import measure_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simgpu.experiments.scenarios.study import StudyRun
    from simgpu.experiments.study import StudyResult

#: What can be drawn of a study.
Picture = Literal["measures", "throughput", "breakdown"]
_TITLE_COLUMNS = 100


def plot_study(result: StudyResult, what: Picture) -> Figure:
    """The measures of the study's tables, a panel each or more; throughput against batch with a panel a sweep of
    batches; or what the time went to with a panel a trace.

    `InputError` for the throughput of a study without a sweep of batches, and for the measures of one without any.
    """
    study = result.study
    if what == "measures":
        panels = measure_panels(result)
        if not panels:
            remedy = "name a measure beside it, as throughput"
            raise InputError.single(study.name, "tables", "has no measure, only breakdown", remedy)
        runs = list(dict.fromkeys(run.sweep or run.label for run in study.runs))
        return plot_measures(panels, runs, title="\n".join(_told(result)))
    if what == "breakdown":
        stacks = {
            f"{study.network(label)}, batch {trace.info.batch}": [_stack(result, label, run) for run in study.runs]
            for label, trace in study.traces.items()
        }
        told = (
            "iteration time"
            if len(study.epochs) == 1
            else f"time of an iteration of each of {len(study.epochs)} epochs"
        )
        return plot_breakdowns(stacks, title=_title(result), xlabel=told)
    if not study.sweeps:
        remedy = "give a trace batches in place of batch"
        raise InputError.single(study.name, "traces", "none is a sweep of batches", remedy)
    lines = {
        label: [_line(result, label, run) for run in study.runs] for label in study.networks if label in study.sweeps
    }
    return plot_throughputs(lines, title=_title(result))


def _stack(result: StudyResult, trace: str, run: StudyRun) -> Stack:
    cell = result.cells[trace, run.label]
    return Stack(run.label, cell.parts or None, cell.failure)


def _line(result: StudyResult, network: str, run: StudyRun) -> Line:
    cells = [result.cells[trace, run.label] for trace in result.study.networks[network]]
    failure = next((cell.failure for cell in cells if cell.failure), "")
    return Line(run.label, {cell.batch: cell.samples_per_s for cell in cells}, failure)


def _title(result: StudyResult) -> str:
    """The study, and where its numbers come from."""
    return "\n".join(fill(text, _TITLE_COLUMNS) for text in _told(result))


def _told(result: StudyResult) -> Iterator[str]:
    study = result.study
    yield f"{study.name}: {study.description}" if study.description else study.name
    yield "; ".join(dict.fromkeys(trace.info.provenance for trace in study.traces.values()))
