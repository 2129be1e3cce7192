"""Read a timeline from its tables: the inverse of `simgpu.timeline.export`."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simgpu.errors import InputError, MissingExtraError, Problem, did_you_mean
from simgpu.hardware.spec import DEVICE, HOST, is_memory
from simgpu.io.input_files import TABLE_LIMIT, open_input, read_text, too_large
from simgpu.timeline.model import (
    MEMORY_COLUMNS,
    RESERVED_COLUMN,
    SHARED,
    SPAN_COLUMNS,
    Column,
    MemoryCurve,
    SpanKind,
    Timeline,
    kind_of,
)
from simgpu.timeline.streams import OWN_ENGINES, track_order

#: Largest integer that a timeline can hold.
_LARGEST = 2**63 - 1
_TEXTS = ("stream", "kind", "name", "cause", "memory")
_USUAL_KINDS = [
    *(kind.label() for kind in SpanKind if kind not in (SpanKind.COPY, SpanKind.STALL_MEMORY)),
    *(SpanKind.COPY.label(engine) for engine in OWN_ENGINES),
    *(SpanKind.STALL_MEMORY.label(memory) for memory in (DEVICE, HOST)),
]
_AGAIN = "write it again"
_PARQUET = "a Parquet file that simgpu wrote"

_Table = dict[str, Sequence[Any]]


def read_timeline(
    spans: str | Path,
    memory: str | Path,
    *,
    iteration_ends_ns: Sequence[int],
    capacities: Mapping[str, int | None] | None = None,
) -> Timeline:
    """The timeline that `write_csv` or `write_parquet` wrote to `spans` and `write_memory_csv` to `memory`.

    The tables contain neither the ends of iterations (ns) nor the capacities of memories (bytes by name; None, or
    absent, for unlimited), so both are given. Only streams and names that occur in a row are included; streams are in
    `track_order`.

    Raises `InputError` with every damaged row (the header is row 1), `MissingExtraError` for Parquet without pyarrow.

    >>> import tempfile
    >>> from simgpu.timeline.export import write_csv, write_memory_csv
    >>> column = lambda *values: np.array(values, dtype=np.int64)
    >>> curve = MemoryCurve(column(0, 5), column(8, 0), column(8, 0), None)
    >>> timeline = Timeline(("compute",), ("conv1",), gpu=column(0), stream=column(0), name=column(0),
    ...     kind=column(SpanKind.COMPUTE), start_ns=column(0), end_ns=column(7), bytes=column(0), cause=column(-1),
    ...     iteration=column(0), resource=column(-1), resources=(), memories=(curve,), iteration_ends_ns=(7,))
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_csv(timeline, folder / "timeline.csv")
    >>> write_memory_csv(timeline, folder / "memory.csv")
    >>> again = read_timeline(folder / "timeline.csv", folder / "memory.csv", iteration_ends_ns=[7])
    >>> list(again) == list(timeline), again.memory("device").live.tolist()
    (True, [8, 0])
    """
    problems: list[Problem] = []
    rows = _span_rows(Path(spans), len(iteration_ends_ns), problems)
    samples = _read_csv(Path(memory), MEMORY_COLUMNS, problems, (RESERVED_COLUMN,))
    _check_samples(str(memory), samples, problems)
    known = {*rows["gpu"], *samples["gpu"]}
    for path, table in ((spans, rows), (memory, samples)):
        _check_gpus(str(path), table["gpu"], known, problems)
    if problems:
        raise InputError(problems)
    streams = tuple(sorted({*rows["stream"], *rows["cause"]} - {""}, key=track_order))
    names = tuple(dict.fromkeys(name for name in rows["name"] if name))
    gpus = 1 + max([0, *rows["gpu"], *samples["gpu"]])
    kinds = [kind_of(kind) or (SpanKind.COMPUTE, "") for kind in rows["kind"]]
    resources = tuple(dict.fromkeys(resource for _, resource in kinds if resource))
    shared = dict.fromkeys([HOST, *samples["memory"]])
    whose = [*((DEVICE, gpu) for gpu in range(gpus)), *((name, SHARED) for name in shared if name != DEVICE)]
    return Timeline(
        streams=streams,
        names=names,
        gpu=_column(rows["gpu"]),
        stream=_positions(rows["stream"], streams),
        kind=_column(kind for kind, _ in kinds),
        name=_positions(rows["name"], names),
        start_ns=_column(rows["start_ns"]),
        end_ns=_column(rows["end_ns"]),
        bytes=_column(rows["bytes"]),
        cause=_positions(rows["cause"], streams),
        iteration=_column(rows["iteration"]),
        resource=_positions([resource for _, resource in kinds], resources),
        resources=resources,
        memories=tuple(_curve(samples, name, gpu, (capacities or {}).get(name)) for name, gpu in whose),
        iteration_ends_ns=tuple(iteration_ends_ns),
    )


def _span_rows(path: Path, iterations: int, problems: list[Problem]) -> _Table:
    before = len(problems)
    parquet = path.suffix == ".parquet"
    rows = _read_parquet(path, problems) if parquet else _read_csv(path, SPAN_COLUMNS, problems)
    if len(problems) > before:
        return rows
    report = _RowProblems(str(path), problems)
    known_streams = {stream for stream in {*rows["stream"], *rows["cause"]} - {""} if _is_stream(stream)}
    known_kinds = {kind for kind in {*rows["kind"]} if kind_of(kind)}
    for row, kind in enumerate(rows["kind"]):
        if kind not in known_kinds:
            report(row, "kind", f"'{kind}' is not a kind of span", did_you_mean(kind, _USUAL_KINDS))
    for name in ("stream", "cause"):
        for row, stream in enumerate(rows[name]):
            if stream not in known_streams and (stream or name == "stream"):
                report(row, name, f"'{stream}' is not a stream name", "one is like 'compute', 'd2h' or 'gpu1.h2d'")
    for row, iteration in enumerate(rows["iteration"]):
        if not 0 <= iteration < iterations:
            report(row, "iteration", f"'{iteration}' is not one of the {iterations} iterations that ran", _AGAIN)
    last = 0
    for row, (start, end) in enumerate(zip(rows["start_ns"], rows["end_ns"], strict=True)):
        if end < start:
            report(row, "end_ns", f"'{end}' is before the span starts, at {start}", _AGAIN)
        if start < last:
            report(row, "start_ns", f"'{start}' is before the span in the row above starts, at {last}", _AGAIN)
        last = start
    return rows


def _check_samples(path: str, samples: _Table, problems: list[Problem]) -> None:
    report = _RowProblems(path, problems)
    for row, (gpu, memory) in enumerate(zip(samples["gpu"], samples["memory"], strict=True)):
        if not is_memory(memory):
            report(row, "memory", f"'{memory}' is not the name of a memory", did_you_mean(memory, (DEVICE, HOST)))
        elif (gpu == SHARED) != (memory != DEVICE):
            remedy = f"GPUs count from 0, and memories that they share have {SHARED}"
            report(row, "gpu", f"'{gpu}' does not go with {memory} memory", remedy)
    last: dict[tuple[int, str], int] = {}
    for row, (*whose, time) in enumerate(zip(samples["gpu"], samples["memory"], samples["time_ns"], strict=True)):
        gpu, memory = whose
        before = last.get((gpu, memory), 0)
        if time < before:
            report(row, "time_ns", f"'{time}' is before the sample of this memory above, at {before}", _AGAIN)
        last[gpu, memory] = time
    for row, reserved in enumerate(samples.get(RESERVED_COLUMN, ())):
        used = samples["used_bytes"][row]
        if reserved is None and samples["memory"][row] == DEVICE:
            report(row, RESERVED_COLUMN, "is empty for device memory", _AGAIN)
        elif reserved is not None and reserved < used:
            report(row, RESERVED_COLUMN, f"'{reserved}' is less than the {used} bytes in use", _AGAIN)


def _check_gpus(path: str, gpus: Iterable[int], known: Container[int], problems: list[Problem]) -> None:
    """Report GPU numbers above the first number that no table has."""
    report = _RowProblems(path, problems)
    missing = next(gpu for gpu in itertools.count() if gpu not in known)
    for row, gpu in enumerate(gpus):
        if gpu > missing:
            report(row, "gpu", f"'{gpu}' is not a GPU of this run: no row has GPU {missing}", _AGAIN)


class _RowProblems:
    """Adds problems of rows of one file, counted as in the file: the header is row 1."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        self.path, self.problems = path, problems

    def __call__(self, row: int, column: str, what: str, remedy: str) -> None:
        place = f"row {row + 2}, column {column}" if column else f"row {row + 2}"
        self.problems.append(Problem(self.path, place, what, remedy))


