"""The first rows of a sweep as texts, for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from simgpu.experiments.sweep.point import OK, OUT_OF_MEMORY
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep

#: So many rows are shown; a table of more says little.
SHOWN = 40
HEADINGS = ("point", "policy", "time", "samples/s", "slowdown", "moved", "peak")
_ABSENT = "-"


def shown_rows(sweep: Sweep, rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The first rows under `HEADINGS`; in place of a time, what became of a row that has none."""
    return [(point_text(sweep, row["point"]), *_cells(row)) for row in islice(rows, SHOWN)]


def point_text(sweep: Sweep, point: int) -> str:
    """What a point gives, in the order of the axes.

    >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
    >>> point_text(load_sweep("memory-sweep"), 0)
    '16 MiB, 1 GB/s, 1 GB/s'
    """
    values = sweep.values(point)
    texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in values.values()]
    return ", ".join(texts).replace('"', "")


def failures(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Why rows have no result, other than for lack of memory: what is told, and of how many rows."""
    found: dict[str, int] = {}
    for row in rows:
        if row["outcome"] not in (OK, OUT_OF_MEMORY):
            told = f"{row['outcome']}: {row['message']}"
            found[told] = found.get(told, 0) + 1
    return found


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    policy = str(row.get("policy", _ABSENT))
    if row["outcome"] != OK:
        return policy, row["outcome"], *[_ABSENT] * (len(HEADINGS) - 3)
    rate, slowdown = row["samples_per_s"], row["slowdown"]
    return (
        policy,
        format_time(row["iteration_ns"]) + (" *" if row["steady"] is False else ""),
        _ABSENT if rate is None else f"{rate:.0f}" if rate >= 1000 else f"{rate:.4g}",
        _ABSENT if slowdown is None else f"{slowdown:.3f}x",
        format_bytes(row["bytes_out"] + row["bytes_in"]),
        format_bytes(row["device_peak_bytes"]),
    )
