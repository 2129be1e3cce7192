"""The part of ``simgpu validate public`` about times: tables of times, slowdowns and ordered pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simgpu.cli.screen import Screen, table
from simgpu.units import format_time
from simgpu.validation.public.predicted import ComparedPeak
from simgpu.validation.public.rows import published_rows
from simgpu.validation.public.selection import baselines
from simgpu.validation.public.times import (
    ComparedTime,
    Order,
    Slowdown,
    median_of,
    order_of_peaks,
    order_of_times,
    slowdowns,
)


def orders(times: Sequence[ComparedTime], peaks: Sequence[ComparedPeak]) -> list[Order]:
    """The order of the peaks and of the times."""
    return [order_of_peaks(peaks), order_of_times(times)]


def print_times(screen: Screen, times: Sequence[ComparedTime], peaks: Sequence[ComparedPeak]) -> None:
    """Prints all tables about times."""
    slower = slowdowns(times)
    titles = ("row", "model", "time of a sample", "predicted", "error", "waiting for the host")
    screen.print(table(titles, map(_time, times), unbroken=(0, 2, 3, 4, 5)))
    screen.print()
    screen.print(table(("row", "options", "baseline", "slowdown", "predicted", "error"), map(_slowdown, slower)))
    screen.print()
    screen.print(table(("median error of times", "", "rows"), _medians(times, slower)))
    screen.print()
    order = [(each.subject.value, f"{each.right} of {each.pairs}") for each in orders(times, peaks)]
    screen.print(table(("pairs of a group in the measured order", ""), order))
    screen.print()
    for cause in dict.fromkeys(each.predicted.cause for each in times if each.predicted.cause):
        screen.print(f"{', '.join(each.row.id for each in times if each.predicted.cause == cause)}: {cause}")
    screen.print()
    screen.print(f"slowdown: {len(slower)} of {len(baselines(published_rows()))} comparable rows are covered")
    screen.print()


def _time(time: ComparedTime) -> tuple[str, ...]:
    row, predicted = time.row, time.predicted
    waiting = 1 - predicted.kernels_ns / predicted.step_ns
    shown = (format_time(time.published), format_time(predicted.sample_ns), f"{100 * time.error:+.1f}%")
    return row.id, row.model, *shown, f"{100 * waiting:.0f}%"


def _slowdown(each: Slowdown) -> tuple[str, ...]:
    shown = (f"{each.published:.2f}x", f"{each.predicted:.2f}x", f"{100 * each.error:+.1f}%")
    return each.row.id, each.row.options, each.baseline.id, *shown


def _medians(times: Sequence[ComparedTime], slower: Sequence[Slowdown]) -> Iterator[tuple[str, str, str]]:
    for name, errors in (("time", [t.error for t in times]), ("slowdown", [s.error for s in slower])):
        middle = median_of(errors)
        if middle is not None:
            yield name, f"{100 * middle:.1f}%", str(len(errors))


def times_document(times: Sequence[ComparedTime], peaks: Sequence[ComparedPeak]) -> dict[str, object]:
    """The same as a JSON document."""
    slower = slowdowns(times)
    return {
        "median_error_of_times": median_of(each.error for each in times),
        "median_error_of_slowdowns": median_of(each.error for each in slower),
        "times": [
            {
                "id": each.row.id,
                "published_sample_ns": each.published,
                "predicted_sample_ns": each.predicted.sample_ns,
                "predicted_step_ns": each.predicted.step_ns,
                "predicted_kernels_ns": each.predicted.kernels_ns,
                "error": each.error,
                "cause": each.predicted.cause,
            }
            for each in times
        ],
        "slowdowns": [
            {
                "id": each.row.id,
                "baseline": each.baseline.id,
                "published": each.published,
                "predicted": each.predicted,
                "error": each.error,
            }
            for each in slower
        ],
        "ordered_pairs": [
            {"subject": each.subject.value, "pairs": each.pairs, "right": each.right} for each in orders(times, peaks)
        ],
    }