def _read_csv(path: Path, header: tuple[str, ...], problems: list[Problem], optional: tuple[str, ...] = ()) -> _Table:
    """Columns by name; empty ones where the file cannot be read. optional: columns at the end that may be missing, and
    whose cells may be empty."""
    nothing: _Table = dict.fromkeys(header, ())
    try:
        text = read_text(path, "a CSV file that simgpu wrote", if_empty=_AGAIN)
    except InputError as error:
        problems += error.problems
        return nothing
    report = _RowProblems(str(path), problems)
    if not text.endswith("\n"):
        what = "the last line does not end in a line break: the file seems cut off"
        report(text.count("\n") - 1, "", what, _AGAIN)
        return nothing
    try:
        first, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except csv.Error as error:
        problems.append(Problem(str(path), "", f"not readable as CSV ({error})", _AGAIN))
        return nothing
    if tuple(first) == (*header, *optional):
        header = tuple(first)
    if tuple(first) != header:
        report(-1, "", f"the columns are {','.join(first)[:80]!r}", f"they should be {','.join(header)}")
        return nothing
    short = [(row, len(cells)) for row, cells in enumerate(rows) if len(cells) != len(header)]
    for row, count in short:
        report(row, "", f"{count} fields where the header has {len(header)}", _AGAIN)
    if short:
        return nothing
    columns = zip(*rows, strict=True) if rows else ([] for _ in header)
    return {name: _cells(name, cells, report) for name, cells in zip(header, columns, strict=True)}


