"""Pictures of a run: streams over time, and memory over time.

This module loads matplotlib, so import it only where something is drawn. It uses no global state of matplotlib: figures
work without a display and show themselves in notebooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simgpu.analysis.bars import LOOKS, Look, Steps, bars, legend_label, steps
from simgpu.analysis.power import SAMPLE_NS, Power, PowerCurve
from simgpu.errors import InputError
from simgpu.hardware.spec import DEVICE
from simgpu.io.atomic import atomic_file
from simgpu.timeline.model import Column, Timeline
from simgpu.timeline.streams import engine_ends, track_order
from simgpu.trace.model import Phase
from simgpu.units import BYTE_UNITS, TIME_UNITS, format_bytes, format_energy, format_power, format_time

#: Opacity of what takes next to no part of its stretch of time: still to be seen.
_PALEST = 0.2
_STREAM_LABELS = {"d2h": "D2H copies", "h2d": "H2D copies", "data": "copies", "host1": "host\n(exchange)"}
_STREAM_LABELS |= {role: role for role in ("compute", "host", "collectives")}
_WIDTH_INCHES = 10.0
_ROW_INCHES = 0.55
_MEMORY_INCHES = 2.4
#: Bars narrower than the window over this many are joined; about half a pixel in a figure of that width.
_GRAINS = 2000
#: Up to this number of bars of one kind get light edges, if they are wide enough; more edges would look like gaps.
_EDGED_BARS, _EDGED_GRAINS = 40, 4
#: Dots per inch of `save_figure`.
_DPI = 150
#: Per format of `save_figure`: what must not go into the file, because it would differ from run to run.
_METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
#: Settings of matplotlib: text in SVG and PDF instead of its outlines, and the same identifiers in every file.
_AS_TEXT: dict[Any, Any] = {"svg.hashsalt": "simgpu", "svg.fonttype": "none", "pdf.fonttype": 42}
LIVE_COLOUR, PADDING_COLOUR, RESERVED_COLOUR = "#4477AA", "#DDAA33", "#CC6677"
#: Means of the power are drawn over the window's length over this, which a reader can still distinguish.
_POWER_STEPS = 600
_POWER_COLOURS = {"idle": "#BBBBBB", "arithmetic": "#4477AA", "device memory": "#44AA99", "link": "#EE8866"}
_BUDGET_LINE: dict[str, Any] = {"color": "#BB4444", "linestyle": "--", "linewidth": 1.2}


class RunFigure(Figure):
    """A matplotlib figure that shows itself as an image in a notebook."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


class _Window(NamedTuple):
    """A stretch of a run and the unit that its time axis is drawn in."""

    start: int
    end: int
    unit: str
    title: str
    inner_ends: tuple[int, ...]

    @property
    def unit_label(self) -> str:
        return "µs" if self.unit == "us" else self.unit

    def scaled(self, time: Column) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.asarray(time / TIME_UNITS[self.unit], dtype=np.float64)


