"""Charts of a sweep: a measure over a varied number, and throughput vs. memory with its Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from simgpu.analysis.curves import plot_curves, plot_front
from simgpu.experiments.measures import OOM
from simgpu.experiments.sweep.labels import ShownColumn, numeric_path, policy_texts, provenance
from simgpu.experiments.sweep.metric import no_metric
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
    drawn, ylabel = _numbers(frame, "y", y)
    frame = frame.assign(**{_Y: drawn}).assign(policy=texts)
    if x in sweep.paths:
        along = numeric_path(sweep, x)
        frame[_X], xlabel = [along.number(sweep.values(point)[x]) for point in frame["point"]], along.label
    else:
        frame[_X], xlabel = _numbers(frame, "x", x)
    seeds = SEED in sweep.paths and x != SEED and frame[SEED].nunique() > 1
    labels = _labels(sweep, frame, leaving_out=SEED if seeds else "")
    curves: dict[str, list[tuple[float, float]]] = {}
    spreads: dict[str, list[float]] = {}
    failed: dict[str, dict[str, list[float]]] = {}
    for label, rows in frame.groupby(labels, sort=False):
        finished = rows[rows["outcome"] == OK].groupby(_X)[_Y]
        name = str(label) if len(finished) else f"{label} ({_failure(str(rows['outcome'].iloc[0]))})"
        count = int((rows["outcome"] == OK).sum())
        if 0 < count < len(rows):
            name = f"{label} ({count} of {len(rows)} runs)"
        for why, places in _failed(rows).items():
            failed.setdefault(why, {})[name] = places
        means = finished.mean()
        curves[name] = list(zip(means.index.astype(float), means.astype(float), strict=True))
        spreads[name] = [0.0 if math.isnan(each) else float(each) for each in finished.std()]
    title = f"{sweep.name}: {ylabel} over {xlabel}{', mean and standard deviation over the seeds' * seeds}"
    return plot_curves(
        curves,
        title="\n".join(fill(line, _TITLE_COLUMNS) for line in (title, provenance(rows_of(frame)))),
        xlabel=xlabel,
        ylabel=ylabel,
        references=references,
        failed=failed,
        spreads=spreads if seeds else None,
    )


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows with a trace, as mappings."""
    rows = frame[frame["origin"].notna()].to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _numbers(frame: pd.DataFrame, name: str, column: str) -> tuple[pd.Series[float], str]:
    """A column's numbers as they are drawn, and their label. name: of the argument, for the `InputError` of others."""
    if column not in frame or not _is_number(frame[column]):
        raise no_metric(name, column, (str(each) for each in frame if _is_number(frame[each])))
    numbers = frame[column].astype("float64")
    shown = ShownColumn.of(column, numbers.dropna().abs())
    return numbers / shown.scale, shown.label


def _failure(outcome: str) -> str:
    return OOM if outcome == OUT_OF_MEMORY else outcome


def _failed(rows: pd.DataFrame) -> dict[str, list[float]]:
    """Where along x a line has no numbers, by the reason."""
    tried: dict[float, list[str]] = {}
    for x, outcome in zip(rows[_X].astype("float64"), rows["outcome"], strict=True):
        tried.setdefault(x, []).append(str(outcome))
    places: dict[str, list[float]] = {}
    for x in sorted(x for x, outcomes in tried.items() if OK not in outcomes and not math.isnan(x)):
        places.setdefault(_failure(tried[x][0]), []).append(x)
    return places


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
    peak = ShownColumn.of("device_peak_bytes", finished["device_peak_bytes"])
    points = {label: _points(rows, peak.scale) for label, rows in finished.groupby(labels, sort=False)}
    return plot_front(
        points,
        _points(front, peak.scale),
        title=f"{sweep.name}: throughput against peak memory",
        xlabel=peak.label,
        ylabel=ShownColumn.of("samples_per_s", ()).label,
    )


def _points(rows: pd.DataFrame, scale: float) -> list[tuple[float, float]]:
    return [(row["device_peak_bytes"] / scale, row["samples_per_s"]) for _, row in rows.iterrows()]


def labels_over(sweep: Sweep, frame: pd.DataFrame, along: Sequence[float]) -> pd.Series[str]:
    """The label of each row's line in a figure over a varied number. along: that number, by row."""
    return _labels(sweep, frame.assign(**{_X: along}))


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
