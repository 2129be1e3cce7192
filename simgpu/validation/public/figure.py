"""The scoreboard as a figure: predicted over published values, one panel for the peaks and one for the times.

Imports matplotlib, so import it only to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from simgpu.analysis.plots import RunFigure
from simgpu.validation.public.predicted import ComparedPeak, median_error
from simgpu.validation.public.times import ComparedTime, median_of

#: Colours that colour-blind readers can tell apart (six of Paul Tol's bright scheme, and two), a shape each.
_MARKS = (
    *(("#4477AA", "o"), ("#EE6677", "s"), ("#228833", "^"), ("#CCBB44", "D"), ("#AA3377", "v"), ("#66CCEE", "P")),
    *(("#000000", "X"), ("#EE8866", "<")),
)
#: From this ratio of the ends of an axis on, only powers of ten are labelled, so that labels do not overlap.
_WIDE = 100
_Points = dict[str, list[tuple[float, float]]]


def plot_scoreboard(peaks: Sequence[ComparedPeak], times: Sequence[ComparedTime]) -> RunFigure:
    """Each covered row as a point; rows that ran out of memory have no peak and are left out."""
    figure = RunFigure(figsize=(9.0, 4.9), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    of_peaks: _Points = {}
    for peak in peaks:
        if peak.published is not None:
            of_peaks.setdefault(peak.row.project, []).append((peak.published / 2**30, peak.predicted / 2**30))
    of_times: _Points = {}
    for time in times:
        of_times.setdefault(time.row.project, []).append((time.published / 1e6, time.predicted.sample_ns / 1e6))
    marks = dict(zip(dict.fromkeys((*of_peaks, *of_times)), cycle(_MARKS), strict=False))
    _panel(left, of_peaks, marks, "peak memory", "GiB", median_error(peaks))
    _panel(right, of_times, marks, "time of a sample", "ms", median_of(time.error for time in times))
    return figure


def _panel(
    ax: Axes, points: _Points, marks: dict[str, tuple[str, str]], what: str, unit: str, error: float | None
) -> None:
    """One panel. points: pairs of a published and a predicted value by project."""
    values = [value for each in points.values() for pair in each for value in pair]
    ends = (0.8 * min(values), 1.25 * max(values)) if values else (1.0, 10.0)
    for width, opacity in ((1.25, 0.4), (1.1, 1.0)):
        low, high = [end / width for end in ends], [end * width for end in ends]
        ax.fill_between(ends, low, high, color="#DDDDDD", alpha=opacity, linewidth=0)
    ax.plot(ends, ends, color="black", linewidth=0.8)
    for project, pairs in points.items():
        colour, shape = marks[project]
        published, predicted = zip(*pairs, strict=True)
        ax.plot(published, predicted, shape, color=colour, markersize=5, label=f"{project} ({len(pairs)})")
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    ax.set_xlabel(f"published {what} ({unit})")
    ax.set_ylabel(f"predicted {what} ({unit})")
    steps = (1.0, 2.0, 5.0) if ends[1] < _WIDE * ends[0] else (1.0,)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())
    middle = "" if error is None else f"median error {100 * error:.1f}%; "
    ax.set_title(f"{middle}shaded: 10% and 25%", fontsize=9)
    ax.legend(fontsize=8, loc="upper left", frameon=False)