def _cells(name: str, cells: Sequence[str], report: _RowProblems) -> Sequence[Any]:
    """Texts as they are, integers as int; 0 in place of any other text."""
    if name in _TEXTS:
        return cells
    values: list[int | None] = []
    for row, text in enumerate(cells):
        if not text and name == RESERVED_COLUMN:
            values.append(None)
            continue
        try:
            value = int(text)
        except ValueError:
            report(row, name, f"'{text[:40]}' is not a whole number", _AGAIN)
            value = 0
        values.append(_within(name, value, row, report))
    return values


def _read_parquet(path: Path, problems: list[Problem]) -> _Table:
    nothing: _Table = dict.fromkeys(SPAN_COLUMNS, ())
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("reading Parquet", "pyarrow", "parquet") from error
    try:
        with open_input(path, _PARQUET, TABLE_LIMIT) as stream:
            file = pyarrow.parquet.ParquetFile(stream)
            columns = tuple(file.schema_arrow.names)
            if columns != SPAN_COLUMNS:
                what = f"the columns are {','.join(columns)[:80]!r}"
                raise InputError.single(path, "", what, f"they should be {','.join(SPAN_COLUMNS)}")
            groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
            if sum(group.total_byte_size for group in groups) > TABLE_LIMIT:
                raise too_large(path, _PARQUET, None, TABLE_LIMIT)
            table = file.read()
    except InputError as error:
        problems += error.problems
        return nothing
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        problems.append(Problem(str(path), "", f"not readable as Parquet ({error})", _AGAIN))
        return nothing
    report = _RowProblems(str(path), problems)
    return {name: _parquet_values(name, table.column(name), report) for name in SPAN_COLUMNS}


def _parquet_values(name: str, column: Any, report: _RowProblems) -> Sequence[Any]:
    """The values of a Parquet column; empty if their type is not that of `write_parquet`."""
    import pyarrow.types

    kinds = pyarrow.types
    is_text = kinds.is_string(column.type) or kinds.is_large_string(column.type)
    if len(column) and (column.null_count or not (is_text if name in _TEXTS else kinds.is_integer(column.type))):
        report(-1, name, f"contains blanks, or is of type {column.type}", _AGAIN)
        return ()
    values: list[Any] = column.to_pylist()
    return values if name in _TEXTS else [_within(name, value, row, report) for row, value in enumerate(values)]


def _within(name: str, value: int, row: int, report: _RowProblems) -> int:
    """The value if it is in the range of a timeline, else 0."""
    minimum = SHARED if name == "gpu" else 0
    if minimum <= value <= _LARGEST:
        return value
    report(row, name, f"'{str(value)[:40]}' is not between {minimum} and {_LARGEST}", _AGAIN)
    return 0


def _is_stream(name: str) -> bool:
    try:
        track_order(name)
    except ValueError:
        return False
    return True


def _column(values: Iterable[int]) -> Column:
    return np.array(list(values), dtype=np.int64)


def _positions(names: Sequence[str], known: Sequence[str]) -> Column:
    """The position of each name among the known ones, -1 for the empty name."""
    place: dict[str, int] = {name: position for position, name in enumerate(known)}
    find: Callable[[str], int] = place.__getitem__
    return _column(find(name) if name else -1 for name in names)


def _curve(samples: _Table, memory: str, gpu: int, capacity: int | None) -> MemoryCurve:
    named = np.array(samples["memory"], dtype=object) == memory
    mine = np.flatnonzero(named & (_column(samples["gpu"]) == gpu))
    time, live, used = (_column(samples[name])[mine] for name in ("time_ns", "live_bytes", "used_bytes"))
    reserved = None
    if RESERVED_COLUMN in samples and memory == DEVICE:
        reserved = _column(samples[RESERVED_COLUMN][at] for at in mine.tolist())
    return MemoryCurve(time, live, used, capacity, memory, gpu, reserved)
