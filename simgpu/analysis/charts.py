"""Charts of several runs: where their time went, decisions of a training, convergence of a search, and how runs look.

Loads matplotlib, so import it only where something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from simgpu.analysis.bars import PART_LOOKS, Look
from simgpu.analysis.breakdown import shown_parts
from simgpu.analysis.plots import RunFigure
from simgpu.units import TIME_UNITS

_WIDTH_INCHES = 10.0
_BAR_INCHES, _HEAD_INCHES, _BAR_HEIGHT = 0.42, 0.95, 0.68
#: A share is written into its part of a bar if the part is at least this fraction of the axis.
_MIN_LABEL_SHARE = 0.055


class Stack(NamedTuple):
    """A run's time by part in nanoseconds (`simgpu.analysis.breakdown.PARTS`); None if it failed: see `failure`."""

    label: str
    parts: Mapping[str, int] | None
    failure: str = ""


def plot_breakdowns(panels: Mapping[str, Sequence[Stack]], *, title: str, xlabel: str = "step time") -> Figure:
    """A bar a run, as long as its iteration and divided into parts of its time, in a panel each (HOME, figure 7).

    panels: the runs by the title of their panel, which has a time axis of its own.

    >>> runs = [Stack("vdnn", {"computation": 250, "swapping": 750}), Stack("none", None, "OOM")]
    >>> figure = plot_breakdowns({"VGG16, batch 64": runs}, title="a study")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['25%', '75%', '1 µs', 'OOM']
    """
    inches = [_HEAD_INCHES + _BAR_INCHES * max(len(runs), 2) for runs in panels.values()]
    figure = RunFigure(figsize=(_WIDTH_INCHES, 0.6 + sum(inches)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=inches)
    known = [run.parts for runs in panels.values() for run in runs if run.parts is not None]
    shown = shown_parts(known)
    for ax, (name, runs) in zip(grid[:, 0], panels.items(), strict=True):
        _draw_stacks(ax, runs, shown, xlabel)
        ax.set_title(name, loc="left", fontsize=10)
    drawn = {name for parts in known for name, time in parts.items() if time}
    looks = [PART_LOOKS[name] for name in shown if name in drawn]
    head(figure, title, [_patch(look) for look in looks], [look.label for look in looks])
    return figure


def _draw_stacks(ax: Axes, runs: Sequence[Stack], shown: Sequence[str], xlabel: str) -> None:
    longest = max((sum(run.parts.values()) for run in runs if run.parts is not None), default=0) or 1
    unit = next((unit for unit, minimum in (("s", 20 * 10**9), ("ms", 10**5)) if longest >= minimum), "us")
    scale, shown_unit = TIME_UNITS[unit], "µs" if unit == "us" else unit
    for row, run in enumerate(runs):
        if run.parts is None:
            _write_after(ax, row, 0, run.failure, "0.4")
            continue
        below = 0
        for name in shown:
            if part := run.parts.get(name, 0):
                _draw_part(ax, row, below / scale, part / scale, PART_LOOKS[name])
                if part >= _MIN_LABEL_SHARE * longest:
                    _write_share(ax, row, (below + part / 2) / scale, part / sum(run.parts.values()), PART_LOOKS[name])
                below += part
        _write_after(ax, row, below / scale, f"{below / scale:.4g} {shown_unit}", "black")
    ax.set_xlim(0, 1.12 * longest / scale)
    ax.set_ylim(max(len(runs), 2) - 0.45, -0.55)
    ax.set_yticks(range(len(runs)), [run.label for run in runs])
    ax.tick_params(axis="y", length=0)
    ax.tick_params(labelsize=8)
    ax.set_xlabel(f"{xlabel} ({shown_unit})", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_part(ax: Axes, row: int, left: float, width: float, look: Look) -> None:
    edge = look.ink if look.hatch else look.fill
    ax.barh(row, width, _BAR_HEIGHT, left, color=look.fill, hatch=look.hatch or None, edgecolor=edge, linewidth=0)


def _write_share(ax: Axes, row: int, x: float, share: float, look: Look) -> None:
    box = {"boxstyle": "round,pad=0.15", "facecolor": look.fill, "edgecolor": "none"} if look.hatch else None
    ink = "black" if look.hatch else look.ink
    ax.text(x, row, f"{share:.0%}", ha="center", va="center", fontsize=8, color=ink, bbox=box)


def _write_after(ax: Axes, row: int, x: float, text: str, ink: str) -> None:
    ax.annotate(text, (x, row), (4, 0), textcoords="offset points", va="center", fontsize=8, color=ink)


def _patch(look: Look) -> Patch:
    edge = look.ink if look.hatch else look.fill
    return Patch(facecolor=look.fill, hatch=look.hatch or None, edgecolor=edge, linewidth=0)


#: Paul Tol's bright palette and a dark one, each with a marker of its own, for readers who see no colours.
_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377", "#66CCEE", "#222222", "#994455")
_MARKERS = ("o", "s", "^", "D", "v", "P", "h", "*")
_DASHES = ("-", "--", ":")
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "oo", "||||")
#: Colours on which white hatching is not seen.
_LIGHT = ("#CCBB44", "#66CCEE")


class RunLook(NamedTuple):
    """Of one run: its line, its marker, and how its bars are hatched."""

    colour: str
    marker: str
    dash: str
    hatch: str
    width: float
    size: float

    @property
    def line(self) -> dict[str, Any]:
        """For `Axes.plot`."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dash,
            "linewidth": self.width,
            "markersize": self.size,
        }

    @property
    def bar(self) -> dict[str, Any]:
        """For `Axes.bar` and `Patch`: without lines around, which would be as strong as the hatching."""
        ink = "#333333" if self.colour in _LIGHT else "white"
        return {"facecolor": self.colour, "hatch": self.hatch or None, "edgecolor": ink, "linewidth": 0}


def run_looks(labels: Iterable[str]) -> dict[str, RunLook]:
    """A look for each run; the first are drawn thickest, to show under later ones. Up to 24 differ in their lines, and
    up to 64 in their bars.

    >>> looks = run_looks(["none", "vDNN"])
    >>> looks["vDNN"].marker, looks["vDNN"].hatch
    ('s', '////')
    """
    every = tuple(dict.fromkeys(labels))
    results = {}
    for number, label in enumerate(every):
        turn, place = divmod(number, len(_COLOURS))
        thinner = number / max(len(every) - 1, 1)
        results[label] = RunLook(
            _COLOURS[place],
            _MARKERS[(place + turn) % len(_MARKERS)],
            _DASHES[turn % len(_DASHES)],
            _HATCHES[(place + turn) % len(_HATCHES)],
            2.8 - 1.5 * thinner,
            7.5 - 3.5 * thinner,
        )
    return results


def head(
    figure: Figure, title: str, handles: Sequence[Artist | tuple[Line2D | Patch, ...]], texts: Sequence[str]
) -> None:
    """The title above all panels, to the left, and one legend for all of them in the right margin.

    handles, texts: the entries of the legend; several handles of one entry are drawn side by side.
    """
    # Names of scenarios and policies may have a $, which would begin a formula.
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, parse_math=False)
    legend = figure.legend(
        # matplotlib's types know no tuples, which its handlers take.
        cast("Sequence[Artist]", handles),
        texts,
        loc="outside right upper",
        frameon=False,
        fontsize=8,
        handlelength=2.2,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.3)},
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


_COMPRESSED, _RAW = "#2B4C7E", "#FFFFFF"
_ROW_INCHES, _COUNTS_INCHES = 0.24, 1.5


def plot_decisions(
    decisions: Mapping[str, Sequence[str | None]], epochs: Sequence[int], *, title: str | None = None
) -> Figure:
    """A dot for each block and epoch: filled if offloaded compressed, open if uncompressed, none if it stays resident.

    decisions: by block in the order in which they leave, for each epoch the codec, "" for none, None for a block that
    stays.

    >>> figure = plot_decisions({"conv1": ["", "zvc"], "pool1": ["", ""]}, [0, 10], title="cswap")
    >>> [tick.get_text() for tick in figure.axes[1].get_yticklabels()]
    ['conv1', 'pool1']
    """
    height = 1.2 + _COUNTS_INCHES + _ROW_INCHES * max(len(decisions), 4)
    figure = RunFigure(figsize=(9.0, height), layout="constrained")
    ratios = (_COUNTS_INCHES, _ROW_INCHES * max(len(decisions), 4))
    counts, blocks = figure.subplots(2, 1, sharex=True, height_ratios=ratios)
    _draw_counts(counts, decisions, epochs)
    _draw_dots(blocks, decisions, epochs)
    if title:
        counts.set_title(title, loc="left", fontsize=11)
    return figure


def _draw_counts(ax: Axes, decisions: Mapping[str, Sequence[str | None]], epochs: Sequence[int]) -> None:
    count = [sum(bool(row[at]) for row in decisions.values()) for at in range(len(epochs))]
    ax.plot(epochs, count, drawstyle="steps-post", color=_COMPRESSED, linewidth=1.6, marker="o", markersize=3)
    ax.set_ylim(-0.4, max([*count, 1]) * 1.1)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("compressed\ntensors")
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_dots(ax: Axes, decisions: Mapping[str, Sequence[str | None]], epochs: Sequence[int]) -> None:
    dots = [
        (epoch, row, codec)
        for row, stored in enumerate(decisions.values())
        for epoch, codec in _offloads(stored, epochs)
    ]
    for fill, chosen in ((_COMPRESSED, True), (_RAW, False)):
        shown = [(epoch, row) for epoch, row, codec in dots if bool(codec) is chosen]
        x, y = [epoch for epoch, _ in shown], [row for _, row in shown]
        ax.scatter(x, y, s=22, c=fill, edgecolors=_COMPRESSED, linewidths=0.8)
    ax.set_yticks(range(len(decisions)), list(decisions))
    ax.set_ylim(max(len(decisions), 1) - 0.4, -0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("epoch")
    ax.spines[["top", "right"]].set_visible(False)
    codecs = sorted({codec for _, _, codec in dots if codec})
    handles = [
        Line2D([], [], linestyle="", marker="o", markerfacecolor=fill, markeredgecolor=_COMPRESSED, label=label)
        for fill, label in ((_COMPRESSED, f"compressed ({', '.join(codecs)})"), (_RAW, "uncompressed"))
        if codecs or fill is _RAW
    ]
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def _offloads(row: Sequence[str | None], epochs: Sequence[int]) -> list[tuple[int, str]]:
    return [(epoch, codec) for epoch, codec in zip(epochs, row, strict=True) if codec is not None]


#: Costs above this multiple of the minimum are off the scale: they mark placements that do not fit.
OFF_SCALE = 4.0
_CONVERGENCE_INCHES = (8.0, 3.4)
#: Added below for the strip that shows how many particles fit; its height as a part of the curves'.
_STRIP_INCHES, _STRIP = 0.8, 0.2
_CURVE_COLOURS = {"worst": "#EE8866", "average": "#4477AA", "best": "#228833"}
_CURVE_WIDTHS = {"worst": 1.0, "average": 1.3, "best": 1.8}
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
    best 11 ms, iteration 3
    """
    columns = zip(_CURVE_COLOURS, (worst, mean, best), strict=True)
    curves = {name: np.asarray(values, dtype=np.float64) for name, values in columns}
    lengths = [len(values) for values in curves.values()]
    lowest = min((float(np.nanmin(values)) for values in curves.values() if not np.isnan(values).all()), default=0.0)
    if len(set(lengths)) > 1 or lowest <= 0:
        raise ValueError(f"curves of {lengths} points, least {lowest:g}; give three of one length, of costs above 0")
    figure, ax = _convergence_axes(None if fitting is None else np.asarray(fitting, dtype=np.float64))
    _draw_curves(ax, curves, lowest)
    bars = _annotate_off_scale(ax, curves, lowest)
    if converged_at is not None:
        _mark_best(ax, converged_at, float(curves["best"][converged_at - 1]), unit)
    ax.set_title(title or "", loc="left", fontsize=10, pad=16.0 + 6.0 * bars if bars else None)
    figure.axes[-1].set_xlabel("search iteration")
    ax.set_ylabel(f"step time ({unit})")
    ax.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8, borderaxespad=0.0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    return figure


def _convergence_axes(fitting: NDArray[np.float64] | None) -> tuple[RunFigure, Axes]:
    """A figure and the axes of its curves, with the strip below them where some particles do not fit."""
    if fitting is None or bool((fitting >= 1).all()):
        figure = RunFigure(figsize=_CONVERGENCE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.subplots()
    width, height = _CONVERGENCE_INCHES
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


def _draw_curves(ax: Axes, curves: Curves, lowest: float) -> None:
    count = len(curves["best"])
    iterations = np.arange(1, count + 1)
    top = max(float(values[values <= OFF_SCALE * lowest].max(initial=lowest)) for values in curves.values())
    height = max(top - lowest, 0.01 * lowest)
    for name, values in curves.items():
        # Clip the line a little outside the plot: renderers cannot draw arbitrarily large numbers.
        shown = np.minimum(values, lowest + 20 * height)
        marker = "o" if count == 1 else None
        ax.plot(iterations, shown, color=_CURVE_COLOURS[name], linewidth=_CURVE_WIDTHS[name], label=name, marker=marker)
    ax.set_xlim(1 - 0.01 * count, count + 0.01 * count)
    ax.set_ylim(lowest - _BELOW * height, lowest + (1 + _ABOVE) * height)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _annotate_off_scale(ax: Axes, curves: Curves, lowest: float) -> int:
    """Above the open end of the axis: bars where curves are off the scale, and words; how many bars."""
    off = {name: values > OFF_SCALE * lowest for name, values in curves.items()}
    off = {name: where for name, where in off.items() if where.any()}
    curves_at: dict[str, list[str]] = {}
    for row, (name, where) in enumerate(off.items()):
        edges = np.flatnonzero(np.diff(where, prepend=False, append=False))
        spans = [(first + 0.5, end - first) for first, end in zip(edges[::2], edges[1::2], strict=True)]
        low = 1.015 + 0.03 * row
        ax.broken_barh(
            spans,
            (low, 0.018),
            color=_CURVE_COLOURS[name],
            linewidth=0,
            transform=ax.get_xaxis_transform(),
            clip_on=False,
        )
        curves_at.setdefault(_where(where), []).append(name)
    text = "; ".join(f"{' and '.join(names)} {where}" for where, names in curves_at.items())
    if text:
        ax.annotate(
            f"off the scale: {text}",
            xy=(0, 1.015 + 0.03 * len(off)),
            xycoords="axes fraction",
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=8,
            color="0.3",
        )
    return len(off)


def _where(off: NDArray[np.bool_]) -> str:
    """Formats the numbers of iterations."""
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
        f"best {cost:.5g} {unit}, iteration {iteration}",
        xy=(iteration, cost),
        xytext=(0, -8),
        textcoords="offset points",
        ha=side,
        va="top",
        fontsize=8,
    )
