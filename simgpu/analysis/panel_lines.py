"""Panels of lines: what runs reach along a sweep, and what changes over iterations.

Loads matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import nan
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from simgpu.analysis.panels import Bar, Curve, LinePanel, TimePanel
from simgpu.analysis.run_looks import RunLook, run_looks

#: Where a line ends because its run does not reach the next point.
END: dict[str, Any] = {"marker": "x", "markersize": 9, "markeredgewidth": 1.6, "linestyle": "", "color": "black"}
#: What a paper states of a run has the run's marker, open.
PAPER: dict[str, Any] = {"linestyle": "", "markerfacecolor": "white", "markeredgewidth": 1.5, "markersize": 8}
#: An axis of ratios that span more than so many times is logarithmic.
_MOST_LINEAR = 30
#: An axis of ratios shows so much around its level at least, so that what hardly differs looks so.
_LEAST_SPAN = 0.05


def draw_lines(ax: Axes, panel: LinePanel, looks: Mapping[str, RunLook], inches: float) -> None:
    """Lines over the sweep, dashed levels of the runs outside it, and axes; inches: about how wide they will be."""
    scale, _ = panel.told.unit(max(map(abs, _values(panel)), default=0.0))
    along, unit = _along(panel)
    if panel.told.level is not None:
        ax.axhline(panel.told.level / scale, color="#777777", linewidth=0.9, zorder=1)
    for curve in panel.curves:
        look = looks[curve.label]
        _draw_curve(ax, curve, look, scale, along)
        if curve.level is not None and curve.level.value is not None:
            ax.axhline(curve.level.value / scale, **{**level_style(look), "marker": ""})
            # Its marker at the edge, where no point of another line is.
            at_edge = {**level_style(look), "transform": ax.get_yaxis_transform(), "clip_on": False}
            ax.plot([1.0], [curve.level.value / scale], **at_edge)
        if curve.level is not None:
            _draw_published(ax, max(_places(panel)) / along, curve.level, look, scale)
    _limit(ax, panel, scale)
    _mark_places(ax, panel, along, inches)
    absent = _absent(panel.curves)
    label = f"{panel.along.title} ({unit})" if unit else panel.along.title
    ax.set_xlabel("\n".join([label, *([fill(absent, int(inches / 0.062))] if absent else [])]), fontsize=8.5)


def level_style(look: RunLook) -> dict[str, Any]:
    """The line of a run that is not along the sweep."""
    return {**look.line, "linestyle": "--", "linewidth": 1.3}


def unit_of(panel: LinePanel) -> str:
    """The unit of its values."""
    return panel.told.unit(max(map(abs, _values(panel)), default=0.0))[1]


def draw_time(ax: Axes, panel: TimePanel) -> None:
    """A line each over the iterations, and a legend of its own beside the axes."""
    scale, _ = panel.told.unit(1.0)
    looks = run_looks(panel.lines)
    for number, (label, values) in enumerate(panel.lines.items()):
        parts = len(values) // len(panel.epochs)
        at = [(place + 0.5) / parts for place in range(len(values))]
        # Lines that lie on each other have their markers at different places.
        every = (number % max(parts // 5, 1), max(parts // 5, 1))
        ax.plot(
            at, [value / scale for value in values], label=fill(label, 30), markevery=every, **_thinner(looks[label])
        )
    for epoch in range(1, len(panel.epochs)):
        ax.axvline(epoch, color="#BBBBBB", linewidth=0.8)
    ax.set_xlim(0, len(panel.epochs))
    ax.set_ylim(bottom=0)
    if len(panel.epochs) == 1:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.0%}"))
        ax.set_xlabel("time of the iteration", fontsize=8.5)
    else:
        ax.set_xticks([epoch + 0.5 for epoch in range(len(panel.epochs))], list(map(str, panel.epochs)))
        ax.set_xlabel("an iteration of each of the epochs, one after another", fontsize=8.5)
    legend = ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=7.5, borderaxespad=0)
    # It stands in room that is left for it; the axes do not give way to it.
    legend.set_in_layout(False)


def _thinner(look: RunLook) -> dict[str, Any]:
    return {**look.line, "linewidth": 1.4, "markersize": 5}


def _places(panel: LinePanel) -> list[float]:
    """Where along the axis there is a point, in order."""
    return sorted({point.at for curve in panel.curves for point in curve.points})


def _along(panel: LinePanel) -> tuple[float, str]:
    """The unit of the sweep: of budgets in whole MB that in which they are written."""
    places = _places(panel)
    decimal = panel.along.kind == "size" and all(place % 10**6 == 0 for place in places)
    return panel.along.unit(max(places), decimal=decimal)


def _mark_places(ax: Axes, panel: LinePanel, along: float, inches: float) -> None:
    """Ticks at the points where they have room, else at round numbers."""
    places = [place / along for place in _places(panel)]
    texts = [f"{place:.4g}" for place in places]
    room = inches / max((max(places) - min(places)) * 1.12, 1e-9)
    gaps = [(high - low) * room for low, high in pairwise(places)]
    if all(gap > 0.075 * max(map(len, texts)) + 0.05 for gap in gaps):
        ax.set_xticks(places, texts)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=panel.along.kind == "count", steps=[1, 2, 5, 10]))
    # Also where a line has no value: all panels of a sweep show all of it.
    beside = 0.06 * (max(places) - min(places)) or 0.5 * max(places) or 0.5
    ax.set_xlim(min(places) - beside, max(places) + beside)


def _draw_curve(ax: Axes, curve: Curve, look: RunLook, scale: float, along: float) -> None:
    points = sorted(curve.points, key=lambda point: point.at)
    values = [nan if point.bar.value is None else point.bar.value / scale for point in points]
    ax.plot([point.at / along for point in points], values, **look.line)
    for point in points:
        _draw_published(ax, point.at / along, point.bar, look, scale)
    for point, _ in curve.ends():
        ax.plot([point.at / along], [(point.bar.value or 0.0) / scale], zorder=5, **END)


def _draw_published(ax: Axes, at: float, bar: Bar, look: RunLook, scale: float) -> None:
    for value in bar.published:
        ax.plot([at], [value / scale], marker=look.marker, markeredgecolor=look.colour, zorder=6, **PAPER)


def _limit(ax: Axes, panel: LinePanel, scale: float) -> None:
    """From zero for what is told of runs alone, around the level else."""
    values = [value / scale for value in _values(panel)]
    level = None if panel.told.level is None else panel.told.level / scale
    if level is None:
        ax.set_ylim(0, 1.08 * max(values, default=0.0) or 1.0)
        return
    low, top = min([level, *values]), max([level, *values])
    if low > 0 and top > _MOST_LINEAR * low:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        return
    spare = max(0.08 * (top - low), (_LEAST_SPAN / scale - (top - low)) / 2)
    ax.set_ylim(low - spare, top + spare)


def _values(panel: LinePanel) -> list[float]:
    bars = [bar for curve in panel.curves for bar in curve.bars]
    return [value for bar in bars for value in (*bar.published, *([] if bar.value is None else [bar.value]))]


def _absent(curves: Sequence[Curve]) -> str:
    """Which runs have no value at all, by why that is so."""
    found: dict[str, list[str]] = {}
    for curve in curves:
        if curve.absent:
            found.setdefault(curve.absent, []).append(curve.label)
    return "; ".join(f"{why}: {', '.join(labels)}" for why, labels in found.items())
