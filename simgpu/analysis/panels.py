"""What a panel of a figure shows that puts measures of runs side by side, before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

from simgpu.units import BYTE_UNITS

Kind = Literal["number", "count", "share", "size"]


class Told(NamedTuple):
    """What is measured along an axis.

    title: in words. kind: ``share`` is drawn in percent, ``size`` in a unit of bytes, ``count`` is a whole number.
    level: what a run has that differs in nothing from the one it is told over; None where it is told of it alone.
    """

    title: str
    kind: Kind = "number"
    level: float | None = None

    def unit(self, largest: float, *, decimal: bool = False) -> tuple[float, str]:
        """The number to divide by, and the name of the unit, for values up to the largest.

        decimal: sizes in GB in place of GiB.

        >>> Told("peak", "size").unit(3 * 2**30), Told("hits", "share").unit(0.4), Told("time").unit(8)
        ((1073741824, 'GiB'), (0.01, '%'), (1.0, ''))
        """
        if self.kind == "share":
            return 0.01, "%"
        if self.kind == "size":
            units = ("TB", "GB", "MB", "kB") if decimal else ("TiB", "GiB", "MiB", "KiB")
            unit = next((unit for unit in units if abs(largest) >= BYTE_UNITS[unit]), "B")
            return BYTE_UNITS[unit], unit
        return 1.0, ""

    def text(self, value: float) -> str:
        """A value that is divided by its unit, in two or three digits.

        >>> Told("time").text(1.2345), Told("batch", "count").text(96.0), Told("hits", "share").text(3.14159)
        ('1.23', '96', '3.1')
        >>> Told("time").text(0.0123), Told("hits", "share").text(0.0)
        ('0.012', '0')
        """
        size = abs(value)
        if 0 < size < 0.1:
            return f"{value:.2g}"
        if size == 0 or self.kind == "count":
            return f"{value:.0f}"
        # Where rounding to one digit less would have as many as are wanted.
        if self.kind == "share":
            return f"{value:.0f}" if size >= 9.95 else f"{value:.1f}"
        return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


class Bar(NamedTuple):
    """A run's value, or None and a few words why there is none; and what a paper states of the same."""

    value: float | None
    why: str = ""
    published: tuple[float, ...] = ()


class BarPanel(NamedTuple):
    """Bars of runs by their labels, in groups by theirs; every group has the same runs."""

    told: Told
    groups: Mapping[str, Mapping[str, Bar]]

    @property
    def room(self) -> int:
        """How many bars there is room for."""
        return sum(map(len, self.groups.values()))


class Point(NamedTuple):
    """Where along the axis, and a value as that of a `Bar`."""

    at: float
    bar: Bar


class Curve(NamedTuple):
    """A run's values along the axis, or, of one that is not along it, its level."""

    label: str
    points: tuple[Point, ...] = ()
    level: Bar | None = None

    @property
    def bars(self) -> tuple[Bar, ...]:
        """All its values, with or without a place along the axis."""
        return (*(point.bar for point in self.points), *([self.level] if self.level else []))

    @property
    def absent(self) -> str:
        """Why there is no value at all; empty where there is one, or nobody knows."""
        return "" if any(bar.value is not None for bar in self.bars) else self.bars[-1].why

    def ends(self) -> list[tuple[Point, str]]:
        """The points that have a value beside one that has none, and why that has none."""
        by_place = sorted(self.points, key=lambda point: point.at)
        found = {}
        for one, other in pairwise(by_place):
            for point, beside in ((one, other), (other, one)):
                if point.bar.value is not None and beside.bar.value is None and beside.bar.why:
                    found[point] = beside.bar.why
        return list(found.items())


class LinePanel(NamedTuple):
    """Curves of runs, each a line over `along`; name: what all of them are of."""

    told: Told
    name: str
    along: Told
    curves: tuple[Curve, ...]


class TimePanel(NamedTuple):
    """Lines over the iterations of epochs, one after another, by label; each has as many values of every epoch."""

    told: Told
    epochs: tuple[int, ...]
    lines: Mapping[str, tuple[float, ...]]


Panel = BarPanel | LinePanel | TimePanel
