"""A picture of how a search went: worst, average and best cost by iteration (HOME, figure 8).

As `simgpu.analysis.plots` this module loads matplotlib, so import it only where something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from simgpu.analysis.plots import RunFigure

#: Costs above the least one times this are off the scale: they stand for what is not allowed, or flatten all others.
OFF_SCALE = 4.0
_SIZE_INCHES = (8.0, 3.4)
#: Added below for the strip that tells how many particles fit; its height as a part of the curves'.
_STRIP_INCHES, _STRIP = 0.8, 0.2
_COLOURS = {"worst": "#EE8866", "average": "#4477AA", "best": "#228833"}
_WIDTHS = {"worst": 1.0, "average": 1.3, "best": 1.8}
#: Of the height between the least cost and the top: what is left below for the mark, and above the highest point.
_BELOW, _ABOVE = 0.22, 0.06

Curves = Mapping[str, NDArray[np.float64]]


def plot_convergence(
    worst: ArrayLike,
    mean: ArrayLike,
    best: ArrayLike,
    *,
    unit: str,
    title: str | None = None,
    converged_at: int | None = None,
    fitting: ArrayLike | None = None,
) -> Figure:
    """Worst, average and best training iteration by iteration of a search; those of the search count from 1.

    worst, mean, best: one number for each, in `unit`, NaN where there is none. converged_at: the iteration of the
    search that first reached the best, marked with its cost. fitting: part of the particles that fit, drawn in a strip
    below where it is ever less than 1.
    Costs above `OFF_SCALE` times the least go out at the top, where a bar per curve and a line of text say which. An
    average says little where some of what it is taken over is not allowed and costs as much: better leave those out.
    `ValueError` for curves of different lengths, or without a least cost above 0.

    >>> figure = plot_convergence([9e15, 20, 14], [9e15, 16, 12], [13, 12, 11], unit="ms", converged_at=3)
    >>> print(*(text.get_text() for text in figure.axes[0].texts), sep="\\n")
    off the scale: worst and average in iteration 1
    best 11 ms, first in iteration 3
    """
    given = zip(_COLOURS, (worst, mean, best), strict=True)
    curves = {name: np.asarray(values, dtype=np.float64) for name, values in given}
    lengths = [len(values) for values in curves.values()]
    least = min((float(np.nanmin(values)) for values in curves.values() if not np.isnan(values).all()), default=0.0)
    if len(set(lengths)) > 1 or least <= 0:
        raise ValueError(f"curves of {lengths} points, least {least:g}; give three of one length, of costs above 0")
    figure, ax = _axes(None if fitting is None else np.asarray(fitting, dtype=np.float64))
    _draw_curves(ax, curves, least)
    bars = _tell_what_is_off(ax, curves, least)
    if converged_at is not None:
        _mark_best(ax, converged_at, float(curves["best"][converged_at - 1]), unit)
    ax.set_title(title or "", loc="left", fontsize=10, pad=16.0 + 6.0 * bars if bars else None)
    figure.axes[-1].set_xlabel("iteration of the search")
    ax.set_ylabel(f"training iteration ({unit})")
    ax.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8, borderaxespad=0.0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    return figure


def _axes(fitting: NDArray[np.float64] | None) -> tuple[RunFigure, Axes]:
    """A figure and the axes of its curves, with the strip below them if there is anything to tell in it."""
    if fitting is None or bool((fitting >= 1).all()):
        figure = RunFigure(figsize=_SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.subplots()
    width, height = _SIZE_INCHES
    figure = RunFigure(figsize=(width, height + _STRIP_INCHES), layout="constrained")
    FigureCanvasAgg(figure)
    ax, strip = figure.subplots(2, 1, sharex=True, height_ratios=(1, _STRIP))
    strip.fill_between(np.arange(1, len(fitting) + 1), fitting, color="0.8", linewidth=0, step="mid")
    strip.set_ylim(0, 1)
    strip.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    strip.set_ylabel("particles\nthat fit", fontsize=8)
    strip.spines[["top", "right"]].set_visible(False)
    strip.tick_params(labelsize=8)
    return figure, ax


def _draw_curves(ax: Axes, curves: Curves, least: float) -> None:
    count = len(curves["best"])
    iterations = np.arange(1, count + 1)
    top = max(float(values[values <= OFF_SCALE * least].max(initial=least)) for values in curves.values())
    height = max(top - least, 0.01 * least)
    for name, values in curves.items():
        # A line that leaves the picture does so steeply, and not with numbers that no renderer can take.
        shown = np.minimum(values, least + 20 * height)
        marker = "o" if count == 1 else None
        ax.plot(iterations, shown, color=_COLOURS[name], linewidth=_WIDTHS[name], label=name, marker=marker)
    ax.set_xlim(1 - 0.01 * count, count + 0.01 * count)
    ax.set_ylim(least - _BELOW * height, least + (1 + _ABOVE) * height)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _tell_what_is_off(ax: Axes, curves: Curves, least: float) -> int:
    """Above the open end of the axis: bars where curves are off the scale, and words; how many bars."""
    off = {name: values > OFF_SCALE * least for name, values in curves.items()}
    off = {name: where for name, where in off.items() if where.any()}
    by_words: dict[str, list[str]] = {}
    for row, (name, where) in enumerate(off.items()):
        edges = np.flatnonzero(np.diff(where, prepend=False, append=False))
        spans = [(first + 0.5, end - first) for first, end in zip(edges[::2], edges[1::2], strict=True)]
        low = 1.015 + 0.03 * row
        ax.broken_barh(
            spans, (low, 0.018), color=_COLOURS[name], linewidth=0, transform=ax.get_xaxis_transform(), clip_on=False
        )
        by_words.setdefault(_where(where), []).append(name)
    words = "; ".join(f"{' and '.join(names)} {where}" for where, names in by_words.items())
    if words:
        ax.annotate(
            f"off the scale: {words}",
            xy=(0, 1.015 + 0.03 * len(off)),
            xycoords="axes fraction",
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=8,
            color="0.3",
        )
    return len(off)


def _where(off: NDArray[np.bool_]) -> str:
    """In which iterations, in words."""
    count, last = int(off.sum()), int(np.flatnonzero(off)[-1]) + 1
    if count == len(off):
        return "throughout"
    if count == 1:
        return f"in iteration {last}"
    return f"in iterations 1 to {last}" if count == last else f"in {count} iterations, last in {last}"


def _mark_best(ax: Axes, iteration: int, cost: float, unit: str) -> None:
    """A dot where the best was reached, and its cost in the free strip below."""
    low, high = ax.get_xlim()
    share = (iteration - low) / (high - low)
    side = "left" if share < 0.2 else "right" if share > 0.8 else "center"
    ax.plot([iteration], [cost], marker="o", markersize=4.5, color="black", zorder=5)
    ax.annotate(
        f"best {cost:.5g} {unit}, first in iteration {iteration}",
        xy=(iteration, cost),
        xytext=(0, -8),
        textcoords="offset points",
        ha=side,
        va="top",
        fontsize=8,
    )
