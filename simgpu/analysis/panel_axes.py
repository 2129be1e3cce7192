"""Drawing a panel on its axes: bars in groups, lines over a sweep, lines over time. Loads matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import nan
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from simgpu.analysis.charts import RunLook, run_looks
from simgpu.analysis.panels import Bar, BarPanel, LinePanel, RunCurve, TimePanel

BAR_PAPER: dict[str, Any] = {
    "marker": "D",
    "markersize": 4.5,
    "color": "black",
    "markeredgecolor": "white",
    "markeredgewidth": 0.7,
    "linestyle": "",
}
#: Share of the width of a group that its bars take.
FILLED = 0.86
_POINTS = 6.5
#: Of a character in that size, in inches.
_CHARACTER, _LINE = 0.054, 0.1
#: Outlines texts so that they are legible on lines.
_HALO = [withStroke(linewidth=2.0, foreground="white")]


class _Slot(NamedTuple):
    """The position of a bar, with its values in the unit of the axis."""

    run: str
    at: float
    value: float | None
    why: str
    published: tuple[float, ...]


def draw_bars(ax: Axes, panel: BarPanel, looks: Mapping[str, RunLook], inches: float) -> None:
    """Bars, markers and axes; inches: about how wide the axes will be."""
    width = _width(panel)
    for slot in _slots(panel):
        if slot.value is not None:
            ax.bar(slot.at, slot.value, width, **looks[slot.run].bar)
        ax.plot([slot.at] * len(slot.published), slot.published, zorder=4, **BAR_PAPER)
    if panel.measured.level is not None:
        scale, _ = panel.unit
        ax.axhline(panel.measured.level / scale, color="#777777", linewidth=0.9, zorder=3)
    elif any((slot.value or 0) < 0 for slot in _slots(panel)):
        ax.axhline(0, color="#777777", linewidth=0.9)
    ax.set_xlim(-0.5, len(panel.groups) - 0.5)
    texts, turned = group_texts(panel, inches)
    ax.set_xticks(range(len(panel.groups)), texts, rotation=30 if turned else 0, ha="right" if turned else "center")
    ax.tick_params(axis="x", length=0)
    ax.set_ylim(*_limits(panel))


def group_texts(panel: BarPanel, inches: float) -> tuple[list[str], bool]:
    """The labels of the groups, broken where they are too long, and whether they must be rotated."""
    width = int(inches / len(panel.groups) / 0.066)
    if any(len(word) > width for label in panel.groups for word in label.split()):
        return list(panel.groups), True
    return [fill(label, width) for label in panel.groups], False


def write_values(ax: Axes, panel: BarPanel) -> None:
    """Writes values, or why there is none, at the ends of the bars where they fit; widens the axes for them.

    Call it after the layout: what fits depends on the size of the axes.
    """
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    across, high = box.width / dpi * _width(panel) / len(panel.groups), box.height / dpi
    texts = {slot: _text(panel, slot) for slot in _slots(panel)}
    if across < _LINE or not any(texts.values()):
        return
    flat = max(map(len, texts.values())) * _CHARACTER + 0.04 <= across
    needs = {slot: _LINE if flat else len(text) * _CHARACTER + 0.03 for slot, text in texts.items()}
    per_inch = _widen(ax, needs, high)
    for slot, text in texts.items():
        end, turn = _clear(slot, (needs[slot] + 0.03) * per_inch, 0.06 * per_inch)
        down = turn < 0
        ax.annotate(
            text,
            (slot.at, end),
            (0, -2 if down else 2),
            textcoords="offset points",
            rotation=0 if flat else 90,
            ha="center",
            va="top" if down else "bottom",
            fontsize=_POINTS,
            color="black" if slot.value is not None else "0.4",
            path_effects=_HALO,
            zorder=5,
        ).set_in_layout(False)


def _widen(ax: Axes, needs: Mapping[_Slot, float], high: float) -> float:
    """Widens the axes by no more than the texts need; gives how much of the axis an inch is.

    needs: inches along the axis, of the text of each bar. high: the axes, in inches.
    """
    low, top = ax.get_ylim()
    # What has to lie inside, above and below: a place on the axis, and the inches beyond it.
    above, below = [(top, 0.06)], [(low, 0.06 if low < 0 else 0.0)]
    for slot, inches in needs.items():
        if slot.value is not None and slot.value < 0:
            below.append((min(slot.value, *slot.published, 0.0), inches + (0.12 if slot.published else 0.06)))
        else:
            above.append((max(slot.value or 0.0, *slot.published, 0.0), inches + (0.12 if slot.published else 0.06)))
    spans = [(up - down, over + under) for up, over in set(above) for down, under in set(below)]
    # Texts longer than the height of the axes never fit.
    per_inch = max(span / max(high - inches, 0.3 * high) for span, inches in spans)
    ax.set_ylim(min(at - under * per_inch for at, under in below), max(at + over * per_inch for at, over in above))
    return per_inch


def _clear(slot: _Slot, length: float, marker: float) -> tuple[float, int]:
    """Where a text begins, and whether it runs up or down from there, 1 or -1.

    Away from zero from the end of the bar, unless it would run over a marker: then from there back into the bar, and
    if it does not fit there either, from behind the markers. length: of the text, and marker: half of one, along the
    axis.
    """
    sign = -1 if (slot.value or 0) < 0 else 1
    top = sign * (slot.value or 0.0)
    markers = sorted(sign * each for each in slot.published)
    if not any(top - marker < each < top + length + marker for each in markers):
        return sign * top, sign
    if top > length and not any(top - length - marker < each < top + marker for each in markers):
        return sign * top, -sign
    end = top
    for each in markers:
        if end - marker < each < end + length + marker:
            end = each + marker
    return sign * end, sign


def _text(panel: BarPanel, slot: _Slot) -> str:
    return slot.why if slot.value is None else panel.measured.text(slot.value)


def _slots(panel: BarPanel) -> Iterator[_Slot]:
    scale, _ = panel.unit
    for place, runs in enumerate(panel.groups.values()):
        for number, (run, bar) in enumerate(runs.items()):
            at = place + FILLED * ((number + 0.5) / len(runs) - 0.5)
            value = None if bar.value is None else bar.value / scale
            yield _Slot(run, at, value, bar.why, tuple(each / scale for each in bar.published))


def _width(panel: BarPanel) -> float:
    return FILLED / max(len(runs) for runs in panel.groups.values())


def _limits(panel: BarPanel) -> tuple[float, float]:
    """Limits from zero or below to the largest value; never empty."""
    scale, _ = panel.unit
    shown = [0.0, panel.measured.level or 0.0, *panel.values]
    low, top = min(shown) / scale, max(shown) / scale
    return low, top if top > low else low + 1


#: Where a line ends because its run does not reach the next point.
END: dict[str, Any] = {"marker": "x", "markersize": 9, "markeredgewidth": 1.6, "linestyle": "", "color": "black"}
#: What a paper states of a run has the run's marker, open.
LINE_PAPER: dict[str, Any] = {"linestyle": "", "markerfacecolor": "white", "markeredgewidth": 1.5, "markersize": 8}
#: An axis of ratios is logarithmic if maximum over minimum exceeds this.
_MOST_LINEAR = 30
#: Minimum range around the reference level of an axis of ratios, so that small differences look small.
_MIN_SPAN = 0.05


def draw_lines(ax: Axes, panel: LinePanel, looks: Mapping[str, RunLook], inches: float) -> None:
    """Lines over the sweep, dashed levels of the runs outside it, and axes; inches: about how wide they will be."""
    scale, _ = panel.unit
    along, unit = _along(panel)
    if panel.measured.level is not None:
        ax.axhline(panel.measured.level / scale, color="#777777", linewidth=0.9, zorder=1)
    for curve in panel.curves:
        look = looks[curve.label]
        _draw_curve(ax, curve, look, scale, along)
        if curve.level is not None and curve.level.value is not None:
            ax.axhline(curve.level.value / scale, **{**level_style(look), "marker": ""})
            # Its marker at the edge, where no point of another line is.
            at_edge = {**level_style(look), "transform": ax.get_yaxis_transform(), "clip_on": False}
            ax.plot([1.0], [curve.level.value / scale], **at_edge)
        if curve.level is not None:
            _draw_published(ax, max(panel.places) / along, curve.level, look, scale)
    _limit(ax, panel, scale)
    _mark_places(ax, panel, along, inches)
    absent = _absent(panel.curves)
    label = f"{panel.along.title} ({unit})" if unit else panel.along.title
    ax.set_xlabel("\n".join([label, *([fill(absent, int(inches / 0.062))] if absent else [])]), fontsize=8.5)


def level_style(look: RunLook) -> dict[str, Any]:
    """The line of a run that is not along the sweep."""
    return {**look.line, "linestyle": "--", "linewidth": 1.3}


def draw_time(ax: Axes, panel: TimePanel) -> None:
    """A line each over the iterations, and a legend to the right of the axes."""
    scale, _ = panel.unit
    looks = run_looks(panel.lines)
    for number, (label, values) in enumerate(panel.lines.items()):
        parts = len(values) // len(panel.epochs)
        at = [(place + 0.5) / parts for place in range(len(values))]
        # Lines that lie on each other have their markers at different places.
        every = (number % max(parts // 5, 1), max(parts // 5, 1))
        ax.plot(
            at, [value / scale for value in values], label=fill(label, 30), markevery=every, **_thinner(looks[label])
        )
    for epoch in range(1, len(panel.epochs)):
        ax.axvline(epoch, color="#BBBBBB", linewidth=0.8)
    ax.set_xlim(0, len(panel.epochs))
    ax.set_ylim(bottom=0)
    if len(panel.epochs) == 1:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.0%}"))
        ax.set_xlabel("share of the iteration", fontsize=8.5)
    else:
        ax.set_xticks([epoch + 0.5 for epoch in range(len(panel.epochs))], list(map(str, panel.epochs)))
        ax.set_xlabel("epoch (one iteration each)", fontsize=8.5)
    legend = ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=7.5, borderaxespad=0)
    # It has its own space; the axes must not shrink for it.
    legend.set_in_layout(False)


def _thinner(look: RunLook) -> dict[str, Any]:
    return {**look.line, "linewidth": 1.4, "markersize": 5}


def _along(panel: LinePanel) -> tuple[float, str]:
    """The unit of the sweep: MB for budgets in whole MB."""
    places = panel.places
    decimal = panel.along.kind == "size" and all(place % 10**6 == 0 for place in places)
    return panel.along.unit(max(places), decimal=decimal)


def _mark_places(ax: Axes, panel: LinePanel, along: float, inches: float) -> None:
    """Ticks at the points where their labels fit, else at round numbers."""
    places = [place / along for place in panel.places]
    texts = [f"{place:.4g}" for place in places]
    inches_per_unit = inches / max((max(places) - min(places)) * 1.12, 1e-9)
    gaps = [(high - low) * inches_per_unit for low, high in pairwise(places)]
    if all(gap > 0.075 * max(map(len, texts)) + 0.05 for gap in gaps):
        ax.set_xticks(places, texts)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=panel.along.kind == "count", steps=[1, 2, 5, 10]))
    # Also where a line has no value: all panels of a sweep show all of it.
    margin = 0.06 * (max(places) - min(places)) or 0.5 * max(places) or 0.5
    ax.set_xlim(min(places) - margin, max(places) + margin)


def _draw_curve(ax: Axes, curve: RunCurve, look: RunLook, scale: float, along: float) -> None:
    points = sorted(curve.points, key=lambda point: point.at)
    values = [nan if point.bar.value is None else point.bar.value / scale for point in points]
    ax.plot([point.at / along for point in points], values, **look.line)
    for point in points:
        _draw_published(ax, point.at / along, point.bar, look, scale)
    for point, _ in curve.ends():
        ax.plot([point.at / along], [(point.bar.value or 0.0) / scale], zorder=5, **END)


def _draw_published(ax: Axes, at: float, bar: Bar, look: RunLook, scale: float) -> None:
    for value in bar.published:
        ax.plot([at], [value / scale], marker=look.marker, markeredgecolor=look.colour, zorder=6, **LINE_PAPER)


def _limit(ax: Axes, panel: LinePanel, scale: float) -> None:
    """Axis limits: from zero for absolute quantities, else around the level."""
    values = [value / scale for value in panel.values]
    level = None if panel.measured.level is None else panel.measured.level / scale
    if level is None:
        ax.set_ylim(0, 1.08 * max(values, default=0.0) or 1.0)
        return
    low, top = min([level, *values]), max([level, *values])
    if low > 0 and top > _MOST_LINEAR * low:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        return
    spare = max(0.08 * (top - low), (_MIN_SPAN / scale - (top - low)) / 2)
    ax.set_ylim(low - spare, top + spare)


def _absent(curves: Sequence[RunCurve]) -> str:
    """Runs without any value, by reason."""
    results: dict[str, list[str]] = {}
    for curve in curves:
        if curve.absent:
            results.setdefault(curve.absent, []).append(curve.label)
    return "; ".join(f"{why}: {', '.join(labels)}" for why, labels in results.items())
