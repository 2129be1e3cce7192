"""The table of a sweep's rows: its columns, as CSV, Parquet and data frame, and the first rows as text."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from simgpu.experiments.measures import OOM
from simgpu.experiments.sweep.point import OK, OUT_OF_MEMORY
from simgpu.hardware.spec import DEVICE
from simgpu.io.atomic import atomic_file
from simgpu.timeline.streams import engine_ends
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    import pandas as pd

    from simgpu.experiments.scenarios.sweep import Sweep


Kind = Literal["int", "float", "bool", "text"]
StoredRows = Iterable[tuple[int, list[dict[str, Any]]]]


class TableColumn(NamedTuple):
    """A column: its name and the kind of its values. Any value may be missing."""

    name: str
    kind: Kind


#: The settings of a point, in base units.
PARAMETERS = (
    TableColumn("trace_name", "text"),
    TableColumn("model", "text"),
    TableColumn("batch", "int"),
    TableColumn("node_name", "text"),
    TableColumn("d2h_bytes_per_s", "int"),
    TableColumn("h2d_bytes_per_s", "int"),
    TableColumn("memory_bytes", "int"),
    TableColumn("budget_bytes", "int"),
    TableColumn("iterations", "int"),
    TableColumn("epoch", "int"),
    TableColumn("seed", "int"),
    TableColumn("pool", "text"),
    TableColumn("alignment_bytes", "int"),
    TableColumn("gpus", "int"),
    TableColumn("exchange", "text"),
    TableColumn("cores", "int"),
)
OUTCOME = tuple(TableColumn(name, "text") for name in ("policy", "policy_name", "parameters", "outcome", "message"))
#: The provenance of the numbers.
PROVENANCE = tuple(TableColumn(name, "text") for name in ("origin", "device", "date", "tool"))
_FIXED = frozenset(column.name for column in (*PARAMETERS, *OUTCOME, *PROVENANCE))
#: Rows per batch of a Parquet file.
_BATCH = 1024
#: Integers from this value on do not fit an int64 column.
_INT64_END = 2**63


def columns_of(sweep: Sweep, stored: StoredRows) -> tuple[TableColumn, ...]:
    """All columns: the point's number, varied values, parameters, outcome, metrics, provenance.

    Varied values are named by their path and are as written. ``iterations``, ``epoch``, ``seed`` and ``pool`` appear
    only once, among the parameters. Metrics are in order of their first appearance. A column with an integer that does
    not fit 64 bits, such as a seed, is text.
    """
    kinds: dict[str, Kind | None] = {path: axis_kind(sweep, path) for path in sweep.paths}
    numbers: dict[str, None] = {}
    for _, rows in stored:
        for row in rows:
            for name, value in row.items():
                kinds[name] = _either(kinds.get(name), _kind(value))
                if name not in _FIXED:
                    numbers[name] = None
    axes = [TableColumn(path, axis_kind(sweep, path)) for path in dict.fromkeys(sweep.paths) if path not in _FIXED]
    texts = {name for name, kind in kinds.items() if kind == "text"}
    parameters = [column._replace(kind="text") if column.name in texts else column for column in PARAMETERS]
    measured = [TableColumn(name, kinds[name] or "float") for name in numbers]
    return (TableColumn("point", "int"), *axes, *parameters, *OUTCOME, *measured, *PROVENANCE)


def _kind(value: object) -> Kind | None:
    match value:
        case None:
            return None
        case bool():
            return "bool"
        case int():
            return "int" if -_INT64_END <= value < _INT64_END else "text"
        case float():
            return "float"
    return "text"


def _either(one: Kind | None, other: Kind | None) -> Kind | None:
    """The kind of a column with values of both kinds."""
    if one is None or other is None or one == other:
        return one or other
    return "float" if {one, other} == {"int", "float"} else "text"


def axis_kind(sweep: Sweep, path: str) -> Kind:
    """The kind of a path's values as written, at the steps of its axes."""
    result: Kind | None = None
    for axis in sweep.axes:
        for step in axis.steps:
            result = _either(result, _kind(step.get(path)))
    return result or "text"


