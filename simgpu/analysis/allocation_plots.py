"""Pictures of a recording of PyTorch's allocator: memory over its events, and where each allocation was.

Loads matplotlib, so import it only where something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from simgpu.analysis.addresses import COLOURS, FREE, OTHER, Compacted, compacted
from simgpu.analysis.plots import LIVE_COLOUR, PADDING_COLOUR, RESERVED_COLOUR, RunFigure
from simgpu.trace.allocations import AllocationTrace, AllocatorAction
from simgpu.trace.code_lines import short_line
from simgpu.units import BYTE_UNITS

_WIDTH_INCHES, _LEVELS_INCHES, _MAP_INCHES = 10.0, 2.6, 5.2
_REGION, _REGION_EDGE = "#E8EEF7", "#4477AA"
#: Regions that are drawn at most, in rows by their depth, each of these inches.
_MOST_REGIONS, _DEPTHS, _REGION_INCHES = 40, 4, 0.3
#: Letters that fit next to each other in the names of regions.
_LETTERS = 140
#: A capacity above this multiple of the reserved memory is not drawn, because it would flatten the rest.
_FAR = 2
_FAILURE: dict[str, Any] = {"color": "#BB4444", "linestyle": "--", "linewidth": 1.2}


class Extent(NamedTuple):
    """Where and when an allocation was: numbers of its first and last event, address and bytes."""

    begin: int
    end: int
    address: int
    size: int


def plot_allocations(
    trace: AllocationTrace,
    levels: NDArray[np.int64],
    holders: Sequence[str] = (),
    shown: Sequence[str] = (),
    *,
    failed: int | None = None,
    capacity: int | None = None,
    unlimited: bool = False,
    title: str = "",
    regions: Sequence[tuple[int, int, int, str]] = (),
    marked: int = 0,
) -> RunFigure:
    """Requested, allocated and reserved memory above the map of segments, over the events of a recording.

    levels: these bytes after each event, one row each. holders: the line of code of each allocation. shown: lines that
    get a colour of their own, at most eight. failed: the event at which memory ran out. capacity: bytes for the
    allocator, drawn if it is at most twice what was reserved. unlimited: the levels do not keep to it. regions: what
    the program marked, as (first event, end, depth, name); the longest 40 are drawn, in a row for each depth below 4.
    marked: how many there are in all.
    """
    drawn = [each for each in sorted(regions, key=lambda each: each[0] - each[1]) if each[2] < _DEPTHS][:_MOST_REGIONS]
    strip = _REGION_INCHES * (1 + max(each[2] for each in drawn)) if drawn else 0.0
    heights = (*((strip,) if drawn else ()), _LEVELS_INCHES, _MAP_INCHES)
    figure = RunFigure(figsize=(_WIDTH_INCHES, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    *top, upper, lower = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for ax in top:
        _regions(ax, drawn, max(len(trace.events), 1), marked)
    if failed is not None:
        for ax in (upper, lower):
            ax.axvline(failed, label="out of memory", **_FAILURE)
    _levels(upper, levels, capacity, "reserved, without a limit" if unlimited else "reserved")
    _segment_map(lower, trace, holders, shown[: len(COLOURS)])
    lower.set_xlim(0, max(len(trace.events), 1))
    lower.set_xlabel("event")
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def extents(trace: AllocationTrace) -> list[Extent]:
    """When and where each allocation was. Those that begin before the recording begin at 0."""
    begins = [0] * len(trace.allocations)
    ends = [len(trace.events)] * len(trace.allocations)
    for number, event in enumerate(trace.events):
        if event.allocation is None:
            continue
        if event.action == AllocatorAction.ALLOC:
            begins[event.allocation] = number
        elif event.action == AllocatorAction.FREE_COMPLETED:
            ends[event.allocation] = number
    return [
        Extent(begin, end, each.address, each.block_bytes or each.size)
        for begin, end, each in zip(begins, ends, trace.allocations, strict=True)
    ]


def _regions(ax: Axes, drawn: Sequence[tuple[int, int, int, str]], events: int, count: int) -> None:
    """Bars from the first event of each region to its end; a line for a moment."""
    for begin, end, depth, name in drawn:
        if begin == end:
            ax.plot([begin, begin], [depth + 0.1, depth + 0.9], color=_REGION_EDGE, linewidth=1.0)
            continue
        bar = Rectangle(
            (begin, depth + 0.1), end - begin, 0.8, facecolor=_REGION, edgecolor=_REGION_EDGE, linewidth=0.6
        )
        ax.add_patch(bar)
        fitting = int(_LETTERS * (end - begin) / events)
        if fitting > 5:
            shown = name if len(name) <= fitting else f"{name[: fitting - 3]}..."
            ax.text((begin + end) / 2, depth + 0.5, shown, ha="center", va="center", fontsize=7)
    ax.set_ylim(1 + max(depth for _, _, depth, _ in drawn), 0)
    ax.set_yticks([])
    ax.tick_params(bottom=False)
    ax.set_ylabel("marked", rotation=0, ha="right", va="center")
    if count > len(drawn):
        ax.set_title(f"the {len(drawn)} longest of {count} marked regions", fontsize=8, loc="right")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def _levels(ax: Axes, levels: NDArray[np.int64], capacity: int | None, of_segments: str) -> None:
    unit, name = _unit(int(levels.max(initial=1)))
    requested, allocated, reserved = levels / unit
    events = np.arange(levels.shape[1])
    ax.fill_between(events, 0, requested, step="post", color=LIVE_COLOUR, linewidth=0, label="requested")
    ax.fill_between(events, requested, allocated, step="post", color=PADDING_COLOUR, linewidth=0, label="allocated")
    ax.step(events, reserved, where="post", color=RESERVED_COLOUR, linewidth=1.4, label=of_segments)
    if capacity is not None and capacity <= _FAR * levels.max(initial=1):
        ax.axhline(capacity / unit, label="capacity", color="black", linewidth=1.2)
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"memory ({name})")
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)


def _segment_map(ax: Axes, trace: AllocationTrace, holders: Sequence[str], shown: Sequence[str]) -> None:
    """Each allocation as a rectangle: its events to the right, its addresses upwards; segments without gaps."""
    memory = _ever_reserved(trace)
    unit, name = _unit(memory.total)
    colours = {line: COLOURS[number] for number, line in enumerate(shown)}
    boxes, faces = [], []
    drawn = extents(trace)
    places = memory.places([each.address for each in drawn]).tolist()
    for number, (each, place) in enumerate(zip(drawn, places, strict=True)):
        if place < 0:
            continue
        low, high = place / unit, (place + each.size) / unit
        boxes.append([(each.begin, low), (each.end, low), (each.end, high), (each.begin, high)])
        faces.append(colours.get(holders[number], OTHER) if number < len(holders) else OTHER)
    ax.set_facecolor(FREE)
    ax.add_collection(PolyCollection(boxes, facecolors=faces, linewidths=0, rasterized=True))
    for offset in memory.offsets.tolist()[1:] if len(memory.offsets) <= 60 else ():
        ax.axhline(offset / unit, color="white", linewidth=0.5)
    ax.set_ylim(0, max(memory.total / unit, 1e-9))
    ax.set_ylabel(f"address, segments only ({name})")
    handles = [Patch(color=colours[line], label=_shortened(short_line(line))) for line in shown]
    handles += [Patch(color=OTHER, label="other allocations"), Patch(color=FREE, label="free, or not reserved")]
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)


def _ever_reserved(trace: AllocationTrace) -> Compacted:
    """All addresses that ever had memory."""
    ranges = [(each.address, each.address + each.size) for each in (*trace.before, *trace.after)]
    given = (AllocatorAction.SEGMENT_ALLOC, AllocatorAction.SEGMENT_MAP)
    ranges += [(event.address, event.address + event.size) for event in trace.events if event.action in given]
    return compacted(ranges)


def _unit(largest: int) -> tuple[int, str]:
    name = next((unit for unit in ("GiB", "MiB", "KiB") if largest >= 2 * BYTE_UNITS[unit]), "B")
    return BYTE_UNITS[name], name


def _shortened(line: str, most: int = 38) -> str:
    return line if len(line) <= most else f"...{line[-most + 3 :]}"
