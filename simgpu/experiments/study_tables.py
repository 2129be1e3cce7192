"""The tables of a study: its measures, the time and memory breakdowns, and published vs. simulated numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, NamedTuple

from simgpu.analysis.tables import breakdown_table, facts_text, table_text
from simgpu.experiments.study_measures import AMOUNTS, MEASURES, StudyCell
from simgpu.simulation.plain_peak import PeakPart
from simgpu.units import format_bytes

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.study import PublishedNumber, Study, StudyRun
    from simgpu.experiments.study_values import Means, PublishedComparison, StudyValues

REFUSED, OOM = "refused", "OOM"
PUBLISHED_HEADINGS = ("published", "simulated", "paper", "difference", "source")
MEAN = "mean"
_ABSENT = "-"
_UNSTEADY = " *"


class StudyTable(NamedTuple):
    """A table of formatted cells."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def study_tables(result: StudyValues) -> list[StudyTable]:
    """The tables of a study: each measure over each baseline, the time breakdown, budgets given in percent, and memory
    if published numbers need it.

    Tables have one row per trace and one column per run. With a sweep of budgets, which has many runs, rows and
    columns are swapped; for a single trace the sweep is one table with one column per measure. The means, and the
    number of traces on which each run is out of memory, come last.
    """
    study = result.study
    measures = [each for each in study.tables if each != "breakdown"]
    swept = any(run.sweep for run in study.runs)
    if swept and len(study.traces) == 1:
        results = [_of_one_trace(result, measures, over) for over in study.baseline if measures]
    else:
        make = _by_run if swept else _by_trace
        results = [
            make(result, measure, over)
            for measure in measures
            for over in (study.baseline if not MEASURES[measure].alone else ("",))
        ]
    if "breakdown" in study.tables:
        results += [_breakdown(result, trace) for trace in study.traces]
    return [*results, *_budgets(result.study), *([_memory(result)] if result.memory else [])]


def _by_trace(result: StudyValues, measure: str, over: str) -> StudyTable:
    study, kind = result.study, MEASURES[measure]
    of_sweep = kind.of_sweep is not None
    # In a study of largest batches every run has its own batch; the traces' batches only start the searches.
    with_batches = not study.largest_batch
    rows = [
        (
            study.network(label),
            *([_batches(study, label)] if with_batches else []),
            *(_cell(result, label, run, measure, over) for run in study.runs),
        )
        for label in (study.networks if of_sweep else study.traces)
    ]
    if kind.averaged:
        means, blank = result.means(measure, over), [""] if with_batches else []
        rows.append((means.label, *blank, *(kind.text(means.values[run.label]) for run in study.runs)))
        if any(means.out_of_memory.values()):
            rows.append((OOM, *blank, *(_oom(means, run) for run in study.runs)))
    batches = ["batches" if of_sweep else "batch"] if with_batches else []
    headings = ("", *batches, *(run.label for run in study.runs))
    return StudyTable(_title(measure, over), headings, rows)


def _oom(means: Means, run: StudyRun) -> str:
    """The number of traces on which a run is out of memory."""
    count = means.out_of_memory[run.label]
    return f"{count} of {means.total_traces}" if count else _ABSENT


def _batches(study: Study, label: str) -> str:
    """The batch of a trace, or the range of batches of a sweep."""
    batches = [study.traces[trace].info.batch for trace in study.networks.get(label, (label,))]
    return str(batches[0]) if len(batches) == 1 else f"{min(batches)}-{max(batches)}"


def _by_run(result: StudyValues, measure: str, over: str) -> StudyTable:
    study, kind = result.study, MEASURES[measure]
    columns = list(study.networks if kind.of_sweep is not None else study.traces)
    means = result.means(measure, over)
    counted = kind.averaged and any(means.out_of_memory.values())
    rows = []
    for run in study.runs:
        cells = (_cell(result, label, run, measure, over, no_memory=_ABSENT) for label in columns)
        mean = (kind.text(means.values[run.label]),) if kind.averaged else ()
        rows.append((run.label, *cells, *mean, *((_oom(means, run),) if counted else ())))
    last = (*((means.label,) if kind.averaged else ()), *((OOM,) if counted else ()))
    return StudyTable(_title(measure, over), ("", *columns, *last), rows)