def plot_timeline(
    timeline: Timeline,
    *,
    iteration: int | None = -1,
    title: str | None = None,
    phases: Mapping[str, Phase] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """The spans of each stream over one iteration (None: over the whole run), one row per stream.

    phases: the phase of each kernel by id, to distinguish forward from backward. ax: draw there instead of in a new
    figure. Kernels too short to see are joined. `IndexError` when there is no such iteration.

    >>> from simgpu.timeline.model import SpanKind, Timeline
    >>> column = lambda *values: np.array(values, dtype=np.int64)
    >>> timeline = Timeline(("compute",), ("conv1",), gpu=column(0), stream=column(0), name=column(0),
    ...     kind=column(SpanKind.COMPUTE), start_ns=column(0), end_ns=column(10**6), bytes=column(0), cause=column(-1),
    ...     iteration=column(0), resource=column(-1), resources=(), memories=(), iteration_ends_ns=(10**6,))
    >>> plot_timeline(timeline, title="one kernel").axes[0].get_title(loc="left")
    'one kernel'
    """
    window = _window(timeline, iteration)
    if ax is None:
        figure = _figure(1.1 + _ROW_INCHES * max(3, len(_shown_streams(timeline, window))))
        ax = figure.subplots()
    _draw_streams(ax, timeline, window, phases or {})
    _title(ax, window, title)
    _time_axis(ax, window)
    return cast(Figure, ax.figure)


def plot_memory(
    timeline: Timeline,
    *,
    budget: int | None = None,
    iteration: int | None = -1,
    title: str | None = None,
    memory: str = DEVICE,
    ax: Axes | None = None,
) -> Figure:
    """A memory over one iteration (None: over the whole run): live bytes, padding above them, peak and budget.

    With PyTorch's allocator, also what it has allocated, in place of padding, and reserved.

    Of device memory with several GPUs, the one with the highest peak, and thin lines for the others.

    budget: bytes, drawn as a line; the memory's own capacity by default, no line where it was unlimited. memory: its
    name, such as ``host``; `KeyError` for one that the run lacks.
    """
    window = _window(timeline, iteration)
    if ax is None:
        ax = _figure(_MEMORY_INCHES + 0.8).subplots()
    _draw_memory(ax, timeline, window, budget, memory)
    _title(ax, window, title)
    _time_axis(ax, window)
    return cast(Figure, ax.figure)


def plot_run(
    timeline: Timeline,
    *,
    budget: int | None = None,
    iteration: int | None = -1,
    title: str | None = None,
    phases: Mapping[str, Phase] | None = None,
) -> Figure:
    """Streams above memory on one time axis; arguments as in `plot_timeline` and `plot_memory`."""
    window = _window(timeline, iteration)
    streams_inches = 0.4 + _ROW_INCHES * max(3, len(_shown_streams(timeline, window)))
    figure = _figure(streams_inches + _MEMORY_INCHES + 0.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[streams_inches, _MEMORY_INCHES])
    _draw_streams(upper, timeline, window, phases or {})
    upper.tick_params(axis="x", length=0)
    _title(upper, window, title)
    _draw_memory(lower, timeline, window, budget)
    _time_axis(lower, window)
    return figure


def plot_power(timeline: Timeline, curve: PowerCurve, power: Power, *, title: str | None = None) -> Figure:
    """The power of the GPU over the last iteration, stacked by part, with what a profiler would sample and the limit.

    curve, power: of the timeline's last iteration.
    """
    window = _window(timeline, -1)
    ax = _figure(_MEMORY_INCHES + 0.8).subplots()
    bounds = np.unique(np.linspace(window.start, window.end, _POWER_STEPS + 1).astype(np.int64))
    time = window.scaled(bounds - window.start)
    columns = (curve.idle, curve.arithmetic, curve.dram, curve.link)
    below = np.zeros(len(bounds))
    for (label, colour), watts in zip(_POWER_COLOURS.items(), columns, strict=True):
        means = curve.means(watts, bounds)
        above = below + np.append(means, means[-1:])
        ax.fill_between(time, below, above, step="post", color=colour, alpha=0.8, linewidth=0, label=label)
        below = above
    seen = curve.running_means(SAMPLE_NS, bounds)
    ax.plot(time, seen, color="black", linewidth=1.0, label=f"mean of the\nlast {format_time(SAMPLE_NS)}")
    limit = power.limit_mw / 1000
    ax.axhline(limit, **_BUDGET_LINE, label=f"limit {format_power(power.limit_mw)}")
    ax.set_ylim(0, max(limit, float(below.max(initial=0.0))) * 1.08)
    ax.set_ylabel("power (W)")
    handles, _ = ax.get_legend_handles_labels()
    _legend(ax, handles)
    summary = f"{format_energy(power.energy_nj)} per iteration, {format_power(1000 * power.average_w)} average"
    _title(ax, window, f"{window.title if title is None else title}\n{summary}")
    _time_axis(ax, window)
    return cast(Figure, ax.figure)


def figure_format(path: str | Path) -> str:
    """The format of a figure's file by its suffix, in capitals or not; `InputError` for another suffix.

    >>> figure_format("memory.pdf"), figure_format("memory.PDF")
    ('pdf', 'pdf')
    """
    suffix = Path(path).suffix.lstrip(".").lower()
    if suffix not in _METADATA:
        known = ", ".join(f".{name}" for name in _METADATA)
        raise InputError.single(path, "", f"'{suffix}' is not a format of figures", f"end the name in one of {known}")
    return suffix


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes a figure atomically as PNG, SVG or PDF by its suffix; `InputError` when it cannot be written.

    SVG and PDF contain text, which can be searched and edited. Equal figures give equal bytes.
    """
    suffix = figure_format(path)
    arranged = _arranged(figure) if suffix == "png" else nullcontext()
    with atomic_file(path) as part, part.open("wb") as file, rc_context(_AS_TEXT), arranged:
        figure.savefig(file, format=suffix, dpi=_DPI, metadata=_METADATA[suffix])


@contextmanager
def _arranged(figure: Figure) -> Iterator[None]:
    """Arrange the figure for saving. Matplotlib would draw a figure with a layout engine twice to arrange it."""
    engine, dpi = figure.get_layout_engine(), figure.dpi
    if engine is None or not figure.axes:
        yield
        return
    try:
        figure.set_dpi(_DPI)
        with suppress(ValueError):  # as matplotlib does
            engine.execute(figure)
        figure.set_layout_engine(None)
        yield
    finally:
        figure.set_layout_engine(engine)
        figure.set_dpi(dpi)


def _figure(height: float) -> RunFigure:
    figure = RunFigure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _window(timeline: Timeline, iteration: int | None) -> _Window:
    ends = timeline.iteration_ends_ns
    if iteration is None:
        start, end = 0, max(ends[-1], int(timeline.end_ns.max(initial=0)))
        title, inner = f"whole run, {format_time(end)}", ends
    else:
        start, end = timeline.window(iteration)
        number = range(len(ends))[iteration] + 1
        title, inner = f"iteration {number} of {len(ends)}, {format_time(end - start)}", ()
    # An iteration without duration still gets an axis.
    end = max(end, start + 1)
    unit = next((unit for unit, minimum in (("s", 20 * 10**9), ("ms", 10**5)) if end - start >= minimum), "us")
    return _Window(start, end, unit, title, tuple(at for at in inner if at < end))


def _shown_streams(timeline: Timeline, window: _Window) -> list[str]:
    """Streams with something to see in the window, in the order of the rows, top to bottom."""
    seen = (timeline.start_ns < window.end) & (timeline.end_ns > window.start) & (timeline.end_ns > timeline.start_ns)
    shown = {timeline.streams[stream] for stream in np.unique(timeline.stream[seen]).tolist()}
    return sorted(shown | {"compute"}, key=track_order)


def _draw_streams(ax: Axes, timeline: Timeline, window: _Window, phases: Mapping[str, Phase]) -> None:
    grain = max(1, (window.end - window.start) // _GRAINS)
    rows = {stream: row for row, stream in enumerate(_shown_streams(timeline, window))}
    drawn = bars(timeline, window.start, window.end, phases, grain)
    for look in reversed(LOOKS):
        for stream, row in rows.items():
            if (stream, look) in drawn:
                starts, ends, busy = drawn[stream, look]
                wide = (ends - starts > _EDGED_GRAINS * grain) & (len(starts) <= _EDGED_BARS)
                boxes = _boxes(look, row, window.scaled(starts), window.scaled(ends), wide, busy)
                ax.add_collection(boxes, autolim=False)
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.set_yticks(list(rows.values()), [_stream_label(stream) for stream in rows])
    ax.tick_params(axis="y", length=0)
    used = {look.label: look for _, look in sorted(drawn, key=lambda key: LOOKS.index(key[1]), reverse=True)}
    engines = timeline.engines
    handles: list[Artist] = [
        Patch(facecolor=look.fill, hatch=look.hatch, edgecolor=look.ink, linewidth=0, label=legend_label(look, engines))
        for look in LOOKS
        if used.get(look.label) is look
    ]
    _legend(ax, handles)
    _iteration_marks(ax, window)


def _stream_label(stream: str) -> str:
    if stream in _STREAM_LABELS:
        return _STREAM_LABELS[stream]
    ends = engine_ends(stream)
    return f"{ends[0]} to {ends[1]}\ncopies" if ends else stream


def _boxes(
    look: Look,
    row: int,
    starts: np.ndarray[tuple[int], np.dtype[np.float64]],
    ends: np.ndarray[tuple[int], np.dtype[np.float64]],
    wide: np.ndarray[tuple[int], np.dtype[np.bool_]],
    busy: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> PolyCollection:
    """One collection of rectangles; a thin light edge parts wide plain ones, narrow ones keep their colour.

    A bar that joins many short spans is paler the more idle time it contains.
    """
    from matplotlib.colors import to_rgba

    low, high = np.full_like(starts, row - look.height / 2), np.full_like(starts, row + look.height / 2)
    corners = np.stack(
        [np.stack(corner, axis=1) for corner in ((starts, low), (starts, high), (ends, high), (ends, low))], axis=1
    )
    fills = [to_rgba(look.fill, _PALEST + (1 - _PALEST) * share) for share in busy.tolist()]
    plain = zip(fills, wide.tolist(), strict=True)
    edges = [to_rgba(look.ink) if look.hatch or is_wide else fill for fill, is_wide in plain]
    widths = 0.0 if look.hatch else 0.5
    return PolyCollection(
        list(corners),
        facecolors=fills,
        edgecolors=edges,
        linewidths=widths,
        hatch=look.hatch or None,
    )


def _draw_memory(ax: Axes, timeline: Timeline, window: _Window, budget: int | None, memory: str = DEVICE) -> None:
    drawn = timeline.device_memories if memory == DEVICE else (timeline.memory(memory),)
    curves = [steps(curve, window.start, window.end) for curve in drawn]
    neediest = max(range(len(curves)), key=lambda gpu: (int(curves[gpu].live.max()), -gpu))
    shown = curves[neediest]
    budget = drawn[0].capacity if budget is None else budget
    peak = int(shown.live.max())
    top = max(shown.top, 1)
    # A budget far above the curve would flatten it: then it is named, not drawn.
    line = budget is not None and budget <= 4 * top
    height = max(top, budget if line and budget is not None else 0)
    unit = next((name for name in ("GiB", "MiB", "KiB") if height >= BYTE_UNITS[name]), "B")
    scale = BYTE_UNITS[unit]
    time = window.scaled(shown.time)
    ax.fill_between(time, shown.live / scale, step="post", color=LIVE_COLOUR, alpha=0.35, linewidth=0)
    ax.step(time, shown.live / scale, where="post", color=LIVE_COLOUR, linewidth=1.0)
    handles: list[Artist] = [Patch(facecolor=LIVE_COLOUR, alpha=0.45, label="live blocks")]
    if np.any(shown.used > shown.live):
        ax.fill_between(
            time, shown.live / scale, shown.used / scale, step="post", color=PADDING_COLOUR, alpha=0.7, linewidth=0
        )
        label = "padding" if shown.reserved is None else "allocated"
        handles.append(Patch(facecolor=PADDING_COLOUR, alpha=0.7, label=label))
    if shown.reserved is not None:
        ax.step(time, shown.reserved / scale, where="post", color=RESERVED_COLOUR, linewidth=1.4)
        label = f"reserved, peak\n{format_bytes(shown.top)}"
        handles.append(Line2D([], [], color=RESERVED_COLOUR, linewidth=1.4, label=label))
    others = [other for gpu, other in enumerate(curves) if gpu != neediest]
    for other in others:
        ax.step(window.scaled(other.time), other.live / scale, where="post", color="0.45", linewidth=0.6)
    if others:
        handles.append(Line2D([], [], color="0.45", linewidth=0.6, label="live on the other GPUs"))
    ax.set_ylim(0, height * 1.25 / scale)
    ax.set_ylabel(f"memory of GPU {neediest} ({unit})" if others else f"{memory} memory ({unit})")
    if line and budget is not None:
        ax.axhline(budget / scale, **_BUDGET_LINE)
    if budget is not None:
        label = f"budget {format_bytes(budget)}" + ("" if line else "\n(above the axis)")
        handles.append(Line2D([], [], label=label, **_BUDGET_LINE))
    _legend(ax, handles)
    _mark_peak(ax, window, shown, peak, scale, height)
    _iteration_marks(ax, window)


def _mark_peak(ax: Axes, window: _Window, shown: Steps, peak: int, scale: int, height: int) -> None:
    """A dot on the peak, and its size in the free strip above curve and budget line."""
    at = int(shown.live.argmax())
    x = float(window.scaled(shown.time)[at])
    share = shown.time[at] / (window.end - window.start)
    side, hook = ("left", 0.0) if share < 0.2 else ("right", 1.0) if share > 0.8 else ("center", 0.5)
    text = f"peak {format_bytes(peak)} at {x:.{0 if x >= 1000 else 1}f} {window.unit_label}"
    ax.plot([x], [peak / scale], marker="o", markersize=4, color="black", zorder=5)
    ax.annotate(
        text,
        xy=(x, peak / scale),
        xytext=(x, height * 1.13 / scale),
        ha=side,
        va="center",
        fontsize=8,
        arrowprops={"arrowstyle": "-", "linewidth": 0.7, "color": "0.3", "relpos": (hook, 0.0), "shrinkB": 3},
    )


def _title(ax: Axes, window: _Window, title: str | None) -> None:
    ax.set_title(window.title if title is None else title, loc="left", fontsize=10)


def _time_axis(ax: Axes, window: _Window) -> None:
    ax.set_xlim(0, (window.end - window.start) / TIME_UNITS[window.unit])
    ax.set_xlabel(f"time ({window.unit_label})")
    for axes in ax.figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)


def _legend(ax: Axes, handles: list[Artist]) -> None:
    """In the right margin, where it covers no data."""
    ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.005, 1.02),
        frameon=False,
        fontsize=8,
        handlelength=1.6,
        labelspacing=0.45,
        borderaxespad=0.0,
    )


def _iteration_marks(ax: Axes, window: _Window) -> None:
    for at in window.inner_ends:
        ax.axvline((at - window.start) / TIME_UNITS[window.unit], color="0.4", linewidth=0.8, linestyle=":")