def table_rows(sweep: Sweep, stored: StoredRows) -> Iterator[dict[str, Any]]:
    """The rows by column, in the order of the points, with the values of the axes; missing values are omitted."""
    for point, rows in stored:
        values = sweep.values(point)
        for row in rows:
            yield {"point": point, **values, **row}


def _cell(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if kind == "float":
        return float(value)
    return value if kind != "text" or isinstance(value, str) else json.dumps(value, default=str)


def write_csv(columns: tuple[TableColumn, ...], rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write the table as CSV, atomically. Missing values are empty."""
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(column.name for column in columns)
        for row in rows:
            writer.writerow(_cell(row.get(name), kind) for name, kind in columns)


def write_parquet(columns: tuple[TableColumn, ...], rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write the table as Parquet, atomically. Missing values are null. Needs pyarrow."""
    import pyarrow
    import pyarrow.parquet

    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_(), "text": pyarrow.string()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns])
    remaining = iter(rows)
    with atomic_file(path) as part, part.open("wb") as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while batch := list(islice(remaining, _BATCH)):
            values = [[_cell(row.get(name), kind) for row in batch] for name, kind in columns]
            arrays = [pyarrow.array(column, field.type) for column, field in zip(values, schema, strict=True)]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def frame_of(columns: tuple[TableColumn, ...], rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The table as a data frame. Integer and boolean columns with missing values have a nullable type."""
    import pandas as pd

    every = list(rows)
    data = {}
    for name, kind in columns:
        values = [_cell(row.get(name), kind) for row in every]
        complete = None not in values
        types = {"int": "int64" if complete else "Int64", "bool": "bool" if complete else "boolean", "float": "float64"}
        data[name] = pd.Series(values, dtype=types.get(kind, "object"))
    return pd.DataFrame(data)


#: Number of rows shown when a sweep is printed.
SHOWN = 40
HEADINGS = ("point", "policy", "step time", "samples/s", "slowdown", "transfers", "peak memory")
_ABSENT = "-"


def shown_rows(sweep: Sweep, rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The first rows under `HEADINGS`; rows without a step time show their outcome instead."""
    return [(point_text(sweep, row["point"]), *_cells(row)) for row in islice(rows, SHOWN)]


def _link_bytes(row: Mapping[str, Any]) -> int:
    """Bytes that GPUs copied to and from all other memories."""
    copied = ((engine_ends(name.removesuffix("_bytes")), size) for name, size in row.items() if name.endswith("_bytes"))
    return sum(size for ends, size in copied if ends is not None and DEVICE in ends and size is not None)


def point_text(sweep: Sweep, point: int) -> str:
    """The values of a point, in the order of the axes.

    >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
    >>> point_text(load_sweep("memory-sweep"), 0)
    '16 MiB, 1 GB/s, 1 GB/s'
    """
    return values_text(sweep.values(point))


def values_text(values: Mapping[str, object]) -> str:
    """Varied values as one text, in their order.

    >>> values_text({"budget": "16 MiB", "policies[0]": {"vdnn": {"mode": "conv"}}})
    '16 MiB, {vdnn: {mode: conv}}'
    """
    texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in values.values()]
    return ", ".join(texts).replace('"', "")


def failures(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Messages of rows that failed other than by running out of memory, with their number of rows."""
    return Counter(f"{row['outcome']}: {row['message']}" for row in rows if row["outcome"] not in (OK, OUT_OF_MEMORY))


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    policy = str(row.get("policy", _ABSENT))
    if row["outcome"] != OK:
        outcome = OOM if row["outcome"] == OUT_OF_MEMORY else row["outcome"]
        return policy, outcome, *[_ABSENT] * (len(HEADINGS) - 3)
    rate, slowdown = row["samples_per_s"], row["slowdown"]
    return (
        policy,
        format_time(row["iteration_ns"]) + (" *" if row["steady"] is False else ""),
        _ABSENT if rate is None else f"{rate:.0f}" if rate >= 1000 else f"{rate:.4g}",
        _ABSENT if slowdown is None else f"{slowdown:.3f}x",
        format_bytes(_link_bytes(row)),
        format_bytes(row["device_peak_bytes"]),
    )
