"""Write a timeline as CSV or Parquet. pandas and pyarrow load when first needed; CSV needs neither."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from simgpu.errors import MissingExtraError
from simgpu.io.atomic import atomic_file
from simgpu.timeline.model import MEMORY_COLUMNS, RESERVED_COLUMN, SPAN_COLUMNS, Timeline


def write_csv(timeline: Timeline, path: str | Path) -> None:
    """The columns of `Timeline.frame` as UTF-8 CSV with ``\\n`` line ends: the same bytes on every system.

    The write is atomic; `InputError` when it cannot be written.
    """
    _write_rows(path, SPAN_COLUMNS, _span_rows(timeline))


def write_memory_csv(timeline: Timeline, path: str | Path) -> None:
    """The columns of `Timeline.memory_frame` as CSV, with the same guarantees as `write_csv`."""
    more = (RESERVED_COLUMN,) if timeline.has_reserved else ()
    _write_rows(path, (*MEMORY_COLUMNS, *more), _memory_rows(timeline))


def write_parquet(timeline: Timeline, path: str | Path) -> None:
    """The table of `Timeline.frame` as Parquet; `MissingExtraError` where pyarrow is not installed.

    The write is atomic; `InputError` when it cannot be written.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("writing Parquet", "pyarrow", "parquet") from error
    # An open file rather than a path, so that the system's own error message reaches the user.
    with atomic_file(path) as part, part.open("wb") as file:
        timeline.frame().to_parquet(file, engine="pyarrow", index=False)


def _span_rows(timeline: Timeline) -> Iterator[tuple[object, ...]]:
    labels, streams, names = timeline.labels, timeline.streams, timeline.names
    columns = (getattr(timeline, name).tolist() for name in (*SPAN_COLUMNS, "resource"))
    for iteration, gpu, stream, kind, name, start, end, size, cause, resource in zip(*columns, strict=True):
        named = names[name] if name >= 0 else ""
        waited_for = streams[cause] if cause >= 0 else ""
        yield iteration, gpu, streams[stream], labels[kind, resource], named, start, end, size, waited_for


def _memory_rows(timeline: Timeline) -> Iterator[tuple[object, ...]]:
    for curve in timeline.memories:
        columns: list[list[object]] = [curve.time_ns.tolist(), curve.live.tolist(), curve.used.tolist()]
        if timeline.has_reserved:
            columns.append([""] * len(curve.time_ns) if curve.reserved is None else curve.reserved.tolist())
        for sample in zip(*columns, strict=True):
            yield (curve.gpu, curve.memory, *sample)


def _write_rows(path: str | Path, header: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> None:
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