def _of_one_trace(result: StudyValues, measures: Sequence[str], over: str) -> StudyTable:
    study = result.study
    (label,) = study.traces
    rows = [(run.label, *(_cell(result, label, run, measure, over) for measure in measures)) for run in study.runs]
    return StudyTable(f"{label}, over {over}", ("", *(MEASURES[each].word or each for each in measures)), rows)


def _breakdown(result: StudyValues, trace: str) -> StudyTable:
    """The time breakdown, summed over one iteration of each epoch, one row per run."""
    study = result.study
    cells = [(run.label, result.cells[trace, run.label]) for run in study.runs]
    headings, rows = breakdown_table([(label, cell.parts or None, _failure(cell)) for label, cell in cells])
    batch = study.traces[trace].info.batch
    return StudyTable(f"{study.network(trace)}, batch {batch}: time breakdown", headings, rows)


def _budgets(study: Study) -> Iterator[StudyTable]:
    """The budgets of the runs with percentages, on each trace, and below them the peaks."""
    budgets = {run.label: [run.on(trace)[1] for trace in study.traces] for run in study.runs}
    given = {label: each for label, each in budgets.items() if any(isinstance(budget, PeakPart) for budget in each)}
    if not given:
        return
    rows = [(label, *map(_budget, each)) for label, each in given.items()]
    # Runs on another node, or on several GPUs, may have another peak.
    peaks = [
        dict.fromkeys(format_bytes(budget.peak) for budget in each if isinstance(budget, PeakPart))
        for each in zip(*given.values(), strict=True)
    ]
    rows.append(("peak", *map(" or ".join, peaks)))
    yield StudyTable("budgets, as parts of the peak without offloading", ("", *study.traces), rows)


def _budget(budget: int | None) -> str:
    if budget is None:
        return "all memory"
    part = f" ({budget.percentage})" if isinstance(budget, PeakPart) else ""
    return f"{format_bytes(budget)}{part}"


def _memory(result: StudyValues) -> StudyTable:
    """Each amount in bytes, and below it the geometric mean of the reduction relative to all tensors."""
    rows = [(label, *(format_bytes(amounts[name]) for name in AMOUNTS)) for label, amounts in result.memory.items()]
    saved = (
        geometric_mean(amounts["all_at_once"] / amounts[name] for amounts in result.memory.values()) for name in AMOUNTS
    )
    title = "memory: all tensors, lower bounds, and one technique alone; geometric mean of the reduction"
    return StudyTable(title, ("", *AMOUNTS.values()), [*rows, ("geomean", *(f"{each:.1f}x" for each in saved))])


def _title(measure: str, over: str) -> str:
    return MEASURES[measure].title.format(over=over)


def table_notes(result: StudyValues) -> list[str]:
    """Notes under the tables: missing values, means, unsteady runs."""
    swept = any(run.sweep for run in result.study.runs)
    one_trace = swept and len(result.study.traces) == 1
    notes = [] if one_trace else list(_mean_notes(result))
    if swept and not one_trace and any(cell.out_of_memory for cell in result.cells.values()):
        notes.append("-: OOM, or no baseline run")
    if any(cell.steady is False for cell in result.cells.values()):
        notes.append("* unsteady: the last two iterations differ; run more iterations")
    return notes


def _mean_notes(result: StudyValues) -> Iterator[str]:
    """Notes on the kinds of means in the tables, and on their traces."""
    means = result.all_means()
    kinds = (("geomean: geometric mean", True), ("mean: arithmetic mean", False))
    texts = [text for text, geometric in kinds if any(each.geometric == geometric for each in means)]
    if not texts:
        return
    every = all(len(each.traces) == each.total_traces for each in means)
    over = "" if every else " of the stated number of traces, those with a value for every run"
    yield f"{'; '.join(texts)}{over}"
    if any(any(each.out_of_memory.values()) for each in means):
        yield "OOM: number of traces on which a run is out of memory"
    if any(row.aggregate == MEAN and MEASURES[row.measure].ratio for row in result.study.published):
        yield "means of published numbers, and simulated ones compared with them: arithmetic, as in the papers"
    if any(run.sweep for run in result.study.runs) and any(None in each.values.values() for each in means):
        yield "a budget has no mean if one of these traces does not fit"


