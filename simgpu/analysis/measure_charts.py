"""A figure of measures of several runs: panels of bars and of lines under one title, with one legend.

Loads matplotlib, so import it only where something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil
from textwrap import fill
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simgpu.analysis import panel_axes
from simgpu.analysis.charts import RunLook, head, run_looks
from simgpu.analysis.panels import BarPanel, LinePanel, Panel, TimePanel
from simgpu.analysis.plots import RunFigure

#: Widths of a row of panels, of the legend to their right, and of the labels to the left of axes.
_ROW_INCHES, _LEGEND_INCHES, _AXIS_INCHES = 7.9, 1.9, 0.55
#: Panels per row, by the maximum number of bars in each panel.
_BARS = {3: 12, 2: 20, 1: 50}
_TITLE_CHARACTER, _TITLE_LINE = 0.074, 0.16
_LEGEND_CHARACTERS = 26

Handle = Line2D | Patch


class _Placed(NamedTuple):
    """A panel, its width in inches, its title and its label to the left."""

    panel: Panel
    across: float
    title: str
    side_label: str

    @property
    def inches(self) -> float:
        """About how wide its axes become."""
        return self.across - _AXIS_INCHES

    @property
    def title_text(self) -> str:
        """The title, broken where it is wider than the panel."""
        return fill(self.title, int(self.across / _TITLE_CHARACTER))

    @property
    def height(self) -> float:
        """Height in inches, with title and labels."""
        over = _TITLE_LINE * (self.title_text.count("\n") + 1)
        if isinstance(self.panel, BarPanel):
            texts, turned = panel_axes.group_texts(self.panel, self.inches)
            longest = max(map(len, texts))
            under = 0.1 + 0.045 * longest if turned else 0.13 * max(text.count("\n") for text in texts)
            return 1.75 + over + under
        if isinstance(self.panel, TimePanel):
            return max(2.2, 0.3 + 0.15 * len(self.panel.lines)) + over
        return 2.2 + over


class _Block(NamedTuple):
    """Panels of the same width, with `columns` in a row."""

    panels: tuple[_Placed, ...]
    columns: int

    @property
    def rows(self) -> list[tuple[_Placed, ...]]:
        """The panels row by row."""
        return [self.panels[at : at + self.columns] for at in range(0, len(self.panels), self.columns)]

    @property
    def height(self) -> float:
        """Height in inches: all rows have axes of the same height, plus their titles and labels."""
        return sum(max(each.height for each in row) for row in self.rows)


def plot_measures(sections: Sequence[Sequence[Panel]], runs: Sequence[str], *, title: str) -> RunFigure:
    """Panels of measures by section, in rows; a run looks the same in all of them.

    sections: panels that belong together, such as one measure of several networks. Bars that do not fit in one row are
    divided into several. Single panels of neighbouring sections share a row. runs: all labels in the order of the
    legend.

    >>> from simgpu.analysis.panels import Bar, AxisInfo
    >>> bars = {"VGG16": {"vDNN": Bar(1.0), "CSWAP": Bar(1.25, published=(1.3,)), "none": Bar(None, "OOM")}}
    >>> panel = BarPanel(AxisInfo("throughput over vDNN", level=1), bars)
    >>> figure = plot_measures([[panel]], ["vDNN", "CSWAP", "none"], title="a study")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['1.00', '1.25', 'OOM']
    """
    blocks = list(_blocks(sections))
    single = all(len(block.panels) < block.columns for block in blocks)
    width = _ROW_INCHES / 2 if single else _ROW_INCHES
    wrapped = "\n".join(fill(line, int(width / _TITLE_CHARACTER)) for line in title.split("\n"))
    heights = [block.height for block in blocks]
    high = 0.25 + _TITLE_LINE * (wrapped.count("\n") + 1) + sum(heights)
    figure = RunFigure(figsize=(width + _LEGEND_INCHES, high), layout="constrained")
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    looks = run_looks(runs)
    axes = [ax for part, block in zip(parts, blocks, strict=True) for ax in _axes(part, block, single=single)]
    placed = [each for block in blocks for each in block.panels]
    for ax, each in zip(axes, placed, strict=True):
        _draw(ax, each, looks)
    entries = _legend([each.panel for each in placed], looks)
    head(figure, wrapped, tuple(entries.values()), tuple(entries))
    figure.draw_without_rendering()  # gives every panel its place
    for ax, each in zip(axes, placed, strict=True):
        if isinstance(each.panel, BarPanel):
            panel_axes.write_values(ax, each.panel)
    return figure


def _axes(part: SubFigure, block: _Block, *, single: bool) -> list[Axes]:
    """Axes for the panels of a block; alone: every block has a single panel."""
    if any(isinstance(each.panel, TimePanel) for each in block.panels):
        # Its legend is in the last third.
        grid = part.add_gridspec(len(block.panels), 2, width_ratios=(2, 1))
        return [part.add_subplot(grid[row, 0]) for row in range(len(block.panels))]
    columns = 1 if single else block.columns
    grid = part.add_gridspec(len(block.rows), columns)
    return [part.add_subplot(grid[number // columns, number % columns]) for number in range(len(block.panels))]


def _draw(ax: Axes, placed: _Placed, looks: Mapping[str, RunLook]) -> None:
    panel = placed.panel
    if isinstance(panel, BarPanel):
        panel_axes.draw_bars(ax, panel, looks, placed.inches)
    elif isinstance(panel, LinePanel):
        panel_axes.draw_lines(ax, panel, looks, placed.inches)
    else:
        panel_axes.draw_time(ax, panel)
    ax.set_title(placed.title_text, loc="left", fontsize=9.5)
    ax.set_ylabel(fill(placed.side_label, 32), fontsize=8.5)
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)


def _blocks(sections: Iterable[Sequence[Panel]]) -> Iterator[_Block]:
    """Every panel with its texts; a section of several begins and ends its own rows."""
    for flow in _flows(sections):
        columns = _columns(flow)
        placed = [
            _Placed(panel, _ROW_INCHES / columns, title, side_label if number % columns == 0 else "")
            for number, (panel, (title, side_label)) in enumerate(zip(flow, _texts(flow), strict=True))
        ]
        yield _Block(tuple(placed), columns)


def _flows(sections: Iterable[Sequence[Panel]]) -> Iterator[list[Panel]]:
    """What is placed row by row: a section of several panels, or such of one panel one after another if all of them
    are wide or none is."""
    divided = [[part for panel in section for part in _divided(panel)] for section in sections]
    kinds = (_flow_kind(number, section) for number, section in enumerate(divided))
    for _, flow in groupby(zip(kinds, divided, strict=True), key=lambda pair: pair[0]):
        yield [panel for _, section in flow for panel in section]


def _flow_kind(number: int, section: Sequence[Panel]) -> tuple[bool, int]:
    """What neighbouring sections have in common that flow together; a section of several has its number alone."""
    if len(section) > 1 or isinstance(section[0], TimePanel):
        return False, number
    return True, min(_most_columns(section[0]), 2)


def _divided(panel: Panel) -> list[Panel]:
    """Bars split into panels, one per row, with equally many groups in each."""
    if not isinstance(panel, BarPanel):
        return [panel]
    groups = list(panel.groups.items())
    runs = max(len(runs) for _, runs in groups)
    rows = ceil(len(groups) / max(_BARS[1] // runs, 1))
    each = ceil(len(groups) / rows)
    return [panel._replace(groups=dict(groups[at : at + each])) for at in range(0, len(groups), each)]


def _most_columns(panel: Panel) -> int:
    if isinstance(panel, LinePanel):
        return 3
    return next(
        (columns for columns, bars in _BARS.items() if isinstance(panel, BarPanel) and panel.bar_count <= bars), 1
    )


def _columns(flow: Sequence[Panel]) -> int:
    """Number of panels per row."""
    most = min(map(_most_columns, flow))
    if len(flow) in (1, 2, 4):
        return min(most, 2)
    return 4 if len(flow) in (7, 8) and all(isinstance(panel, LinePanel) for panel in flow) else most


def _texts(flow: Sequence[Panel]) -> list[tuple[str, str]]:
    """Title and side label of each panel; of several panels of one measure the title is their name, with the unit where
    they differ in it."""
    units = [panel.unit[1] for panel in flow]
    measures = {panel.measured.title for panel in flow}
    results = []
    for number, (panel, unit) in enumerate(zip(flow, units, strict=True)):
        title = panel.measured.title
        if not isinstance(panel, LinePanel):
            more = ", continued" if any(each.measured == panel.measured for each in flow[:number]) else ""
            results.append((_with(unit, title) + more, ""))
        elif len(measures) > 1 or len(flow) == 1:
            results.append((f"{panel.name}: {_with(unit, title)}", ""))
        elif len(set(units)) > 1:
            results.append((_with(unit, panel.name), title))
        else:
            results.append((panel.name, _with(unit, title)))
    return results


def _with(unit: str, text: str) -> str:
    return f"{text} ({unit})" if unit else text


def _legend(panels: Sequence[Panel], looks: Mapping[str, RunLook]) -> dict[str, tuple[Handle, ...]]:
    """The entries by their texts: every run as it is drawn, what a paper states, and why lines end."""
    bars = [panel for panel in panels if isinstance(panel, BarPanel)]
    lines = [panel for panel in panels if isinstance(panel, LinePanel)]
    curves = [curve for panel in lines for curve in panel.curves]
    barred = {run for panel in bars for runs in panel.groups.values() for run in runs}
    level = {curve.label for curve in curves if curve.level is not None}
    results: dict[str, tuple[Handle, ...]] = {}
    for label, look in looks.items():
        handles: list[Handle] = [Patch(**look.bar)] if label in barred else []
        if any(curve.label == label for curve in curves):
            handles.append(Line2D([], [], **(panel_axes.level_style(look) if label in level else look.line)))
        if handles:
            results[fill(label, _LEGEND_CHARACTERS)] = tuple(handles)
    paper: list[Handle] = []
    if any(bar.published for panel in bars for runs in panel.groups.values() for bar in runs.values()):
        paper.append(Line2D([], [], **panel_axes.BAR_PAPER))
    if any(bar.published for curve in curves for bar in curve.bars):
        paper.append(Line2D([], [], marker="o", markeredgecolor="black", **panel_axes.LINE_PAPER))
    if paper:
        results["paper"] = tuple(paper)
    if whys := dict.fromkeys(why for curve in curves for _, why in curve.ends()):
        results[f"{' or '.join(whys)}\nat the next point"] = (Line2D([], [], **panel_axes.END),)
    return results
