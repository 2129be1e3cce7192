"""A picture of what a policy decides over a training: which blocks leave compressed, epoch by epoch.

Loads matplotlib, so import it only where something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from simgpu.analysis.plots import RunFigure

_INK, _LIGHT = "#2B4C7E", "#FFFFFF"
_ROW_INCHES, _COUNTS_INCHES = 0.24, 1.5


def plot_decisions(
    decisions: Mapping[str, Sequence[str | None]], epochs: Sequence[int], *, title: str | None = None
) -> Figure:
    """A dot for each block and epoch: full where it leaves in a codec, open where as it is, none where it stays.

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
    ax.plot(epochs, count, drawstyle="steps-post", color=_INK, linewidth=1.6, marker="o", markersize=3)
    ax.set_ylim(-0.4, max([*count, 1]) * 1.1)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("compressed")
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_dots(ax: Axes, decisions: Mapping[str, Sequence[str | None]], epochs: Sequence[int]) -> None:
    dots = [(epoch, row, codec) for row, kept in enumerate(decisions.values()) for epoch, codec in _told(kept, epochs)]
    for fill, chosen in ((_INK, True), (_LIGHT, False)):
        shown = [(epoch, row) for epoch, row, codec in dots if bool(codec) is chosen]
        x, y = [epoch for epoch, _ in shown], [row for _, row in shown]
        ax.scatter(x, y, s=22, c=fill, edgecolors=_INK, linewidths=0.8)
    ax.set_yticks(range(len(decisions)), list(decisions))
    ax.set_ylim(max(len(decisions), 1) - 0.4, -0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("epoch")
    ax.spines[["top", "right"]].set_visible(False)
    codecs = sorted({codec for _, _, codec in dots if codec})
    handles = [
        Line2D([], [], linestyle="", marker="o", markerfacecolor=fill, markeredgecolor=_INK, label=label)
        for fill, label in ((_INK, f"compressed ({', '.join(codecs)})"), (_LIGHT, "as it is"))
        if codecs or fill is _LIGHT
    ]
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def _told(row: Sequence[str | None], epochs: Sequence[int]) -> list[tuple[int, str]]:
    return [(epoch, codec) for epoch, codec in zip(epochs, row, strict=True) if codec is not None]
