"""The part of ``simgpu validate public`` about slowdowns of several GPUs: those predicted, and why others are not."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.cli.screen import Screen, table
from simgpu.cli.validate_public_times import slowdown_document
from simgpu.validation.public.rows import published_rows
from simgpu.validation.public.several import coverage_of_several, slowdowns_of_several
from simgpu.validation.public.tables import by_reason, covered_text, option_of, slowdown_cells
from simgpu.validation.public.times import Slowdown, median_of


def print_several(screen: Screen, slower: Sequence[Slowdown]) -> None:
    """Prints the slowdowns of several GPUs, their median error and the number of rows by reason."""
    cells = [(each.row.id, option_of(each), str(each.row.gpus), *slowdown_cells(each)) for each in slower]
    titles = ("row", "options", "GPUs", "baseline", "slowdown", "predicted", "error")
    screen.print(table(titles, cells, left=(0, 1)))
    screen.print()
    part = coverage_of_several(published_rows())
    middle = median_of(each.error for each in slower)
    error = "" if middle is None else f"; median error {100 * middle:.1f}%"
    screen.print(f"slowdown of several GPUs: {covered_text(part)}{error}")
    reasons = ("why a slowdown of several GPUs is not compared", "rows")
    screen.print(table(reasons, ((name, str(count)) for name, count in by_reason(part).items())))
    screen.print()


def several_document(slower: Sequence[Slowdown]) -> dict[str, object]:
    """The same as part of a JSON document."""
    part = coverage_of_several(published_rows())
    return {
        "median_error_of_slowdowns_of_several": median_of(each.error for each in slower),
        "slowdowns_of_several": [slowdown_document(each) for each in slower],
        "coverage_of_several": {
            "rows": part.rows,
            "baselines": part.baselines,
            "comparable": part.comparable,
            "covered": part.covered,
            "reasons": by_reason(part),
        },
        "reasons_of_several": {
            name: [reason.value for reason in against]
            for name, (_, against) in slowdowns_of_several(published_rows()).items()
        },
    }
