"""Charts of a sweep: a measure over a varied number, and throughput vs. memory with its Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simgpu.analysis.curves import plot_curves, plot_front
from simgpu.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simgpu.experiments.scenarios.sweep import Sweep

_GIB, _GB = 2**30, 10**9
#: Divisor and unit of the numbers in figures, by the ending of their column.
_UNITS = {"_bytes_per_s": (_GB, "GB/s"), "_bytes": (_GIB, "GiB"), "_ns": (10**6, "ms"), "_per_s": (1, "1/s")}
_LABELS = {
    "samples_per_s": "samples/s",
    "budget_bytes": "budget (GiB)",
    "device_peak_bytes": "peak device memory (GiB)",
    "iteration_ns": "step time (ms)",
    "d2h_bytes_per_s": "link, device to host (GB/s)",
}


def measure_over(sweep: Sweep, frame: pd.DataFrame, y: str, x: str, references: Mapping[str, Any]) -> Figure:
    """See `SweepResult.plot`."""
    for name, column in (("y", y), ("x", x)):
        if column not in frame or not _is_number(frame[column]):
            numbers = [str(each) for each in frame if _is_number(frame[each])]
            remedy = did_you_mean(column, numbers)
            raise InputError.single("", f"argument {name}", f"{column!r} is not a numeric column of this sweep", remedy)
    finished = frame[frame["outcome"] == "ok"]
    labels = _labels(sweep, finished, x)
    curves = {
        label: [(float(row[x]) / _unit(x)[0], float(row[y]) / _unit(y)[0]) for _, row in rows.sort_values(x).iterrows()]
        for label, rows in finished.groupby(labels, sort=False)
    }
    return plot_curves(
        curves,
        title=f"{sweep.name}: {_name(y)} over {_name(x)}",
        xlabel=_name(x),
        ylabel=_name(y),
        references=references,
    )


def pareto_front(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows on the Pareto front of throughput and peak memory, by ascending memory."""
    finished = frame[frame["outcome"] == "ok"].sort_values(
        ["device_peak_bytes", "samples_per_s"], ascending=[True, False]
    )
    best = finished["samples_per_s"].astype(float)
    return finished[best > best.cummax().shift(fill_value=float("-inf"))]


def throughput_against_memory(sweep: Sweep, frame: pd.DataFrame) -> Figure:
    """See `SweepResult.plot_front`."""
    finished, front = frame[frame["outcome"] == "ok"], pareto_front(frame)
    labels = _labels(sweep, finished, "budget_bytes")
    points = {label: _points(rows) for label, rows in finished.groupby(labels, sort=False)}
    return plot_front(
        points,
        _points(front),
        title=f"{sweep.name}: throughput against peak memory",
        xlabel=_name("device_peak_bytes"),
        ylabel=_name("samples_per_s"),
    )


def _points(rows: pd.DataFrame) -> list[tuple[float, float]]:
    return [(row["device_peak_bytes"] / _GIB, row["samples_per_s"]) for _, row in rows.iterrows()]


def _labels(sweep: Sweep, frame: pd.DataFrame, x: str) -> pd.Series[str]:
    """The label of each row's line: its policy, and the values of the axes other than x."""
    paths = [path for axis in sweep.axes for path in axis.paths]
    # An axis is equivalent to x if its values and those of x correspond one to one.
    others = [
        path
        for path in paths
        if frame.groupby(path)[x].nunique().max() > 1 or frame[path].nunique() != frame[x].nunique()
    ]
    columns = [*(["policy"] if frame["policy"].nunique() > 1 or not others else []), *others]
    return frame[columns].astype(str).agg(", ".join, axis=1)


def _is_number(column: pd.Series[Any]) -> bool:
    return column.dtype.kind in "iuf"


def _unit(column: str) -> tuple[float, str]:
    return next((unit for ending, unit in _UNITS.items() if column.endswith(ending)), (1, ""))


def _name(column: str) -> str:
    unit = _unit(column)[1]
    return _LABELS.get(column) or column.replace("_", " ") + (f" ({unit})" if unit else "")
