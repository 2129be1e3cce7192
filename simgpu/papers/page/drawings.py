"""What checks return to be drawn, as figures: bars, lines, and maps of decisions.

Loads matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log10
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from simgpu.analysis.charts import RunLook, head, run_looks
from simgpu.analysis.measure_charts import plot_measures
from simgpu.analysis.panel_axes import LINE_PAPER
from simgpu.analysis.panels import AxisInfo, Bar, BarPanel
from simgpu.analysis.plots import RunFigure
from simgpu.papers.page.decision_map import draw_cells

_SIZE_INCHES = (8.6, 3.5)
_LEGEND_CHARACTERS = 26
#: A line of twice as many points or more has about so many markers.
_MARKED = 12
#: Values that span more than so many times are on a logarithmic axis.
_MOST_LINEAR = 100
#: An axis begins at zero unless its least value is so much of its largest.
_FAR_FROM_ZERO = 0.5


def drawn(drawing: Mapping[str, Any]) -> Figure:
    """A drawing as a figure; what is published are marks on it.

    >>> from simgpu.papers.checks.found import bars
    >>> figure = drawn(bars("ratio", {"VGG16": {"zvc": 2.0}}, {"VGG16": {"zvc": 2.6}}))
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['zvc', 'paper']
    """
    return _KINDS[drawing["kind"]](drawing)


def _bars(drawing: Mapping[str, Any]) -> Figure:
    found, published = drawing["groups"], drawing["published"]
    labels = list(dict.fromkeys(label for groups in (found, published) for bars in groups.values() for label in bars))
    groups = {
        group: {label: _bar(found.get(group, {}), published.get(group, {}), label) for label in labels}
        for group in dict.fromkeys([*found, *published])
    }
    told = AxisInfo(drawing["measure"], "share" if drawing["share"] else "number")
    return plot_measures([[BarPanel(told, groups)]], labels, title="")


def _bar(found: Mapping[str, float | None], published: Mapping[str, float], label: str) -> Bar:
    return Bar(found.get(label), published=(published[label],) if label in published else ())


def _lines(drawing: Mapping[str, Any]) -> Figure:
    curves, published = drawing["curves"], drawing["published"]
    figure = RunFigure(figsize=_SIZE_INCHES, layout="constrained")
    ax = figure.subplots()
    looks = run_looks([*curves, *published])
    for number, (label, points) in enumerate(curves.items()):
        # Markers of long lines stand apart, and not all at one place where lines lie on each other.
        apart = max(len(points) // _MARKED, 1)
        ax.plot(*_columns(points), **_line(looks[label]), markevery=(number * apart // len(curves), apart))
    for label, points in published.items():
        ax.plot(*_columns(points), **_mark(looks[label]), zorder=5)
    points = [point for each in (curves, published) for points in each.values() for point in points]
    _axes(ax, drawing, [value for _, value in points])
    if drawing["log"]:
        _logarithmic(ax, [at for at, _ in points])
    handles = {fill(label, _LEGEND_CHARACTERS): Line2D([], [], **_line(looks[label])) for label in curves}
    alone = [label for label in published if label not in curves]
    handles |= {fill(_of_paper(label), _LEGEND_CHARACTERS): Line2D([], [], **_mark(looks[label])) for label in alone}
    if len(alone) < len(published):
        handles["paper"] = Line2D([], [], marker="o", markeredgecolor="black", **LINE_PAPER)
    head(figure, "", tuple(handles.values()), tuple(handles))
    return figure


def _of_paper(label: str) -> str:
    return label if "paper" in label else f"{label}, paper"


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    ordered = sorted(points)
    return [at for at, _ in ordered], [value for _, value in ordered]


def _line(look: RunLook) -> dict[str, Any]:
    return {**look.line, "markersize": 5}


def _mark(look: RunLook) -> dict[str, Any]:
    return {"marker": look.marker, "markeredgecolor": look.colour, **LINE_PAPER}


def _axes(ax: Axes, drawing: Mapping[str, Any], values: list[float]) -> None:
    ax.set_xlabel(drawing["along"], fontsize=8.5)
    ax.set_ylabel(fill(drawing["measure"], 40), fontsize=8.5)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    low, top = min(values, default=0.0), max(values, default=1.0)
    if drawing["share"]:
        ax.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0 if top - low > 0.05 else 1))
    elif low > 0 and top > _MOST_LINEAR * low:
        ax.set_yscale("log")
        return
    if 0 <= low < _FAR_FROM_ZERO * top:
        ax.set_ylim(0, 1.08 * top)


def _logarithmic(ax: Axes, places: list[float]) -> None:
    """Marks at 1, 2 and 5 where less than two decades are shown, else at the decades."""
    ax.set_xscale("log")
    if log10(max(places) / min(places)) < 2:
        ax.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Figure]] = {"bars": _bars, "lines": _lines, "cells": draw_cells}
