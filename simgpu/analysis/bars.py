"""The contents of a timeline's plot, before anything is drawn: looks of spans, merged bars, thinned curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.hardware.spec import DEVICE, HOST
from simgpu.timeline.model import Column, MemoryCurve, Span, SpanKind, Timeline
from simgpu.timeline.streams import StreamId, engine_ends, engine_text, is_compute
from simgpu.trace.model import Phase


class Look(NamedTuple):
    """How a kind of span is drawn: legend text, fill, hatching and its colour, height as a share of the row."""

    label: str
    fill: str
    hatch: str = ""
    ink: str = "white"
    height: float = 0.8


# Paul Tol's bright and muted palettes, distinguishable for colour-blind readers and in grey.
COMPUTE = Look("compute", "#4477AA")
PHASES: Mapping[Phase, Look] = {
    Phase.FORWARD: Look("forward", "#6699CC"),
    Phase.BACKWARD: Look("backward", "#2B4C7E"),
    Phase.OPTIMIZER: Look("optimizer", "#88CCEE"),
}
RECOMPUTE = Look("recompute", "#CCBB44")
CODEC = Look("codec", "#AA3377")
COPY_D2H = Look("D2H copy", "#EE8866")
COPY_H2D = Look("H2D copy", "#44AA99")
COLLECTIVE = Look("collective", "#882255")
#: Copies between memories of which none is the GPU's; further from the GPU, and nearer.
COPY_AWAY = Look("copy to a further memory", "#999933")
COPY_BACK = Look("copy from a further memory", "#117733")
WAIT_COPY_OUT = Look("stalled on D2H", "#F8D0C0", "////", COPY_D2H.fill)
WAIT_COPY_IN = Look("stalled on H2D", "#C4E6E1", "\\\\\\\\", COPY_H2D.fill)
WAIT_COPY = Look("stalled on a copy", "#E6E2D3", "////", "#8A7A3A")
WAIT_MEMORY = Look("stalled on memory", "#EFC4C4", "xxxx", "#BB4444")
WAIT_LAUNCH = Look("waiting for the host's launch", "#F3E3B0", "----", "#B8860B")
WAIT_COLLECTIVE = Look("stalled on collectives", "#E8CFDC", "\\\\", COLLECTIVE.fill)
WAIT_OTHER = Look("stalled on another stream", "#E2E2E2", "....", "#999999")
#: A copy stream waits most of the time: drawn as a thin line, so that it does not compete with the copies.
COPY_WAIT = Look("copy stream idle", "#D5D5D5", height=0.12)
COLLECTIVE_WAIT = COPY_WAIT._replace(label="no collective")
COPY_WAIT_MEMORY = Look("stalled on memory", WAIT_MEMORY.fill, WAIT_MEMORY.hatch, WAIT_MEMORY.ink, 0.3)

#: How the parts of a breakdown are drawn, by the names of `simgpu.analysis.breakdown.PARTS`.
PART_LOOKS: Mapping[str, Look] = {
    "computation": Look("computation", "#2B4C7E"),
    "overlap": Look("overlap", "#88CCEE", ink="black"),
    "swapping": Look("swapping", "#F8D0C0", "////", COPY_D2H.fill),
    "recomputation": Look("recomputation", RECOMPUTE.fill, ink="black"),
    "codec": Look("codec", CODEC.fill),
    "launches": WAIT_LAUNCH._replace(label="launches"),
    "other": Look("stalled on another stream", WAIT_OTHER.fill, WAIT_OTHER.hatch, WAIT_OTHER.ink),
}

#: In the order of the legend; drawn from the last to the first, so that waiting never hides work.
LOOKS = (
    COMPUTE,
    *PHASES.values(),
    RECOMPUTE,
    CODEC,
    COPY_D2H,
    COPY_H2D,
    COPY_AWAY,
    COPY_BACK,
    COLLECTIVE,
    WAIT_COPY_OUT,
    WAIT_COPY_IN,
    WAIT_COPY,
    WAIT_MEMORY,
    WAIT_LAUNCH,
    WAIT_COLLECTIVE,
    WAIT_OTHER,
    COPY_WAIT,
    COLLECTIVE_WAIT,
    COPY_WAIT_MEMORY,
)

_BUSY = {
    SpanKind.RECOMPUTE: RECOMPUTE,
    SpanKind.ENCODE: CODEC,
    SpanKind.DECODE: CODEC,
}
_COPIES = {"d2h": COPY_D2H, "h2d": COPY_H2D}
#: What is waited for by the role of the stream that signals it.
_WAITS = {"d2h": WAIT_COPY_OUT, "h2d": WAIT_COPY_IN, "data": WAIT_COPY, "collectives": WAIT_COLLECTIVE}


def look_of(span: Span, phases: Mapping[str, Phase]) -> Look:
    """The look of a span; phases: the phase of each kernel, where it is known."""
    if span.kind is SpanKind.COMPUTE and StreamId.of(span.stream).role == "collectives":
        return COLLECTIVE
    if span.kind is SpanKind.COMPUTE:
        return PHASES[phases[span.name]] if span.name in phases else COMPUTE
    if span.kind is SpanKind.COPY:
        return _copy_look(span.resource)
    if not span.kind.is_stall:
        return _BUSY[span.kind]
    if span.kind is SpanKind.STALL_LAUNCH:
        return WAIT_LAUNCH
    memory = span.kind is SpanKind.STALL_MEMORY
    if not is_compute(span.stream):
        idle = COLLECTIVE_WAIT if StreamId.of(span.stream).role == "collectives" else COPY_WAIT
        return COPY_WAIT_MEMORY if memory else idle
    if memory:
        return WAIT_MEMORY
    cause = StreamId.of(span.cause).role if span.cause else ""
    return _WAITS.get(cause, WAIT_COPY if engine_ends(cause) else WAIT_OTHER)


def _copy_look(name: str) -> Look:
    """The look of a copy by its engine; the host and the device are nearer than other memories."""
    _, target = engine_ends(name) or ("", "")
    return _COPIES.get(name) or (COPY_BACK if target in (DEVICE, HOST) else COPY_AWAY)


def legend_label(look: Look, engines: Iterable[str]) -> str:
    """The text of a look in the legend of a run with these copy engines.

    >>> legend_label(COPY_AWAY, ["d2h", "host2ssd", "ssd2host"]), legend_label(COPY_D2H, ["d2h"])
    ('copy host to ssd', 'D2H copy')
    """
    named = [engine_text(name) for name in engines if look in (COPY_AWAY, COPY_BACK) and _copy_look(name) == look]
    return f"copy {', '.join(named)}" if named else look.label


def bars(
    timeline: Timeline, start: int, end: int, phases: Mapping[str, Phase], grain: int
) -> dict[tuple[str, Look], Bars]:
    """What to draw per stream and look, cut at the window, in ns from `start` on.

    Spans of no length are left out; neighbours shorter than `grain` (ns) become one bar.
    """
    results: dict[tuple[str, Look], tuple[list[int], list[int]]] = {}
    for span in timeline:
        if span.start_ns >= end or span.end_ns <= start or span.start_ns == span.end_ns:
            continue
        starts, ends = results.setdefault((span.stream, look_of(span, phases)), ([], []))
        starts.append(max(span.start_ns, start) - start)
        ends.append(min(span.end_ns, end) - start)
    return {
        key: merge_tiny(np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64), grain)
        for key, (starts, ends) in results.items()
    }


class Bars(NamedTuple):
    """Bars in order: start, end, and the share of each that is really busy, 1 for one that nothing was merged into."""

    starts: Column
    ends: Column
    busy: NDArray[np.float64]


def merge_tiny(starts: Column, ends: Column, grain: int) -> Bars:
    """Join adjacent bars that are shorter than `grain` with gaps below `grain`; sorted, not overlapping.

    >>> starts, ends = np.array([0, 2, 4, 50]), np.array([1, 4, 40, 90])
    >>> merge_tiny(starts, ends, grain=5)
    Bars(starts=array([ 0,  4, 50]), ends=array([ 4, 40, 90]), busy=array([0.75, 1.  , 1.  ]))
    """
    if len(starts) == 0:
        return Bars(starts, ends, np.ones(0))
    tiny = ends - starts < grain
    joined = tiny[1:] & tiny[:-1] & (starts[1:] - ends[:-1] < grain)
    first = np.concatenate([[True], ~joined])
    last = np.concatenate([~joined, [True]])
    worked = np.add.reduceat(ends - starts, np.flatnonzero(first))
    return Bars(starts[first], ends[last], worked / (ends[last] - starts[first]))


class Steps(NamedTuple):
    """A memory curve in a window: times (ns, from the window's start on), live and used bytes from then on, and bytes
    that PyTorch's allocator has reserved, None with another one."""

    time: Column
    live: Column
    used: Column
    reserved: Column | None = None

    @property
    def top(self) -> int:
        """The most bytes at any time."""
        return int((self.used if self.reserved is None else self.reserved).max())


def steps(curve: MemoryCurve, start: int, end: int, limit: int = 4000) -> Steps:
    """The curve from start to end, entered with the value that holds at `start`, with a last step at `end`.

    A long curve is thinned to about `limit` steps: of each stretch of time the samples with the least and the
    most live bytes remain, so that no peak is lost; with PyTorch's allocator those of reserved bytes too.
    """
    inside = slice(*np.searchsorted(curve.time_ns, [start, end], side="left"))
    whole = [curve.live, curve.used, *([] if curve.reserved is None else [curve.reserved])]
    time, levels = curve.time_ns[inside] - start, [column[inside] for column in whole]
    if len(time) == 0 or time[0] > 0:
        before = inside.start - 1
        time = np.insert(time, 0, 0)
        held = [column[before] if before >= 0 else 0 for column in whole]
        levels = [np.insert(column, 0, value) for column, value in zip(levels, held, strict=True)]
    keep = _peaks_and_last(time, levels[0])
    for column in levels[2:]:
        keep = np.union1d(keep, _peaks_and_last(time, column))
    if len(keep) > limit:
        width = max(1, 2 * (end - start) // limit)
        # The first value holds from the start of the window and the last to its end, whatever is thinned out.
        ends = keep[[0, -1]]
        shown = [keep[_extremes(time[keep], column[keep], width)] for column in (levels[0], *levels[2:])]
        keep = np.unique(np.concatenate([ends, *shown]))
    return Steps(np.append(time[keep], end - start), *(np.append(column[keep], column[-1]) for column in levels))


def _peaks_and_last(time: Column, live: Column) -> Column:
    """Positions of the greatest and of the last value at each time, in order."""
    order = np.lexsort((live, time))
    ends = np.flatnonzero(np.append(np.diff(time) > 0, True))
    return np.unique(np.concatenate([order[ends], ends]))


def _extremes(time: Column, live: Column, width: int) -> Column:
    """Positions of the least and the greatest value in each stretch of `width` ns, in order of time."""
    stretch = time // width
    order = np.lexsort((live, stretch))
    edges = np.flatnonzero(np.diff(stretch[order]))
    lowest = order[np.concatenate([[0], edges + 1])]
    highest = order[np.concatenate([edges, [len(order) - 1]])]
    return np.unique(np.concatenate([lowest, highest]))
