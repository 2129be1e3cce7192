"""The rows of a sweep as one table: columns, CSV, Parquet, a data frame, and the first rows as texts."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from simgpu.experiments.sweep.point import OK, OUT_OF_MEMORY
from simgpu.io.atomic import whole_file
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    import pandas as pd

    from simgpu.experiments.scenarios.sweep import Sweep


Kind = Literal["int", "float", "bool", "text"]
Kept = Iterable[tuple[int, list[dict[str, Any]]]]


class Column(NamedTuple):
    """A column by its name, and what its values are; any of them may be missing."""

    name: str
    kind: Kind


#: What a point runs, in base units.
PARAMETERS = (
    Column("trace_name", "text"),
    Column("model", "text"),
    Column("batch", "int"),
    Column("node_name", "text"),
    Column("d2h_bytes_per_s", "int"),
    Column("h2d_bytes_per_s", "int"),
    Column("memory_bytes", "int"),
    Column("budget_bytes", "int"),
    Column("iterations", "int"),
    Column("epoch", "int"),
    Column("seed", "int"),
    Column("pool", "text"),
    Column("alignment_bytes", "int"),
    Column("gpus", "int"),
    Column("exchange", "text"),
    Column("cores", "int"),
)
OUTCOME = tuple(Column(name, "text") for name in ("policy", "policy_name", "parameters", "outcome", "message"))
#: Where the numbers come from.
PROVENANCE = tuple(Column(name, "text") for name in ("origin", "device", "date", "tool"))
_FIXED = frozenset(column.name for column in (*PARAMETERS, *OUTCOME, *PROVENANCE))
#: Rows that are written at once.
_BATCH = 1024
#: Below it a whole number fits a column of them.
_BEYOND = 2**63


def columns_of(sweep: Sweep, kept: Kept) -> tuple[Column, ...]:
    """All columns: the point's number, what varies, parameters, what became of it, its numbers, where they come from.

    What varies is called by its path and is as written, but for ``iterations``, ``epoch``, ``seed`` and ``pool``, which
    are parameters too and stand there once. Numbers are in the order in which rows first have them. Whole numbers of
    which one needs more than 64 bits, such as a seed, are text.
    """
    found: dict[str, Kind | None] = {path: _axis_kind(sweep, path) for path in sweep.paths}
    numbers: dict[str, None] = {}
    for _, rows in kept:
        for row in rows:
            for name, value in row.items():
                found[name] = _either(found.get(name), _kind(value))
                if name not in _FIXED:
                    numbers[name] = None
    axes = [Column(path, _axis_kind(sweep, path)) for path in dict.fromkeys(sweep.paths) if path not in _FIXED]
    parameters = [column if found.get(column.name) != "text" else Column(column.name, "text") for column in PARAMETERS]
    measured = [Column(name, found[name] or "float") for name in numbers]
    return (Column("point", "int"), *axes, *parameters, *OUTCOME, *measured, *PROVENANCE)


def _kind(value: object) -> Kind | None:
    match value:
        case None:
            return None
        case bool():
            return "bool"
        case int():
            return "int" if -_BEYOND <= value < _BEYOND else "text"
        case float():
            return "float"
    return "text"


def _either(one: Kind | None, other: Kind | None) -> Kind | None:
    """The kind of a column that has both."""
    if one is None or other is None or one == other:
        return one or other
    return "float" if {one, other} == {"int", "float"} else "text"


def _axis_kind(sweep: Sweep, path: str) -> Kind:
    found: Kind | None = None
    for axis in sweep.axes:
        for step in axis.steps:
            found = _either(found, _kind(step.get(path)))
    return found or "text"


def table_rows(sweep: Sweep, kept: Kept) -> Iterator[dict[str, Any]]:
    """The rows by column in the order of the points, with the values of the axes; what is missing is left out."""
    for point, rows in kept:
        values = sweep.values(point)
        for row in rows:
            yield {"point": point, **values, **row}


def _cell(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if kind == "float":
        return float(value)
    return value if kind != "text" or isinstance(value, str) else json.dumps(value, default=str)


def write_csv(columns: tuple[Column, ...], rows: Iterable[dict[str, Any]], path: Path) -> None:
    """One line a row under a line of names; what is missing is empty. The file appears whole or not at all."""
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(column.name for column in columns)
        for row in rows:
            writer.writerow(_cell(row.get(name), kind) for name, kind in columns)


def write_parquet(columns: tuple[Column, ...], rows: Iterable[dict[str, Any]], path: Path) -> None:
    """The same table as Parquet, in which what is missing is null. Needs pyarrow."""
    import pyarrow
    import pyarrow.parquet

    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_(), "text": pyarrow.string()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns])
    remaining = iter(rows)
    with whole_file(path) as part, part.open("wb") as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while batch := list(islice(remaining, _BATCH)):
            values = [[_cell(row.get(name), kind) for row in batch] for name, kind in columns]
            arrays = [pyarrow.array(column, field.type) for column, field in zip(values, schema, strict=True)]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def frame_of(columns: tuple[Column, ...], rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The table in pandas; a column of whole numbers or of truths some of which are missing is of a nullable type."""
    import pandas as pd

    found = list(rows)
    data = {}
    for name, kind in columns:
        values = [_cell(row.get(name), kind) for row in found]
        whole = None not in values
        types = {"int": "int64" if whole else "Int64", "bool": "bool" if whole else "boolean", "float": "float64"}
        data[name] = pd.Series(values, dtype=types.get(kind, "object"))
    return pd.DataFrame(data)


#: So many rows are shown; a table of more says little.
SHOWN = 40
HEADINGS = ("point", "policy", "time", "samples/s", "slowdown", "moved", "peak")
_ABSENT = "-"


def shown_rows(sweep: Sweep, rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The first rows under `HEADINGS`; in place of a time, what became of a row that has none."""
    return [(point_text(sweep, row["point"]), *_cells(row)) for row in islice(rows, SHOWN)]


def point_text(sweep: Sweep, point: int) -> str:
    """What a point gives, in the order of the axes.

    >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
    >>> point_text(load_sweep("memory-sweep"), 0)
    '16 MiB, 1 GB/s, 1 GB/s'
    """
    values = sweep.values(point)
    texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in values.values()]
    return ", ".join(texts).replace('"', "")


def failures(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Why rows have no result, other than for lack of memory: what is told, and of how many rows."""
    found: dict[str, int] = {}
    for row in rows:
        if row["outcome"] not in (OK, OUT_OF_MEMORY):
            told = f"{row['outcome']}: {row['message']}"
            found[told] = found.get(told, 0) + 1
    return found


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    policy = str(row.get("policy", _ABSENT))
    if row["outcome"] != OK:
        return policy, row["outcome"], *[_ABSENT] * (len(HEADINGS) - 3)
    rate, slowdown = row["samples_per_s"], row["slowdown"]
    return (
        policy,
        format_time(row["iteration_ns"]) + (" *" if row["steady"] is False else ""),
        _ABSENT if rate is None else f"{rate:.0f}" if rate >= 1000 else f"{rate:.4g}",
        _ABSENT if slowdown is None else f"{slowdown:.3f}x",
        format_bytes(row["bytes_out"] + row["bytes_in"]),
        format_bytes(row["device_peak_bytes"]),
    )
