"""Pictures that put runs side by side: where their time went, and how fast they are at each batch size.

Loads matplotlib, so import it only where something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import nan
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simgpu.analysis.bars import PART_LOOKS, Look
from simgpu.analysis.breakdown import shown_parts
from simgpu.analysis.plots import RunFigure
from simgpu.analysis.run_looks import RunLook, head, run_looks
from simgpu.units import TIME_UNITS

_WIDTH_INCHES = 10.0
_BAR_INCHES, _HEAD_INCHES, _BAR_HEIGHT = 0.42, 0.95, 0.68
_PANEL_INCHES, _COLUMNS = 2.9, 3
#: A share is written into its part of a bar if that is so much of the axis.
_LEAST_WRITTEN = 0.055
_END: dict[str, Any] = {"marker": "x", "markersize": 9, "markeredgewidth": 1.6, "linestyle": "", "color": "black"}


class Stack(NamedTuple):
    """A run's time by part in nanoseconds (`simgpu.analysis.breakdown.PARTS`); None where `failure` says why not."""

    label: str
    parts: Mapping[str, int] | None
    failure: str = ""


class Line(NamedTuple):
    """A run's samples per second by batch; None at a batch that it did not reach, because of `failure`."""

    label: str
    rates: Mapping[int, float | None]
    failure: str = "out of memory"


def plot_breakdowns(panels: Mapping[str, Sequence[Stack]], *, title: str, xlabel: str = "iteration time") -> Figure:
    """A bar a run, as long as its iteration and divided by what the time went to, in a panel each (HOME, figure 7).

    panels: the runs by the title of their panel, which has a time axis of its own.

    >>> runs = [Stack("vdnn", {"computation": 250, "swapping": 750}), Stack("none", None, "out of memory")]
    >>> figure = plot_breakdowns({"VGG16, batch 64": runs}, title="a study")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['25%', '75%', '1 µs', 'out of memory']
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


def plot_throughputs(panels: Mapping[str, Sequence[Line]], *, title: str) -> Figure:
    r"""Samples per second against the batch, a line a run, in a panel each (HOME, figure 6).

    panels: the runs by the title of their panel; a run has the same colour in all. A line ends where its run does not
    reach the next batch, with a cross.

    >>> lines = [Line("none", {64: 900.0, 128: None}), Line("vdnn", {64: 400.0, 128: 500.0})]
    >>> figure = plot_throughputs({"VGG16": lines}, title="a study")
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['none', 'vdnn', 'out of memory\nat the next batch']
    """
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    figure = RunFigure(figsize=(_WIDTH_INCHES, 0.9 + _PANEL_INCHES * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    looks = run_looks(line.label for lines in panels.values() for line in lines)
    for ax, (name, lines) in zip(grid.flat, panels.items(), strict=False):
        for line in lines:
            _draw_line(ax, line, looks[line.label])
        _batch_axes(ax, name, [rate for line in lines for rate in line.rates.values() if rate is not None])
    for ax in grid.flat[len(panels) :]:
        ax.set_visible(False)
    for ax in grid[:, 0]:
        ax.set_ylabel("samples/s")
    handles = {_told(label, panels): Line2D([], [], **look.line) for label, look in looks.items()}
    if any(_last_reached(line) for lines in panels.values() for line in lines):
        handles["out of memory\nat the next batch"] = Line2D([], [], **_END)
    head(figure, title, tuple(handles.values()), tuple(handles))
    return figure


def _draw_stacks(ax: Axes, runs: Sequence[Stack], shown: Sequence[str], xlabel: str) -> None:
    longest = max((sum(run.parts.values()) for run in runs if run.parts is not None), default=0) or 1
    unit = next((unit for unit, least in (("s", 20 * 10**9), ("ms", 10**5)) if longest >= least), "us")
    scale, shown_unit = TIME_UNITS[unit], "µs" if unit == "us" else unit
    for row, run in enumerate(runs):
        if run.parts is None:
            _write_beside(ax, row, 0, run.failure, "0.4")
            continue
        below = 0
        for name in shown:
            if part := run.parts.get(name, 0):
                _draw_part(ax, row, below / scale, part / scale, PART_LOOKS[name])
                if part >= _LEAST_WRITTEN * longest:
                    _write_share(ax, row, (below + part / 2) / scale, part / sum(run.parts.values()), PART_LOOKS[name])
                below += part
        _write_beside(ax, row, below / scale, f"{below / scale:.4g} {shown_unit}", "black")
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


def _write_beside(ax: Axes, row: int, x: float, text: str, ink: str) -> None:
    ax.annotate(text, (x, row), (4, 0), textcoords="offset points", va="center", fontsize=8, color=ink)


def _patch(look: Look) -> Patch:
    edge = look.ink if look.hatch else look.fill
    return Patch(facecolor=look.fill, hatch=look.hatch or None, edgecolor=edge, linewidth=0)


def _draw_line(ax: Axes, line: Line, look: RunLook) -> None:
    """The line, broken where the run does not reach a batch, and a cross at the last one before each such batch."""
    batches = sorted(line.rates)
    rates = [nan if (rate := line.rates[batch]) is None else rate for batch in batches]
    ax.plot(batches, rates, **look.line)
    for batch, rate in _last_reached(line):
        ax.plot([batch], [rate], zorder=5, **_END)


def _last_reached(line: Line) -> list[tuple[int, float]]:
    """The batches that fit before one that does not, and their rates."""
    pairs = pairwise(sorted(line.rates))
    return [
        (batch, rate) for batch, after in pairs if (rate := line.rates[batch]) is not None and line.rates[after] is None
    ]


def _batch_axes(ax: Axes, name: str, rates: Sequence[float]) -> None:
    ax.set_ylim(0, 1.08 * max(rates, default=1.0))
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set_xlabel("batch", fontsize=9)
    ax.set_title(name, loc="left", fontsize=10)
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)


def _told(label: str, panels: Mapping[str, Sequence[Line]]) -> str:
    """The text of a legend entry, which says so where a run reaches no batch at all."""
    lines = [line for lines in panels.values() for line in lines if line.label == label]
    nowhere = all(rate is None for line in lines for rate in line.rates.values())
    return f"{label}\n({lines[0].failure})" if nowhere else label
