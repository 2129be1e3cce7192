"""Maps of decisions: a word in every cell of a table, cells of one word in one colour.

Loads matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from simgpu.analysis.charts import head
from simgpu.analysis.plots import RunFigure

#: Paul Tol's light palette, on which black words are read; the first for what is done most.
_COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#44BB99", "#FFAABB", "#BBCC33", "#99DDFF", "#AAAA00")
_MORE = "#D8D8D8"
#: Words on these colours are of this one, whatever the page's is.
_INK = "#111111"
_TABLE_INCHES, _WIDEST_CELL, _ROW_INCHES = 6.6, 0.95, 0.26
_POINTS, _CHARACTER = 7.5, 0.066
#: Labels of up to so many characters lie, and give way to each other; what an upright one takes across.
_SHORT, _UPRIGHT = 6, 0.14
#: In more cells than these, words would be a texture; the colours are told apart without.
_MOST_WRITTEN = 240
_GRID: dict[str, Any] = {"color": "white", "linewidth": 0.8}


def draw_cells(drawing: Mapping[str, Any]) -> Figure:
    """The map, with its words in the cells where they have room, or their first letters where these tell them apart."""
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
        for first, each in _stretches(row):
            ax.add_patch(Rectangle((first - 0.5, down - 0.5), len(each), 1, facecolor=colours[each[0]], linewidth=0))
    ax.vlines([at - 0.5 for at in range(1, len(columns))], -0.5, len(rows) - 0.5, **_GRID)
    ax.hlines([at - 0.5 for at in range(1, len(rows))], -0.5, len(columns) - 0.5, **_GRID)
    if len(rows) * len(columns) <= _MOST_WRITTEN:
        _write(ax, values, _texts(words, width))
    _axes(ax, drawing, width)
    handles = [Patch(facecolor=colours[word], linewidth=0) for word in words]
    head(figure, "", handles, words)
    return figure


def _texts(words: list[str], width: float) -> dict[str, str]:
    """What stands in a cell of a word: the word, its first letter, or nothing."""
    if all(len(word) * _CHARACTER < width for word in words):
        return {word: word for word in words}
    first = {word: word[0] for word in words}
    apart = len(set(first.values())) == len(words) and width > 1.5 * _CHARACTER
    return first if apart else dict.fromkeys(words, "")


def _stretches(row: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Where the same word begins to stand in cells beside each other, and these; cells without a word are left out."""
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
    """Every how manieth column is labelled, and whether labels stand upright: short ones lie."""
    longest = max(map(len, columns), default=0) + 1
    turned = longest * _CHARACTER > width and longest > _SHORT
    return ceil((_UPRIGHT if turned else longest * _CHARACTER) / width), turned


def _axes(ax: Axes, drawing: Mapping[str, Any], width: float) -> None:
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
