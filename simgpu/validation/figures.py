"""Figures of a validation: measured and simulated values of all runs, and the streams of one run.

Imports matplotlib, so import it only to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simgpu.analysis.plots import RunFigure, plot_timeline
from simgpu.hardware.spec import DEVICE
from simgpu.simulation.result import Result
from simgpu.timeline.model import MemoryCurve, SpanKind, Timeline
from simgpu.timeline.streams import OWN_ENGINES
from simgpu.units import BYTE_UNITS, TIME_UNITS, format_time
from simgpu.validation.measured import STREAMS, MeasuredKind, MeasuredSpan, Method
from simgpu.validation.outcome import TARGETS, ComparedCase, ComparedRun, Quantity, Validation
from simgpu.validation.tables import CPU_NOTE, error_text
from simgpu.validation.timelines.comparison import divergence_text
from simgpu.validation.timelines.matching import match

_WIDTH_INCHES, _ROW_INCHES, _CASE_INCHES, _HEAD_INCHES, _STREAM_INCHES = 10.0, 0.36, 0.5, 1.0, 0.55
#: Height of a bar, in rows.
_BAR = 0.36
#: Length of an axis over its longest bar: space for the texts at the ends of bars.
_MARGIN = 1.22
_MEASURED: dict[str, Any] = {"color": "#4477AA"}
_SIMULATED: dict[str, Any] = {"color": "#88CCEE"}
_FITTED: dict[str, Any] = {"facecolor": "white", "edgecolor": "#88CCEE", "hatch": "////"}
_SPREAD: dict[str, Any] = {"color": "black", "linewidth": 1.0, "solid_capstyle": "butt"}
#: Colour of an error above its target, and of a divergence.
_ALERT = "#BB4444"
_KINDS = {
    MeasuredKind.KERNEL: SpanKind.COMPUTE,
    MeasuredKind.COPY_D2H: SpanKind.COPY,
    MeasuredKind.COPY_H2D: SpanKind.COPY,
}


class _Axis(NamedTuple):
    """The quantity on an axis. scale: nanoseconds or bytes per unit."""

    quantity: Quantity
    unit: str
    scale: int
    title: str


def plot_validation(validation: Validation) -> Figure:
    """Plots step time (left) and peak memory (right) with a row per case: a measured and a simulated bar per run.

    A black line at the end of a measured bar spans all measured steps. Labels are relative errors, red above the
    target. The simulated bar of the plain run's step, which is calibrated, is hatched.
    """
    cases = [case for case in validation.cases if case.runs or case.absent]
    heights = [_CASE_INCHES + _ROW_INCHES * len(_rows(case)) for case in cases]
    figure = RunFigure(figsize=(_WIDTH_INCHES, _HEAD_INCHES + sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(cases), 2, squeeze=False, height_ratios=heights)
    for case, (left, right) in zip(cases, grid, strict=True):
        _draw_case(left, case, _time_axis(case))
        _draw_case(right, case, _memory_axis(case))
        left.set_title(case.name, loc="left", fontsize=9.5, fontweight="bold")
        right.set_yticklabels([])
    title = f"{validation.machine.device}, {validation.machine.date}: training measured and simulated"
    figure.suptitle(f"{title}\n{CPU_NOTE}" if validation.on_cpu else title, x=0.01, ha="left", fontsize=11)
    handles: list[Artist] = [
        Patch(**_MEASURED, label="measured (median)"),
        Line2D([], [], **_SPREAD, label="all measured steps"),
        Patch(**_SIMULATED, label="simulated, with its error"),
        Patch(**_FITTED, linewidth=0, label="calibrated"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False, fontsize=8)
    return figure


def plot_run(run: ComparedRun, *, title: str = "") -> Figure:
    """Plots the measured streams of one step above the simulated streams, on one time axis.

    Dotted lines mark the ends, red lines the first divergence, which the text below describes. Raises `ValueError` for
    a run without both timelines.
    """
    result, comparison = None if run.counterpart is None else run.counterpart.result, run.timelines
    if result is None or comparison is None:
        raise ValueError(f"{run.case}, {run.method}: the measured or the simulated timeline is missing")
    measured = measured_timeline(run.run.spans, result)
    start, stop = result.timeline.window(-1)
    length = max(measured.iteration_ends_ns[-1], stop - start)
    ends = result.timeline.iteration_ends_ns
    simulated = replace(result.timeline, iteration_ends_ns=(*ends[:-1], start + length))
    rows = max(2, sum(bool(stream.rows) for stream in comparison.streams.values()))
    figure = RunFigure(figsize=(_WIDTH_INCHES, 1.6 + 2 * (0.3 + _STREAM_INCHES * rows)), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    profiled = f"measured: profiled step {format_time(measured.iteration_ends_ns[-1])}"
    text = f"{profiled}, median step {format_time(run.measured.step_ns)}"
    plot_timeline(replace(measured, iteration_ends_ns=(length,)), title=text, phases=result.phases, ax=upper)
    plot_timeline(simulated, title=f"simulated: {format_time(stop - start)}", phases=result.phases, ax=lower)
    upper.set_xlabel("")
    upper.tick_params(axis="x", length=0, labelbottom=False)
    _one_legend(upper, lower)
    row = comparison.first_divergence
    divergences = (row.measured, row.simulated) if row is not None else (None, None)
    for ax, end, event in zip((upper, lower), (measured.iteration_ends_ns[-1], stop - start), divergences, strict=True):
        ax.axvline(end / _unit_of(length), color="0.4", linewidth=0.8, linestyle=":")
        if event is not None:
            ax.axvline(event.start_ns / _unit_of(length), color=_ALERT, linewidth=1.0)
    figure.supxlabel(fill(divergence_text(comparison), 125), x=0.01, ha="left", fontsize=8)
    figure.suptitle(f"{title or run.case}, {run.method}", x=0.01, ha="left", fontsize=11)
    return figure


def measured_timeline(spans: Sequence[MeasuredSpan], result: Result) -> Timeline:
    """A measured step as a timeline of one iteration, with the simulated names of the kernels that match."""
    simulated = _kernels_of(result)
    ops = {kernel.id: kernel.op for kernel in result.graph.kernels}
    matching = match(spans, [ops[name] for name, _ in simulated])
    same = {matching.calls[call].number: simulated[position] for call, position in matching.pairs}
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.stream))
    streams = ("compute", "d2h", "h2d")
    events = [same.get(span.call, (span.name, _KINDS[span.kind])) for span in ordered]
    names = tuple(dict.fromkeys(name for name, _ in events))
    place = {name: at for at, name in enumerate(names)}
    zeros = np.zeros(len(ordered), dtype=np.int64)
    engines = [STREAMS[span.kind] for span in ordered]
    return Timeline(
        streams=streams,
        names=names,
        gpu=zeros,
        stream=_column([streams.index(span.stream) for span in ordered]),
        kind=_column([kind for _, kind in events]),
        name=_column([place[name] for name, _ in events]),
        start_ns=_column([span.start_ns for span in ordered]),
        end_ns=_column([span.end_ns for span in ordered]),
        bytes=_column([span.bytes for span in ordered]),
        cause=zeros - 1,
        iteration=zeros,
        resource=_column([OWN_ENGINES.index(name) if name in OWN_ENGINES else -1 for name in engines]),
        resources=OWN_ENGINES,
        memories=(MemoryCurve.never_used(DEVICE, 0),),
        iteration_ends_ns=(max(span.end_ns for span in ordered),),
    )


def _one_legend(upper: Axes, lower: Axes) -> None:
    """Removes the upper legend if the lower one has all its entries."""
    above, below = upper.get_legend(), lower.get_legend()
    if above and below and {text.get_text() for text in above.texts} <= {text.get_text() for text in below.texts}:
        above.remove()


def _kernels_of(result: Result) -> list[tuple[str, SpanKind]]:
    """Names and kinds of the kernels of the last iteration, in order."""
    start, end = result.timeline.window(-1)
    kinds = (SpanKind.COMPUTE, SpanKind.RECOMPUTE)
    return [(span.name, span.kind) for span in result.timeline if span.kind in kinds and start <= span.start_ns < end]


def _column(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def _unit_of(length: int) -> int:
    """The unit of the axis of a timeline of this length, see `simgpu.analysis.plots`."""
    return TIME_UNITS["s" if length >= 20 * 10**9 else "ms" if length >= 10**5 else "us"]


def _rows(case: ComparedCase) -> list[tuple[Method, ComparedRun | None]]:
    result: dict[Method, ComparedRun | None] = {run.method: run for run in case.runs}
    result |= dict.fromkeys(case.absent)
    return [(method, result[method]) for method in Method if method in result]


def _time_axis(case: ComparedCase) -> _Axis:
    longest = max((run.measured.step_ns for run in case.runs), default=0)
    unit = next((unit for unit in ("s", "ms") if longest >= TIME_UNITS[unit]), "us")
    return _Axis(Quantity.STEP, "µs" if unit == "us" else unit, TIME_UNITS[unit], "step time")


def _memory_axis(case: ComparedCase) -> _Axis:
    most = max((run.measured.peak_bytes for run in case.runs), default=0)
    unit = next((unit for unit in ("GiB", "MiB") if most >= BYTE_UNITS[unit]), "KiB")
    return _Axis(Quantity.PEAK, unit, BYTE_UNITS[unit], "peak memory")


def _draw_case(ax: Axes, case: ComparedCase, axis: _Axis) -> None:
    rows = _rows(case)
    longest: float = 0.0
    for row, (_, run) in enumerate(rows):
        if run is None:
            _write(ax, 0.0, row, "not run")
            continue
        longest = max(longest, _draw_run(ax, run, row, axis))
    ax.set_xlim(0, max(longest, 1e-9) * _MARGIN)
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.set_yticks(range(len(rows)), [str(method) for method, _ in rows])
    ax.tick_params(axis="y", length=0)
    ax.tick_params(labelsize=8)
    if not longest:
        ax.set_xticks([])
    ax.set_title(f"{axis.title} ({axis.unit})", loc="right", fontsize=8.5)
    ax.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_run(ax: Axes, run: ComparedRun, row: int, axis: _Axis) -> float:
    """Draws both bars and their texts; returns the length of the longer one."""
    measured: float = getattr(run.measured, axis.quantity) / axis.scale
    ax.barh(row - _BAR / 2, measured, _BAR, **_MEASURED)
    if axis.quantity is Quantity.STEP:
        steps = run.run.step_ns
        ax.plot([min(steps) / axis.scale, max(steps) / axis.scale], [row - _BAR / 2] * 2, **_SPREAD)
        measured = max(steps) / axis.scale
    if run.simulated is None:
        _write(ax, 0.0, row + _BAR / 2, run.failure)
        return measured
    simulated: float = getattr(run.simulated, axis.quantity) / axis.scale
    fitted = not run.counts(axis.quantity)
    ax.barh(row + _BAR / 2, simulated, _BAR, **({**_FITTED, "linewidth": 0} if fitted else _SIMULATED))
    error = run.error(axis.quantity)
    text, target = "fitted" if fitted else error_text(error), TARGETS.get(axis.quantity)
    missed = target is not None and error is not None and not fitted and abs(error) > target.worst
    _write(ax, max(measured, simulated), row, text, _ALERT if missed else "black")
    return max(measured, simulated)


def _write(ax: Axes, at: float, row: float, text: str, colour: str = "0.4") -> None:
    ax.annotate(text, (at, row), (4, 0), textcoords="offset points", ha="left", va="center", fontsize=7.5, color=colour)
