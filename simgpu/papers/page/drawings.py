"""Draws the figures that checks return as plain data: bars, lines, and maps of decisions. Loads matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil, log10
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from simgpu.analysis.charts import RunLook, head, run_looks
from simgpu.analysis.measure_charts import plot_measures
from simgpu.analysis.panel_axes import LINE_PAPER
from simgpu.analysis.panels import AxisInfo, Bar, BarPanel
from simgpu.analysis.plots import RunFigure

#: Paul Tol's light palette, on which black text is legible. The most frequent word gets the first colour.
_COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#44BB99", "#FFAABB", "#BBCC33", "#99DDFF", "#AAAA00")
_MORE = "#D8D8D8"
#: Colour of text on the palette, independent of the page's text colour.
_INK = "#111111"
_TABLE_INCHES, _WIDEST_CELL, _ROW_INCHES = 6.6, 0.95, 0.26
_POINTS, _CHARACTER = 7.5, 0.066
#: Labels up to this length are horizontal; width of a vertical one.
_SHORT, _UPRIGHT = 6, 0.14
#: Maps with more cells than this are drawn without words.
_MOST_WRITTEN = 240
_GRID: dict[str, Any] = {"color": "white", "linewidth": 0.8}


def draw_cells(drawing: Mapping[str, Any]) -> Figure:
    """Draw a map of decisions. Its cells contain words if they fit, else first letters if these are distinct."""
    rows, columns, values = drawing["rows"], drawing["columns"], drawing["values"]
    width = min(_WIDEST_CELL, _TABLE_INCHES / len(columns))
    longest = max(map(len, rows), default=0) * _CHARACTER
    high = 0.75 + _ROW_INCHES * len(rows) + (_CHARACTER * max(map(len, columns)) if _labels(columns, width)[1] else 0)
    figure = RunFigure(figsize=(width * len(columns) + longest + 2.2, high), layout="constrained")
    ax = figure.subplots()
    words = list(dict.fromkeys(word for row in values for word in row if word))
    words.sort(key=lambda word: -sum(row.count(word) for row in values))
    colours = {word: _COLOURS[at] if at < len(_COLOURS) else _MORE for at, word in enumerate(words)}
    for down, row in enumerate(values):
        for first, same in _stretches(row):
            ax.add_patch(Rectangle((first - 0.5, down - 0.5), len(same), 1, facecolor=colours[same[0]], linewidth=0))
    ax.vlines([at - 0.5 for at in range(1, len(columns))], -0.5, len(rows) - 0.5, **_GRID)
    ax.hlines([at - 0.5 for at in range(1, len(rows))], -0.5, len(columns) - 0.5, **_GRID)
    if len(rows) * len(columns) <= _MOST_WRITTEN:
        _write(ax, values, _texts(words, width))
    _map_axes(ax, drawing, width)
    handles = [Patch(facecolor=colours[word], linewidth=0) for word in words]
    head(figure, "", handles, words)
    return figure


def _texts(words: list[str], width: float) -> dict[str, str]:
    """The text of each word in its cell: the word, its first letter, or nothing."""
    if all(len(word) * _CHARACTER < width for word in words):
        return {word: word for word in words}
    first = {word: word[0] for word in words}
    distinct = len(set(first.values())) == len(words) and width > 1.5 * _CHARACTER
    return first if distinct else dict.fromkeys(words, "")


def _stretches(row: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Runs of adjacent cells with the same word: index of the first cell, and the cells. Empty cells are skipped."""
    at = 0
    for word, cells in groupby(row):
        same = list(cells)
        if word:
            yield at, same
        at += len(same)


def _write(ax: Axes, values: Sequence[Sequence[str]], texts: Mapping[str, str]) -> None:
    for down, row in enumerate(values):
        for across, word in enumerate(row):
            if text := texts.get(word):
                ax.text(across, down, text, ha="center", va="center", fontsize=_POINTS, color=_INK)


def _labels(columns: Sequence[str], width: float) -> tuple[int, bool]:
    """The step between labelled columns, and whether labels are vertical. Short labels are horizontal."""
    longest = max(map(len, columns), default=0) + 1
    turned = longest * _CHARACTER > width and longest > _SHORT
    return ceil((_UPRIGHT if turned else longest * _CHARACTER) / width), turned


def _map_axes(ax: Axes, drawing: Mapping[str, Any], width: float) -> None:
    rows, columns = drawing["rows"], drawing["columns"]
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    every, turned = _labels(columns, width)
    shown = range(0, len(columns), every)
    ax.set_xticks(list(shown), [columns[at] for at in shown], rotation=90 if turned else 0)
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0, labelsize=8)
    ax.set_xlabel(drawing["along"], fontsize=8.5)
    ax.set_ylabel(drawing["down"], fontsize=8.5)
    ax.spines[:].set_visible(False)


_SIZE_INCHES = (8.6, 3.5)
_LEGEND_CHARACTERS = 26
#: Number of markers on a line with at least twice as many points.
_MARKED = 12
#: The axis is logarithmic if the ratio of maximum to minimum exceeds this.
_MOST_LINEAR = 100
#: The axis begins at zero unless the minimum is at least this share of the maximum.
_FAR_FROM_ZERO = 0.5


def drawn(drawing: Mapping[str, Any]) -> Figure:
    """A drawing as a matplotlib figure, with marks for published values.

    >>> from simgpu.papers.checks.results import bars
    >>> figure = drawn(bars("ratio", {"VGG16": {"zvc": 2.0}}, {"VGG16": {"zvc": 2.6}}))
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['zvc', 'paper']
    """
    return _KINDS[drawing["kind"]](drawing)


def _bars(drawing: Mapping[str, Any]) -> Figure:
    simulated, published = drawing["groups"], drawing["published"]
    labels = list(
        dict.fromkeys(label for groups in (simulated, published) for bars in groups.values() for label in bars)
    )
    groups = {
        group: {label: _bar(simulated.get(group, {}), published.get(group, {}), label) for label in labels}
        for group in dict.fromkeys([*simulated, *published])
    }
    axis = AxisInfo(drawing["measure"], "share" if drawing["share"] else "number")
    return plot_measures([[BarPanel(axis, groups)]], labels, title="")


def _bar(simulated: Mapping[str, float | None], published: Mapping[str, float], label: str) -> Bar:
    return Bar(simulated.get(label), published=(published[label],) if label in published else ())


def _lines(drawing: Mapping[str, Any]) -> Figure:
    curves, published = drawing["curves"], drawing["published"]
    figure = RunFigure(figsize=_SIZE_INCHES, layout="constrained")
    ax = figure.subplots()
    looks = run_looks([*curves, *published])
    for number, (label, points) in enumerate(curves.items()):
        # Markers of long lines are spaced, and shifted so that overlapping lines stay visible.
        spacing = max(len(points) // _MARKED, 1)
        ax.plot(*_columns(points), **_line(looks[label]), markevery=(number * spacing // len(curves), spacing))
    for label, points in published.items():
        ax.plot(*_columns(points), **_mark(looks[label]), zorder=5)
    points = [point for series in (curves, published) for points in series.values() for point in points]
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
    """Set tick marks at 1, 2 and 5 if the axis spans less than two decades, else at the decades."""
    ax.set_xscale("log")
    if log10(max(places) / min(places)) < 2:
        ax.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Figure]] = {"bars": _bars, "lines": _lines, "cells": draw_cells}
