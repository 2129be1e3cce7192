"""A panel of bars in groups: what runs reach, with what a paper states on the bars that it is of.

Loads matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from simgpu.analysis.panels import Bar, BarPanel
from simgpu.analysis.run_looks import RunLook

PAPER: dict[str, Any] = {
    "marker": "D",
    "markersize": 4.5,
    "color": "black",
    "markeredgecolor": "white",
    "markeredgewidth": 0.7,
    "linestyle": "",
}
#: Share of the room of a group that its bars take.
FILLED = 0.86
_POINTS = 6.5
#: Of a character in that size, in inches.
_CHARACTER, _LINE = 0.054, 0.1
#: Keeps texts apart from the lines that they stand on.
_HALO = [withStroke(linewidth=2.0, foreground="white")]


class _Slot(NamedTuple):
    """Where a bar stands, with all its values in the unit of the axis."""

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
        ax.plot([slot.at] * len(slot.published), slot.published, zorder=4, **PAPER)
    if panel.told.level is not None:
        scale, _ = _unit(panel)
        ax.axhline(panel.told.level / scale, color="#777777", linewidth=0.9, zorder=3)
    elif any((slot.value or 0) < 0 for slot in _slots(panel)):
        ax.axhline(0, color="#777777", linewidth=0.9)
    ax.set_xlim(-0.5, len(panel.groups) - 0.5)
    texts, turned = group_texts(panel, inches)
    ax.set_xticks(range(len(panel.groups)), texts, rotation=30 if turned else 0, ha="right" if turned else "center")
    ax.tick_params(axis="x", length=0)
    ax.set_ylim(*_limits(panel))


def unit_of(panel: BarPanel) -> str:
    """The unit of its axis."""
    return _unit(panel)[1]


def group_texts(panel: BarPanel, inches: float) -> tuple[list[str], bool]:
    """The labels of the groups, broken where they are too long for their room, and whether they must be turned."""
    room = int(inches / len(panel.groups) / 0.066)
    if any(len(word) > room for label in panel.groups for word in label.split()):
        return list(panel.groups), True
    return [fill(label, room) for label in panel.groups], False


def write_values(ax: Axes, panel: BarPanel) -> None:
    """Values at the ends of the bars, where they have room, and why there is none; widens the axes for them.

    To be called once the axes have their place: what has room depends on how large they are.
    """
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    across, high = box.width / dpi * _width(panel) / len(panel.groups), box.height / dpi
    texts = {slot: _text(panel, slot) for slot in _slots(panel)}
    if across < _LINE or not any(texts.values()):
        return
    flat = max(map(len, texts.values())) * _CHARACTER + 0.04 <= across
    needs = {slot: _LINE if flat else len(text) * _CHARACTER + 0.03 for slot, text in texts.items()}
    per_inch = _make_room(ax, needs, high)
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


def _make_room(ax: Axes, needs: Mapping[_Slot, float], high: float) -> float:
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
    # Texts that are longer than the axes are high cannot be made room for.
    per_inch = max(span / max(high - inches, 0.3 * high) for span, inches in spans)
    ax.set_ylim(min(at - under * per_inch for at, under in below), max(at + over * per_inch for at, over in above))
    return per_inch


def _clear(slot: _Slot, length: float, marker: float) -> tuple[float, int]:
    """Where a text begins, and whether it runs up or down from there, 1 or -1.

    Away from zero from the end of the bar, unless it would run over a marker: then from there back into the bar, and
    if that has no room either, from behind the markers. length: of the text, and marker: half of one, along the axis.
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
    return slot.why if slot.value is None else panel.told.text(slot.value)


def _slots(panel: BarPanel) -> Iterator[_Slot]:
    scale, _ = _unit(panel)
    for place, runs in enumerate(panel.groups.values()):
        for number, (run, bar) in enumerate(runs.items()):
            at = place + FILLED * ((number + 0.5) / len(runs) - 0.5)
            value = None if bar.value is None else bar.value / scale
            yield _Slot(run, at, value, bar.why, tuple(each / scale for each in bar.published))


def _width(panel: BarPanel) -> float:
    return FILLED / max(len(runs) for runs in panel.groups.values())


def _unit(panel: BarPanel) -> tuple[float, str]:
    return panel.told.unit(max(map(abs, _values(panel)), default=0.0))


def _values(panel: BarPanel) -> list[float]:
    return [value for runs in panel.groups.values() for bar in runs.values() for value in _of(bar)]


def _of(bar: Bar) -> tuple[float, ...]:
    return bar.published if bar.value is None else (bar.value, *bar.published)


def _limits(panel: BarPanel) -> tuple[float, float]:
    """From zero, or below it, to the largest value; never nothing at all."""
    scale, _ = _unit(panel)
    shown = [0.0, panel.told.level or 0.0, *_values(panel)]
    low, top = min(shown) / scale, max(shown) / scale
    return low, top if top > low else low + 1
