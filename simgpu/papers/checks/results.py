"""What checks give: plain data, which can be kept and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Points = Sequence[tuple[float, float]]


def condition(holds: bool, detail: str) -> dict[str, Any]:
    """Whether something holds, and what it was checked on.

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
    """Bars by their labels in groups by theirs; published: marks on some of them. share: told in percent."""
    return {
        "kind": "bars",
        "measure": measure,
        "groups": {group: dict(found) for group, found in groups.items()},
        "published": {group: dict(found) for group, found in (published or {}).items()},
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
    """Lines by their labels; published: points next to a line of that label, or alone. log: the axis along is."""
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
    """A map of decisions: a word in every cell, cells of one word in one colour; along, down: what its axes are."""
    return {
        "kind": "cells",
        "rows": list(rows),
        "columns": list(columns),
        "values": [list(row) for row in values],
        "along": along,
        "down": down,
    }
