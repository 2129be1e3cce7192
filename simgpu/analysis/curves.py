"""Charts of many runs: a measure over a varied number, throughput against memory, and the smallest budgets.

Loads matplotlib, so import it only where something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from textwrap import fill, wrap
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from simgpu.analysis.charts import RunLook, head, run_looks
from simgpu.analysis.plots import RunFigure

_WIDTH_INCHES, _HEIGHT_INCHES, _BAR_INCHES = 9.0, 3.8, 0.32
#: Height of a line of the legend, and the columns before its names wrap.
_NAME_INCHES, _NAME_COLUMNS = 0.18, 44
#: Between rows of markers of failed points.
_ROW_POINTS = 9
_HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markersize": 5, "markeredgewidth": 1.2}
_REFERENCE: dict[str, Any] = {"color": "#555555", "linewidth": 1.0, "zorder": 1}
_OTHERS: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4, "color": "#AAAAAA", "zorder": 2}
#: Points of the front whose distance is a smaller part of the axes have one label.
_NEAR = 0.04
#: Points that are nearer to the left axis, as a part of its length, have their label to the right.
_EDGE = 0.1
_FRONT: dict[str, Any] = {"color": "#333333", "linewidth": 1.2, "linestyle": "--", "zorder": 1}

#: Points of a curve: x and y.
Points = Sequence[tuple[float, float]]


def plot_curves(
    curves: Mapping[str, Points],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    references: Mapping[str, float | Points] | None = None,
    spreads: Mapping[str, Sequence[float]] | None = None,
    failed: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
) -> RunFigure:
    """One line per run over a varied number.

    references: lines to compare with, by name: a number is a horizontal line, points are a curve (a lower bound, say).
    spreads: half the length of the error bar at each point of a run.
    failed: by reason and run, the x of points without a result. They are hollow markers above the axes, a row per run.

    >>> figure = plot_curves({"vdnn": [(8, 79), (10, 80)]}, title="VGG-16", xlabel="budget (GiB)", ylabel="samples/s")
    >>> figure.axes[0].get_xlabel()
    'budget (GiB)'
    """
    figure, ax, looks = _begin(curves)
    handles = [
        ax.plot(*_columns(points), **looks[label].line, zorder=3, clip_on=False)[0]
        if points
        else ax.plot([], [], **looks[label].line)[0]
        for label, points in curves.items()
    ]
    for label, lengths in (spreads or {}).items():
        bars: dict[str, Any] = {"fmt": "none", "elinewidth": 1.2, "capsize": 6, "zorder": 4}
        ax.errorbar(*_columns(curves[label]), yerr=lengths, ecolor=looks[label].colour, **bars)
    names = [fill(name, _NAME_COLUMNS) for name in curves]
    for name, reference in (references or {}).items():
        if isinstance(reference, float | int):
            handles.append(ax.axhline(reference, linestyle=":", **_REFERENCE))
        else:
            handles.append(ax.plot(*_columns(reference), linestyle="-", **_REFERENCE)[0])
        names.append(name)
    missing = failed or {}
    _mark_failed(figure, ax, missing, looks)
    ax.set_xlabel(xlabel, parse_math=False)
    ax.set_ylabel(ylabel, parse_math=False)
    ax.set_ylim(bottom=0)
    places = [x for points in curves.values() for x, _ in points]
    places += [x for runs in missing.values() for each in runs.values() for x in each]
    if all(float(x).is_integer() for x in places):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    head(figure, title, handles, names)
    return figure


def _mark_failed(
    figure: RunFigure, ax: Axes, failed: Mapping[str, Mapping[str, Sequence[float]]], looks: Mapping[str, RunLook]
) -> None:
    """The rows of markers above the axes, and the reasons to their left."""
    row = sum(map(len, failed.values()))
    figure.set_figheight(figure.get_figheight() + row * _ROW_POINTS / 72)
    for why, runs in failed.items():
        middle = _ROW_POINTS * (row - (len(runs) - 1) / 2)
        ax.annotate(why, (0, 1), (-6, middle), "axes fraction", "offset points", ha="right", va="center", fontsize=8)
        for label, places in runs.items():
            above = ScaledTranslation(0, row * _ROW_POINTS / 72, figure.dpi_scale_trans)
            at = {"transform": ax.get_xaxis_transform() + above, "clip_on": False}
            ax.plot(places, [1] * len(places), **looks[label].line | _HOLLOW | at)
            ax.update_datalim([(x, 0) for x in places], updatey=False)  # which plot does not do with this transform
            row -= 1


def plot_front(
    points: Mapping[str, Points],
    front: Points,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    names: Sequence[str] = (),
    others: Points = (),
    where: Literal["post", "pre"] = "post",
) -> RunFigure:
    """Runs as points, and the Pareto front as steps between those that no other run beats.

    front: ascending. names: the label of each of its points, drawn where no point is: above it, on the side of better
    x. others: points that are alike, not in the legend one by one. where: ``post`` if small x are better, ``pre`` if
    large.

    >>> runs = {"vdnn": [(8.4, 79)], "home": [(7.7, 172), (9.3, 183)]}
    >>> figure = plot_front(runs, runs["home"], title="VGG-16", xlabel="peak (GiB)", ylabel="samples/s")
    >>> len(figure.axes[0].lines)
    3
    """
    figure, ax, looks = _begin(points)
    handles = [
        ax.plot(*_columns(each), **{**looks[label].line, "linestyle": "none"}, zorder=3)[0]
        for label, each in points.items()
    ]
    (line,) = ax.step(*_columns(front), where=where, **_FRONT)
    texts = [*points, "Pareto front"]
    handles.append(line)
    if others:
        handles += ax.plot(*_columns(others), **_OTHERS)
        texts.append("other options")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_ylim(bottom=0)
    head(figure, title, handles, texts)
    _name_points(ax, front, names, -1 if where == "post" else 1)
    return figure


def _name_points(ax: Axes, points: Points, names: Sequence[str], side: int) -> None:
    """Labels above the points, to their left (-1) or right (1); points that nearly coincide have one label."""
    groups: list[list[tuple[float, float, str]]] = []
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    for (x, y), name in zip(points, names, strict=False):
        if groups and hypot((x - groups[-1][-1][0]) / (right - left), (y - groups[-1][-1][1]) / (high - low)) < _NEAR:
            groups[-1].append((x, y, name))
        else:
            groups.append([(x, y, name)])
    for group in groups:
        first, top = group[0][0], max(y for _, y, _ in group)
        towards = 1 if first - left < _EDGE * (right - left) else side
        look: dict[str, Any] = {"ha": "left" if towards > 0 else "right", "fontsize": 8}
        text = ", ".join(name for _, _, name in group)
        ax.annotate(text, (first, top), (4 * towards, 7), textcoords="offset points", **look)


def plot_budgets(
    budgets: Mapping[str, float], *, title: str, xlabel: str, texts: Mapping[str, str], bound: float | None = None
) -> RunFigure:
    """A bar per run: the smallest budget in which it fits, with a text behind it, and the lower bound as a line.

    >>> figure = plot_budgets({"none": 11.6, "home": 7.7}, title="VGG-16", xlabel="smallest budget (GiB)", texts={})
    >>> [float(bar.get_width()) for bar in figure.axes[0].patches]
    [11.6, 7.7]
    """
    figure = RunFigure(figsize=(_WIDTH_INCHES, 1.0 + _BAR_INCHES * len(budgets)), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    _bare(ax)
    bars = ax.barh(list(budgets), list(budgets.values()), color="#4477AA", height=0.7)
    ax.bar_label(bars, [texts.get(label, "") for label in budgets], padding=4, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.35 * max(budgets.values(), default=1))
    ax.set_xlabel(xlabel)
    if bound is not None:
        ax.axvline(bound, linestyle="--", color="#BB4444", linewidth=1.2)
        ax.annotate(
            "lower bound",
            (bound, 1.0),
            (3, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8,
        )
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _begin(runs: Mapping[str, Points]) -> tuple[RunFigure, Axes, dict[str, RunLook]]:
    lines = sum(len(wrap(name, _NAME_COLUMNS)) for name in runs)
    figure = RunFigure(figsize=(_WIDTH_INCHES, max(_HEIGHT_INCHES, 1.0 + _NAME_INCHES * lines)), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    _bare(ax)
    return figure, ax, run_looks(runs)


def _bare(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9)


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
