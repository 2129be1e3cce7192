"""The scoreboard as tables of texts, for the terminal and the page: peaks, times, slowdowns, medians, coverage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from simgpu.units import format_bytes, format_time
from simgpu.validation.public.coverage import Coverage
from simgpu.validation.public.predicted import ComparedPeak, median_error
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.selection import Subject, reasons
from simgpu.validation.public.several import CoverageOfSeveral
from simgpu.validation.public.times import (
    ComparedTime,
    Order,
    Slowdown,
    median_of,
    order_of_peaks,
    order_of_times,
)

_Compared = TypeVar("_Compared", ComparedPeak, ComparedTime)


def with_model(compared: Iterable[_Compared]) -> Iterator[tuple[_Compared, str]]:
    """Each with its model, which is named where it differs from that of the row above."""
    above = ""
    for each in compared:
        model, above = "" if each.row.model == above else each.row.model, each.row.model
        yield each, model


def peak_cells(peak: ComparedPeak) -> tuple[str, str, str, str]:
    """The published peak, its kind, the predicted one, and the error or, without a published peak, the verdict."""
    published = "OOM" if peak.published is None else format_bytes(peak.published)
    verdict = "right" if peak.is_right else "wrong"
    error = verdict if peak.error is None else _percent(peak.error)
    return published, peak.kind, format_bytes(peak.predicted), error


def time_cells(time: ComparedTime) -> tuple[str, str, str, str]:
    """The published and predicted time of a sample, the error, and the share in which the GPU waits for the host."""
    waiting = 1 - time.predicted.kernels_ns / time.predicted.step_ns
    shown = format_time(time.published), format_time(time.predicted.sample_ns), _percent(time.error)
    return *shown, f"{100 * waiting:.0f}%"


def slowdown_cells(each: Slowdown) -> tuple[str, str, str, str]:
    """The baseline's row, the published and predicted slowdown, and the error."""
    return each.baseline.id, f"{each.published:.2f}x", f"{each.predicted:.2f}x", _percent(each.error)


def option_of(each: Slowdown) -> str:
    """What differs from the baseline: the options, the precision, or the number of micro-batches."""
    row, baseline = each.row, each.baseline
    if row.options != baseline.options:
        return row.options
    return row.precision if row.precision != baseline.precision else row.batch


def _percent(error: float) -> str:
    return f"{100 * error:+.1f}%"


def peak_medians(peaks: Sequence[ComparedPeak]) -> Iterator[tuple[str, str, str]]:
    """Over all rows, and by project: name, median error, number of peaks; then the number of right verdicts."""
    projects = dict.fromkeys(peak.row.project for peak in peaks)
    for name, part in [("all", peaks), *((one, [p for p in peaks if p.row.project == one]) for one in projects)]:
        error = median_error(part)
        if error is not None:
            yield name, f"{100 * error:.1f}%", str(sum(peak.error is not None for peak in part))
    verdicts = [peak for peak in peaks if peak.published is None]
    yield "verdicts that are right", f"{sum(peak.is_right for peak in verdicts)}", str(len(verdicts))


def time_medians(times: Sequence[ComparedTime], slower: Sequence[Slowdown]) -> Iterator[tuple[str, str, str]]:
    """Of times and slowdowns: name, median error, number of rows."""
    for name, errors in (("time", [t.error for t in times]), ("slowdown", [s.error for s in slower])):
        middle = median_of(errors)
        if middle is not None:
            yield name, f"{100 * middle:.1f}%", str(len(errors))


def orders(times: Sequence[ComparedTime], peaks: Sequence[ComparedPeak]) -> list[Order]:
    """The order of the peaks and of the times."""
    return [order_of_peaks(peaks), order_of_times(times)]


def order_rows(times: Sequence[ComparedTime], peaks: Sequence[ComparedPeak]) -> list[tuple[str, str]]:
    """How many pairs of a group are in the measured order."""
    return [(each.subject.value, f"{each.right} of {each.pairs}") for each in orders(times, peaks)]


def causes(peaks: Sequence[ComparedPeak], times: Sequence[ComparedTime]) -> list[tuple[str, str]]:
    """The ids of the rows whose prediction is off for one cause, and the cause."""
    found: dict[str, dict[str, None]] = {}
    for row, cause in [(p.row, p.cause) for p in peaks] + [(t.row, t.predicted.cause) for t in times]:
        if cause:
            found.setdefault(cause, {})[row.id] = None
    return [(", ".join(ids), cause) for cause, ids in found.items()]


def counts(part: Coverage) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Numbers of rows: by the reason why they are not compared, and by what simgpu lacks for comparable ones."""
    yield "why a row is not compared", by_reason(part)
    if part.options:
        yield "options of comparable rows that are not modelled", part.options
    if part.models:
        yield "models of comparable rows that are not followed", part.models


def by_reason(part: Coverage | CoverageOfSeveral) -> dict[str, int]:
    """The number of rows by the first reason against them."""
    return {reason.value: count for reason, count in part.reasons.items()}


def covered_text(part: Coverage | CoverageOfSeveral) -> str:
    """How many rows are covered."""
    return f"{part.covered} of {part.comparable} comparable rows are covered, of {part.rows}"


def verdicts_of(row: PublishedRow) -> tuple[str, ...]:
    """For each subject, the first reason why a row is not compared, or "covered"."""
    found = (reasons(row, subject) for subject in Subject)
    return tuple(each[0].value if each else "covered" for each in found)
