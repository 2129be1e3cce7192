"""Metrics as text for people: the comparison of policies in lines of at most 80 columns, and tables of facts."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Literal

from simgpu.analysis.breakdown import shown_parts
from simgpu.analysis.metrics import Metrics
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    from rich.table import Table

#: Columns of a terminal that never wraps.
_UNLIMITED = 10**6

#: Headings of `comparison_rows`, in order.
COMPARISON_HEADINGS = ("policy", "step time", "samples/s", "slowdown", "stalled", "transfers", "peak memory", "note")

#: Heading of the gap between a step time and its lower bound.
OVER_BOUND = "gap"

_ABSENT = "-"


def comparison_rows(results: Iterable[tuple[str, Metrics | None, str]]) -> list[tuple[str, ...]]:
    """One row of texts per (policy, metrics, note), under `COMPARISON_HEADINGS`; dashes where a run gave no metrics.

    step time: of the iteration. slowdown: against ideal. stalled: share of the iteration without running compute.
    transfers: bytes over the link, both directions. peak memory: live device memory in the iteration.

    >>> comparison_rows([("none", None, "out of memory")])
    [('none', '-', '-', '-', '-', '-', '-', 'out of memory')]
    """
    return [
        (policy, *(_cells(metrics) if metrics else [_ABSENT] * (len(COMPARISON_HEADINGS) - 2)), note)
        for policy, metrics, note in results
    ]


def with_bound(row: tuple[str, ...], text: str) -> tuple[str, ...]:
    """A row of `comparison_rows` (or the headings) with `text` inserted as an additional column after the slowdown."""
    at = COMPARISON_HEADINGS.index("slowdown") + 1
    return (*row[:at], text, *row[at:])


def over_bound(time_ns: int, bound_ns: int) -> str:
    """How far a time is over a bound.

    >>> over_bound(1036, 1000), over_bound(900, 1000)
    ('3.6%', '-10.0%')
    """
    return f"{time_ns / bound_ns - 1:.1%}" if bound_ns else _ABSENT


def breakdown_table(
    runs: Sequence[tuple[str, Mapping[str, int] | None, str]],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings, and a row per (label, parts, failure): the time, and the share of it that each part has.

    parts: nanoseconds by the names of `simgpu.analysis.breakdown.PARTS`, of which those are left out that are neither
    usual nor in any run; None where there are none, and `failure` says why in place of the time.

    >>> breakdown_table([("vdnn", {"computation": 250, "swapping": 750}, ""), ("none", None, "OOM")])[1]
    [('vdnn', '1 us', '25.0%', '0.0%', '75.0%', '0.0%'), ('none', 'OOM', '-', '-', '-', '-')]
    """
    shown = shown_parts(parts for _, parts, _ in runs if parts is not None)
    rows = []
    for label, parts, failure in runs:
        if parts is None:
            rows.append((label, failure, *(_ABSENT for _ in shown)))
            continue
        total = sum(parts.values())
        shares = (parts.get(name, 0) / total if total else 0.0 for name in shown)
        rows.append((label, format_time(total), *(f"{share:.1%}" for share in shares)))
    return ("", "step time", *shown), rows


def facts_text(facts: Iterable[tuple[str, str]]) -> str:
    """Names and texts, one fact a line.

    >>> print(facts_text([("node", "v100"), ("policy", "vdnn")]))
    node        v100
    policy      vdnn
    """
    lines = list(facts)
    width = max([11, *(len(name) for name, _ in lines)]) + 1
    return "\n".join(f"{name:<{width}}{text}" for name, text in lines)


def facts_html(facts: Iterable[tuple[str, str]]) -> str:
    """The same as an HTML table, for notebooks."""
    left = "style='text-align:left'"
    rows = (f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(text)}</td></tr>" for name, text in facts)
    return f"<table>{''.join(rows)}</table>"


def table_grid(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,), no_wrap: Collection[int] = ()
) -> Table:
    """A table without lines, for a terminal. left: columns to the left, all others to the right.

    no_wrap: columns whose texts never wrap.
    """
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, heading in enumerate(headings):
        justify: Literal["left", "right"] = "left" if index in left else "right"
        grid.add_column(Text(heading), justify=justify, overflow="fold", vertical="top", no_wrap=index in no_wrap)
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def table_text(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] | None = None) -> str:
    """Lines in columns, as wide as they need. left: columns to the left, by default the first and the last.

    >>> print(table_text(("policy", "time", "note"), [("none", "9 ms", ""), ("vdnn", "12 ms", "unsteady")]))
    policy   time  note
    none     9 ms
    vdnn    12 ms  unsteady
    """
    from rich.console import Console

    text = StringIO()
    # Height and the last two arguments keep rich from adapting to the terminal or notebook that this runs in.
    console = Console(
        file=text, width=_UNLIMITED, height=1, color_system=None, force_jupyter=False, legacy_windows=False
    )
    console.print(table_grid(headings, rows, (0, len(headings) - 1) if left is None else left))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def table_html(headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str, left: Collection[int] = ()) -> str:
    """The same as an HTML table with a caption. left: columns of text; with such columns, numbers do not wrap."""

    def look(column: int) -> str:
        style = " style='text-align:left'" if column in left else " style='white-space:nowrap'"
        return style if left else ""

    def line(tag: str, texts: Iterable[str]) -> str:
        cells = (f"<{tag}{look(at)}>{html.escape(text)}</{tag}>" for at, text in enumerate(texts))
        return "<tr>" + "".join(cells) + "</tr>"

    head, body = line("th", headings), "".join(line("td", row) for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"


def _cells(metrics: Metrics) -> list[str]:
    stalled = metrics.breakdown.stalled / metrics.iteration_ns if metrics.iteration_ns else 0.0
    return [
        format_time(metrics.iteration_ns),
        _number(metrics.samples_per_s),
        f"{metrics.slowdown:.3f}x",
        f"{stalled:.1%}",
        format_bytes(metrics.link_bytes),
        format_bytes(metrics.device_peak_bytes),
    ]


def _number(value: float) -> str:
    """At least four digits."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
