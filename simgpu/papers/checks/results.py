"""Builds the results of checks as plain data, which can be cached and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Points = Sequence[tuple[float, float]]


def condition(holds: bool, detail: str) -> dict[str, Any]:
    """Whether something holds, and the evidence as text.

    >>> condition(True, "32 windows, to the byte")
    {'holds': True, 'detail': '32 windows, to the byte'}
    """
    return {"holds": bool(holds), "detail": detail}


def bars(
    measure: str,
    groups: Mapping[str, Mapping[str, float | None]],
    published: Mapping[str, Mapping[str, float]] | None = None,
    *,
    share: bool = False,
) -> dict[str, Any]:
    """A bar chart: groups of bars, both by label. published: values marked on some bars. share: show percent."""
    return {
        "kind": "bars",
        "measure": measure,
        "groups": {group: dict(values) for group, values in groups.items()},
        "published": {group: dict(values) for group, values in (published or {}).items()},
        "share": share,
    }


def lines(
    measure: str,
    along: str,
    curves: Mapping[str, Points],
    published: Mapping[str, Points] | None = None,
    *,
    share: bool = False,
    log: bool = False,
) -> dict[str, Any]:
    """A line chart. curves, published: points by label. along: title of the x-axis. log: logarithmic x-axis."""
    return {
        "kind": "lines",
        "measure": measure,
        "along": along,
        "curves": {label: [list(point) for point in points] for label, points in curves.items()},
        "published": {label: [list(point) for point in points] for label, points in (published or {}).items()},
        "share": share,
        "log": log,
    }


def cells(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[str]], along: str = "", down: str = ""
) -> dict[str, Any]:
    """A map of decisions: one word per cell, one colour per word. along, down: titles of the axes."""
    return {
        "kind": "cells",
        "rows": list(rows),
        "columns": list(columns),
        "values": [list(row) for row in values],
        "along": along,
        "down": down,
    }