def failures(result: StudyValues) -> list[str]:
    """Why cells have no numbers, with trace and run; for a sweep, only at its largest budget and smallest batch."""
    runs = {run.label: run for run in result.study.runs}
    of_sweeps: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for (trace, label), cell in result.cells.items():
        if why := cell.out_of_memory or cell.refused:
            place = result.study.network(trace), runs[label].sweep or label
            results = (-cell.batch, runs[label].on(trace)[1] or 0, f"{trace}, {label}: {why}")
            of_sweeps.setdefault(place, []).append(results)
    return [max(results)[-1] for results in of_sweeps.values()]


def published_rows(result: StudyValues) -> list[tuple[str, ...]]:
    """The rows under `PUBLISHED_HEADINGS`; numbers in square brackets refer to `published_notes`."""
    numbers = _numbers(result)
    return [_published(row, result.study, numbers) for row in result.comparisons()]


def published_notes(result: StudyValues) -> list[str]:
    """Notes on published numbers, with their number in square brackets."""
    return [f"[{number}] {note}" for note, number in _numbers(result).items()]


def study_text(result: StudyValues) -> str:
    """The tables as plain text."""
    return "\n".join(_parts(result))


def _parts(result: StudyValues) -> Iterator[str]:
    yield facts_text([("study", result.study.name), *result.study.facts()])
    for title, headings, rows in study_tables(result):
        yield f"\n{title}"
        yield table_text((*headings, ""), [(*row, "") for row in rows])
    yield from table_notes(result)
    if result.study.published:
        yield f"\n{table_text(PUBLISHED_HEADINGS, published_rows(result))}"
        yield from published_notes(result)


def _cell(result: StudyValues, trace: str, run: StudyRun, measure: str, over: str, no_memory: str = OOM) -> str:
    kind = MEASURES[measure]
    cells = [result.cells[point, run.label] for point in result.study.networks.get(trace, (trace,))]
    if all(cell.failure for cell in cells):
        return REFUSED if cells[-1].refused else no_memory
    other = None if kind.alone else result.study.compared(run, over)
    known = kind.alone or other is not None
    text = kind.text(result.value(measure, trace, run.label, other.label if other else "") if known else None)
    return text + (_UNSTEADY if any(cell.steady is False for cell in cells) else "")


def _failure(cell: StudyCell) -> str:
    return {"": "", "refused": REFUSED}.get(cell.failure, OOM)


def _numbers(result: StudyValues) -> dict[str, int]:
    notes = dict.fromkeys(row.note for row in result.study.published if row.note)
    return {note: number for number, note in enumerate(notes, start=1)}


def _published(row: PublishedComparison, study: Study, numbers: dict[str, int]) -> tuple[str, ...]:
    number, kind = row.published, MEASURES[row.published.measure]
    label = f"{_subject(number)}, {number.aggregate}" + (f", {kind.word}" if kind.word else "")
    if number.excluding:
        label += f", without {', '.join(number.excluding)}"
    swept = row.points > row.expected or (bool(study.sweeps) and row.expected > 1)
    if swept and row.values < row.points:
        label += f" ({row.values} of {row.points})"
    elif row.traces < row.expected and row.expected > 1:
        label += f" ({row.traces})"
    mark = f" [{numbers[number.note]}]" if number.note else ""
    return (
        label,
        kind.text(row.simulated),
        kind.text(number.value),
        kind.difference(row.difference, number.value),
        number.source + mark,
    )


def _subject(number: PublishedNumber) -> str:
    if number.memory is not None:
        return AMOUNTS[number.memory]
    return f"{number.run} over {number.vs}" if number.vs else number.run
