"""The part of ``simgpu validate public`` about times: tables of times, slowdowns and ordered pairs."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.cli.screen import Screen, table
from simgpu.validation.public.predicted import ComparedPeak
from simgpu.validation.public.rows import published_rows
from simgpu.validation.public.selection import baselines
from simgpu.validation.public.tables import (
    causes,
    order_rows,
    orders,
    slowdown_cells,
    time_cells,
    time_medians,
    with_model,
)
from simgpu.validation.public.times import ComparedTime, Slowdown, median_of, slowdowns


def print_times(screen: Screen, times: Sequence[ComparedTime], peaks: Sequence[ComparedPeak]) -> None:
    """Prints all tables about times."""
    slower = slowdowns(times)
    rows = [(each.row.id, model, *time_cells(each)) for each, model in with_model(times)]
    titles = ("row", "model", "time of a sample", "predicted", "error", "waits for host")
    screen.print(table(titles, rows, left=(0, 1), unbroken=(0, 2, 3, 4, 5)))
    screen.print()
    options = [(each.row.id, each.row.options, *slowdown_cells(each)) for each in slower]
    titles = ("row", "options", "baseline", "slowdown", "predicted", "error")
    screen.print(table(titles, options, left=(0, 1)))
    screen.print()
    screen.print(table(("median error of times", "", "rows"), time_medians(times, slower)))
    screen.print()
    screen.print(table(("pairs of a group in the measured order", ""), order_rows(times, peaks)))
    screen.print()
    for ids, cause in causes([], times):
        screen.print(f"{ids}: {cause}")
    screen.print()
    screen.print(f"slowdown: {len(slower)} of {len(baselines(published_rows()))} comparable rows are covered")
    screen.print()


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
        "slowdowns": [slowdown_document(each) for each in slower],
        "ordered_pairs": [
            {"subject": each.subject.value, "pairs": each.pairs, "right": each.right} for each in orders(times, peaks)
        ],
    }


def slowdown_document(each: Slowdown) -> dict[str, object]:
    """A slowdown in a JSON document."""
    return {
        "id": each.row.id,
        "baseline": each.baseline.id,
        "published": each.published,
        "predicted": each.predicted,
        "error": each.error,
    }
