"""A study's numbers as texts for people: the table of ratios, and published numbers beside ours.

Lives here: which numbers stand side by side and how they are rounded. Does not live here: the numbers
(`simgpu.experiments.study`), or drawing on a terminal (the command line's).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simgpu.analysis.tables import facts_text, table_text

if TYPE_CHECKING:
    from simgpu.experiments.study import Beside, StudyResult

NO_MEMORY, REFUSED = "no memory", "refused"
PUBLISHED_HEADINGS = ("published", "ours", "paper", "differs", "where")
MEAN = "mean"
_ABSENT = "-"
_UNSTEADY = " *"


def ratio_title(over: str) -> str:
    """What `ratio_rows` are."""
    return f"throughput over {over}"


def ratio_headings(result: StudyResult) -> tuple[str, ...]:
    """Of `ratio_rows`."""
    return ("", "batch", *(run.label for run in result.study.runs))


def ratio_rows(result: StudyResult, over: str) -> list[tuple[str, ...]]:
    """One row a trace, one column a run: throughput over that of one run; the arithmetic mean of these at the end."""
    runs = [run.label for run in result.study.runs]
    rows = [
        (label, str(trace.info.batch), *(_cell(result, label, run, over) for run in runs))
        for label, trace in result.study.traces.items()
    ]
    means = (result.mean(run, over) for run in runs)
    return [*rows, (MEAN, "", *(_ABSENT if mean is None else f"{mean:.3f}" for mean in means))]


def ratio_notes(result: StudyResult) -> list[str]:
    """What to know before reading the table."""
    fits = all(cell.samples_per_s is not None for cell in result.cells.values())
    told = ["mean: arithmetic, of the ratios above" + ("" if fits else "; of the networks on which both ran")]
    if any(cell.steady is False for cell in result.cells.values()):
        told.append("* unsteady: the last two iterations still differ; run more of them")
    return told


def published_rows(result: StudyResult) -> list[tuple[str, ...]]:
    """Under `PUBLISHED_HEADINGS`; numbers in square brackets count `published_notes`."""
    numbers = _numbers(result)
    return [_published(row, len(result.study.traces), numbers) for row in result.beside()]


def published_notes(result: StudyResult) -> list[str]:
    """What to know before believing a published number, by its number in square brackets."""
    return [f"[{number}] {note}" for note, number in _numbers(result).items()]


def study_text(result: StudyResult) -> str:
    """The tables without looks."""
    return "\n".join(_parts(result))


def _parts(result: StudyResult) -> Iterator[str]:
    yield facts_text([("study", result.study.name), *result.study.facts()])
    for over in result.study.baseline:
        yield f"\n{ratio_title(over)}"
        yield table_text((*ratio_headings(result), ""), [(*row, "") for row in ratio_rows(result, over)])
    yield from ratio_notes(result)
    if result.study.published:
        yield f"\n{table_text(PUBLISHED_HEADINGS, published_rows(result))}"
        yield from published_notes(result)


def _cell(result: StudyResult, trace: str, run: str, over: str) -> str:
    cell = result.cells[trace, run]
    if cell.samples_per_s is None:
        return REFUSED if cell.refused else NO_MEMORY
    ratio = result.ratio(trace, run, over)
    return (_ABSENT if ratio is None else f"{ratio:.3f}") + (_UNSTEADY if cell.steady is False else "")


def _numbers(result: StudyResult) -> dict[str, int]:
    notes = dict.fromkeys(row.note for row in result.study.published if row.note)
    return {note: number for number, note in enumerate(notes, start=1)}


def _published(row: Beside, traces: int, numbers: dict[str, int]) -> tuple[str, ...]:
    number = row.published
    saved = number.measure == "time_saved"
    what = f"{number.run} over {number.over}, {number.of}" + (", time saved" if saved else "")
    if number.without:
        what += f", without {', '.join(number.without)}"
    if number.of == MEAN and row.traces + len(number.without) < traces:
        what += f" (of {row.traces})"
    mark = f" [{numbers[number.note]}]" if number.note else ""

    def text(value: float | None) -> str:
        return _ABSENT if value is None else f"{value:.1%}" if saved else f"{value:.3f}"

    gap = row.difference
    differs = _ABSENT if gap is None else f"{100 * gap:+.1f} points" if saved else f"{gap:+.3f}"
    return (what, text(row.ours), text(number.value), differs, number.source + mark)
