"""The contents of panels that compare measures of runs, before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

from simgpu.units import BYTE_UNITS

Kind = Literal["number", "count", "share", "size"]


class AxisInfo(NamedTuple):
    """The quantity along an axis.

    kind: ``share`` is drawn in percent, ``size`` in a unit of bytes, ``count`` is a whole number.
    level: of a quantity relative to a baseline, the value of a run equal to the baseline; None of an absolute one.
    """

    title: str
    kind: Kind = "number"
    level: float | None = None

    def unit(self, largest: float, *, decimal: bool = False) -> tuple[float, str]:
        """The divisor and the name of the unit for values up to the largest.

        decimal: sizes in GB in place of GiB.

        >>> AxisInfo("peak", "size").unit(3 * 2**30), AxisInfo("hits", "share").unit(0.4), AxisInfo("time").unit(8)
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
        """A value in its unit, in two or three digits.

        >>> AxisInfo("time").text(1.2345), AxisInfo("batch", "count").text(96.0), AxisInfo("hits", "share").text(3.1416)
        ('1.23', '96', '3.1')
        >>> AxisInfo("time").text(0.0123), AxisInfo("hits", "share").text(0.0)
        ('0.012', '0')
        """
        size = abs(value)
        if 0 < size < 0.1:
            return f"{value:.2g}"
        if size == 0 or self.kind == "count":
            return f"{value:.0f}"
        # Round to one digit less if that gives the wanted number of values.
        if self.kind == "share":
            return f"{value:.0f}" if size >= 9.95 else f"{value:.1f}"
        return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


class Bar(NamedTuple):
    """A run's value, or None and why there is none; and what papers state of the same."""

    value: float | None
    why: str = ""
    published: tuple[float, ...] = ()

    @property
    def values(self) -> tuple[float, ...]:
        """The value, if there is one, and what papers state."""
        return self.published if self.value is None else (self.value, *self.published)


class BarPanel(NamedTuple):
    """Bars of runs by their labels, in groups by theirs; every group has the same runs."""

    measured: AxisInfo
    groups: Mapping[str, Mapping[str, Bar]]

    @property
    def bar_count(self) -> int:
        """The number of bars, also of those without a value."""
        return sum(map(len, self.groups.values()))

    @property
    def values(self) -> list[float]:
        """All values, those of papers too."""
        return [value for runs in self.groups.values() for bar in runs.values() for value in bar.values]

    @property
    def unit(self) -> tuple[float, str]:
        """The unit of the values, as `AxisInfo.unit` has it."""
        return self.measured.unit(max(map(abs, self.values), default=0.0))


class CurvePoint(NamedTuple):
    """A place along the axis, with a value."""

    at: float
    bar: Bar


class RunCurve(NamedTuple):
    """A run's values along the axis, or its level, where it does not vary along it."""

    label: str
    points: tuple[CurvePoint, ...] = ()
    level: Bar | None = None

    @property
    def bars(self) -> tuple[Bar, ...]:
        """All its values, with or without a place along the axis."""
        return (*(point.bar for point in self.points), *([self.level] if self.level else []))

    @property
    def absent(self) -> str:
        """Why there is no value; empty if there is one, or if the reason is not known."""
        return "" if any(bar.value is not None for bar in self.bars) else self.bars[-1].why

    def ends(self) -> list[tuple[CurvePoint, str]]:
        """Points with a value next to a point without, and why the latter has none."""
        by_place = sorted(self.points, key=lambda point: point.at)
        results = {}
        for one, other in pairwise(by_place):
            for point, neighbour in ((one, other), (other, one)):
                if point.bar.value is not None and neighbour.bar.value is None and neighbour.bar.why:
                    results[point] = neighbour.bar.why
        return list(results.items())


class LinePanel(NamedTuple):
    """Curves of runs, each a line over `along`; name: their trace or network."""

    measured: AxisInfo
    name: str
    along: AxisInfo
    curves: tuple[RunCurve, ...]

    @property
    def values(self) -> list[float]:
        """All values, those of papers too."""
        return [value for curve in self.curves for bar in curve.bars for value in bar.values]

    @property
    def unit(self) -> tuple[float, str]:
        """The unit of the values, as `AxisInfo.unit` has it."""
        return self.measured.unit(max(map(abs, self.values), default=0.0))

    @property
    def places(self) -> list[float]:
        """Where along the axis there is a point, in order."""
        return sorted({point.at for curve in self.curves for point in curve.points})


class TimePanel(NamedTuple):
    """Lines over the iterations of consecutive epochs, by label; each line has equally many values per epoch."""

    measured: AxisInfo
    epochs: tuple[int, ...]
    lines: Mapping[str, tuple[float, ...]]

    @property
    def unit(self) -> tuple[float, str]:
        """The unit of the values, as `AxisInfo.unit` has it."""
        return self.measured.unit(1.0)


Panel = BarPanel | LinePanel | TimePanel
