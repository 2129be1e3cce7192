"""Pictures of how compressible memory is: by place, by the threshold of its targets, and over time.

Loads matplotlib, so import it only where something is drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from simgpu.analysis.plots import RunFigure

_HEAT_INCHES = (7.5, 8.0)
_PAIR_INCHES = (7.0, 5.2)
_DRIFT_INCHES = (8.0, 3.2)
#: Blue is compressible and red is not, as in the paper; distinguishable also for readers who see no red or green.
_COLOURS = "RdYlBu_r"
_NOTHING = "white"
#: Compressed bytes that the colour bar names, of an entry of 128.
_NAMED_BYTES = (0, 8, 32, 64, 96, 128)
#: Height of a label as a fraction of the map.
_LABEL_SHARE = 0.019
#: An allocation that takes less of the height has no label.
_MIN_LABEL_SHARE = 0.004
_LONGEST_LABEL = 34
#: Of a title, that an inch holds.
_TITLE_CHARACTERS = 12
#: Axes of shares reach at least this, so that next to nothing looks like it.
_MIN_TOP = 0.01
_BAR, _CHOSEN, _LINE = "#99BBDD", "#4477AA", "#222222"


def plot_heatmap(
    rows: NDArray[np.float64],
    bands: Sequence[tuple[str, float, float]],
    *,
    pages_per_row: int = 1,
    snapshots: int = 1,
    title: str,
) -> RunFigure:
    """Compressed bytes of memory-entries by place: a page of 64 entries a row, pages from the top down (figure 6).

    rows: bytes, NaN where there is no entry. bands: label, first row and number of rows of each allocation, which may
    be parts of rows; where labels would overlap, those of the largest are written, and of those too small to be seen
    none. pages_per_row, snapshots: of how many each is a mean.

    >>> figure = plot_heatmap(np.zeros((4, 64)), [("a", 0.0, 3.0), ("b", 3.0, 1.0)], title="two allocations")
    >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
    ['a', 'b']
    """
    figure = RunFigure(figsize=_HEAT_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    image = ax.imshow(
        np.ma.masked_invalid(rows), cmap=_COLOURS, vmin=0, vmax=128, aspect="auto", interpolation="nearest"
    )
    ax.set_facecolor(_NOTHING)
    seen = [band for band in bands if band[2] >= _MIN_LABEL_SHARE * len(rows)]
    for edge in {edge for _, first, count in seen for edge in (first, first + count)} - {0.0, float(len(rows))}:
        ax.axhline(edge - 0.5, color="black", linewidth=0.5)
    shown = _labelled(seen, len(rows))
    ax.set_yticks([first + count / 2 - 0.5 for _, first, count in shown], [_short(label) for label, _, _ in shown])
    ax.set_xticks([0, 16, 32, 48, 63])
    ax.tick_params(axis="y", length=2, labelsize=7)
    ax.tick_params(axis="x", labelsize=8)
    ax.set_xlabel("128 B memory-entry within its 8 KB page")
    means = [f"{pages_per_row} pages" if pages_per_row > 1 else "", f"{snapshots} snapshots" if snapshots > 1 else ""]
    of = " and ".join(each for each in means if each)
    bar = figure.colorbar(image, ax=ax, ticks=_NAMED_BYTES, fraction=0.04, pad=0.02)
    bar.set_label(f"compressed bytes per entry{f', mean of {of}' if of else ''}", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    _head(figure, title)
    return figure


def plot_thresholds(
    points: Mapping[float, tuple[float, float]], *, chosen: float, best: float, title: str
) -> RunFigure:
    """Ratio above, share of overflowing entries below, for each Buddy Threshold (figure 9).

    points: ratio and share by threshold. chosen: the highlighted threshold. best: the ratio of the line.

    >>> figure = plot_thresholds({0.1: (1.2, 0.01), 0.3: (1.5, 0.04)}, chosen=0.3, best=1.6, title="a program")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['1.20x', '1.50x']
    """
    figure = RunFigure(figsize=_PAIR_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    labels = [f"{100 * threshold:.3g}%" for threshold in points]
    colours = [_CHOSEN if threshold == chosen else _BAR for threshold in points]
    ratios = [ratio for ratio, _ in points.values()]
    shares = [share for _, share in points.values()]
    upper.bar(labels, ratios, 0.6, color=colours)
    upper.axhline(
        best,
        color=_LINE,
        linewidth=1.2,
        linestyle="--",
        label=f"{best:.2f}x with targets by mean size, overflow ignored",
    )
    upper.set_ylim(0, 1.18 * max([*ratios, best]))
    upper.set_ylabel("compression ratio")
    upper.legend(loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False, fontsize=8, borderaxespad=0.2)
    lower.bar(labels, shares, 0.6, color=colours)
    lower.set_ylim(0, 1.18 * max([*shares, _MIN_TOP]))
    lower.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    lower.set_ylabel("overflowing entries")
    lower.set_xlabel("Buddy Threshold")
    for at, (threshold, (ratio, share)) in enumerate(points.items()):
        ink = "white" if threshold == chosen else "black"
        _write(upper, at, 0, f"{ratio:.2f}x", ink)
        _write(lower, at, share, f"{share:.2%}")
    for ax in (upper, lower):
        _plain(ax)
    _head(figure, title)
    return figure


def plot_drift(shares: Mapping[str, float], ratio: float, *, title: str) -> RunFigure:
    """The share of overflowing entries in each snapshot, while targets stay as they are (figure 8).

    shares: by name of the snapshot, in order. ratio: of the targets.

    >>> figure = plot_drift({"early": 0.02, "late": 0.03}, 1.5, title="a program")
    >>> [text.get_text() for text in figure.axes[0].get_xticklabels()]
    ['early', 'late']
    """
    figure = RunFigure(figsize=_DRIFT_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    at = np.arange(len(shares))
    values = np.array(list(shares.values()))
    mean = float(values.mean())
    ax.plot(at, values, color=_CHOSEN, marker="o", markersize=4.5, linewidth=1.6, label="in a snapshot")
    ax.axhline(mean, color=_LINE, linewidth=1.0, linestyle="--", label=f"mean {mean:.2%}")
    ax.set_ylim(0, 1.25 * max(float(values.max()), _MIN_TOP))
    ax.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.set_ylabel("overflowing entries")
    labels = [_short(label) for label in shares]
    crowded = sum(map(len, labels)) > 90
    ax.set_xticks(at, labels, rotation=35 if crowded else 0, ha="right" if crowded else "center")
    ax.set_xlabel(f"snapshot, at a constant ratio of {ratio:.2f}x")
    ax.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8, borderaxespad=0.0)
    _plain(ax)
    _head(figure, title)
    return figure


def _labelled(bands: Sequence[tuple[str, float, float]], rows: int) -> list[tuple[str, float, float]]:
    """The bands whose labels are written: the largest first, then all that still fit."""
    distance = _LABEL_SHARE * rows
    stored: list[tuple[str, float, float]] = []
    for band in sorted(bands, key=lambda band: (-band[2], band[1])):
        middle = band[1] + band[2] / 2
        if all(abs(middle - (other[1] + other[2] / 2)) >= distance for other in stored):
            stored.append(band)
    return sorted(stored, key=lambda band: band[1])


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL // 2]}…{label[-_LONGEST_LABEL // 2 :]}"


def _write(ax: Axes, x: float, y: float, text: str, ink: str = "black") -> None:
    ax.annotate(text, (x, y), (0, 3), textcoords="offset points", ha="center", va="bottom", fontsize=8, color=ink)


def _head(figure: RunFigure, title: str) -> None:
    """The title above all panels, wrapped to the width."""
    wide = int(_TITLE_CHARACTERS * figure.get_figwidth())
    figure.suptitle(textwrap.fill(title, wide), x=0.01, ha="left", fontsize=10)


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
