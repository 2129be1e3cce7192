"""Charts of a sweep: a measure over a varied number, and throughput vs. memory with its Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

from simgpu.analysis.curves import plot_curves, plot_front
from simgpu.errors import InputError, did_you_mean
from simgpu.experiments.measures import OOM
from simgpu.experiments.sweep.labels import column_label, numeric_path, policy_texts, provenance, scale_of
from simgpu.experiments.sweep.point import OK, OUT_OF_MEMORY
from simgpu.experiments.sweep.spread import SEED
from simgpu.experiments.sweep.table import values_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simgpu.experiments.scenarios.sweep import Sweep

#: Columns added to the frame: the coordinates, as they are drawn.
_X, _Y = "drawn x", "drawn y"
#: Columns of a title line before it wraps, to the left of the legend.
_TITLE_COLUMNS = 64


def measure_over(sweep: Sweep, frame: pd.DataFrame, y: str, x: str, references: Mapping[str, Any]) -> Figure:
    """See `SweepResult.plot`."""
    texts = policy_texts(sweep, [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")])
    frame = frame.assign(**{_Y: _numbers(frame, "y", y)}).assign(policy=texts)
    if x in sweep.paths:
        along = numeric_path(sweep, x)
        frame[_X], xlabel = [along.number(sweep.values(point)[x]) for point in frame["point"]], along.label
    else:
        frame[_X], xlabel = _numbers(frame, "x", x), column_label(x)
    seeds = SEED in sweep.paths and x != SEED and frame[SEED].nunique() > 1
    labels = _labels(sweep, frame, leaving_out=SEED if seeds else "")
    curves: dict[str, list[tuple[float, float]]] = {}
    spreads: dict[str, list[float]] = {}
    for label, rows in frame.groupby(labels, sort=False):
        finished = rows[rows["outcome"] == OK].groupby(_X)[_Y]
        name = str(label) if len(finished) else f"{label} ({_failure(rows)})"
        count = int((rows["outcome"] == OK).sum())
        if 0 < count < len(rows):
            name = f"{label} ({count} of {len(rows)} runs)"
        means = finished.mean()
        curves[name] = list(zip(means.index.astype(float), means.astype(float), strict=True))
        spreads[name] = [0.0 if math.isnan(each) else float(each) for each in finished.std()]
    title = f"{sweep.name}: {column_label(y)} over {xlabel}{', mean and standard deviation over the seeds' * seeds}"
    return plot_curves(
        curves,
        title="\n".join(fill(line, _TITLE_COLUMNS) for line in (title, provenance(_rows_of(frame)))),
        xlabel=xlabel,
        ylabel=column_label(y),
        references=references,
        spreads=spreads if seeds else None,
    )


def _rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows with a trace, as mappings."""
    rows = frame[frame["origin"].notna()].to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _numbers(frame: pd.DataFrame, name: str, column: str) -> pd.Series[float]:
    """A column's numbers as they are drawn. name: of the argument, for the `InputError` for other columns."""
    if column not in frame or not _is_number(frame[column]):
        numbers = [str(each) for each in frame if _is_number(frame[each])]
        what = f"{column!r} is not a numeric column of this sweep"
        raise InputError.single("", f"argument {name}", what, did_you_mean(column, numbers))
    return frame[column].astype("float64") / scale_of(column)


def _failure(rows: pd.DataFrame) -> str:
    """Why a run has no numbers at any point."""
    outcome = str(rows["outcome"].iloc[0])
    return OOM if outcome == OUT_OF_MEMORY else outcome


def pareto_front(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows on the Pareto front of throughput and peak memory, by ascending memory."""
    finished = frame[frame["outcome"] == "ok"].sort_values(
        ["device_peak_bytes", "samples_per_s"], ascending=[True, False]
    )
    best = finished["samples_per_s"].astype(float)
    return finished[best > best.cummax().shift(fill_value=float("-inf"))]


def throughput_against_memory(sweep: Sweep, frame: pd.DataFrame) -> Figure:
    """See `SweepResult.plot_front`."""
    finished, front = frame[frame["outcome"] == OK], pareto_front(frame)
    labels = _labels(sweep, finished.assign(**{_X: finished["budget_bytes"]}))
    points = {label: _points(rows) for label, rows in finished.groupby(labels, sort=False)}
    return plot_front(
        points,
        _points(front),
        title=f"{sweep.name}: throughput against peak memory",
        xlabel=column_label("device_peak_bytes"),
        ylabel=column_label("samples_per_s"),
    )


def _points(rows: pd.DataFrame) -> list[tuple[float, float]]:
    scale = scale_of("device_peak_bytes")
    return [(row["device_peak_bytes"] / scale, row["samples_per_s"]) for _, row in rows.iterrows()]


def _labels(sweep: Sweep, frame: pd.DataFrame, leaving_out: str = "") -> pd.Series[str]:
    """The label of each row's line: its policy, and the values of the axes other than x, which is in column `_X`.

    leaving_out: a path whose values share a line
    """
    import pandas as pd

    texts = {path: _texts(sweep, frame, path) for path in dict.fromkeys(sweep.paths) if path != leaving_out}
    # An axis is equivalent to x if its values and those of x correspond one to one.
    others = [
        column
        for column in texts.values()
        if frame.groupby(column)[_X].nunique().max() > 1 or column.nunique() != frame[_X].nunique()
    ]
    columns = [*([frame["policy"]] if frame["policy"].nunique() > 1 or not others else []), *others]
    named = [", ".join(text for text in row if text) for row in zip(*columns, strict=True)]
    labels = [label or policy for label, policy in zip(named, frame["policy"], strict=True)]
    return pd.Series(labels, index=frame.index)


def _texts(sweep: Sweep, frame: pd.DataFrame, path: str) -> pd.Series[str]:
    """The values of a path as text; empty at points that do not set it."""
    return frame["point"].map(
        lambda point: values_text({path: values[path]}) if path in (values := sweep.values(int(point))) else ""
    )


def _is_number(column: pd.Series[Any]) -> bool:
    return column.dtype.kind in "iuf"
