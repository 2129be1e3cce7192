"""A timeline as tables: pandas frames, CSV and Parquet.

pandas and pyarrow load when first needed; CSV needs neither.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simgpu.errors import MissingExtraError
from simgpu.io.atomic import atomic_file
from simgpu.timeline.model import Column, MemoryCurve, SpanKind, Timeline
from simgpu.timeline.perfetto import write_perfetto

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["memory_frame", "to_frame", "write_csv", "write_memory_csv", "write_parquet", "write_perfetto"]

SPAN_COLUMNS = ("iteration", "gpu", "stream", "kind", "name", "start_ns", "end_ns", "bytes", "cause")
#: Stands for the host where a GPU's number is asked for.
HOST = -1
MEMORY_COLUMNS = ("gpu", "space", "time_ns", "live_bytes", "used_bytes")


def to_frame(timeline: Timeline) -> pd.DataFrame:
    """One row per span, in the timeline's order.

    Columns: iteration and gpu (from 0); stream; kind (``compute``, ``copy_out``, ``stall_event``, ...); name
    (kernel or block; for a stall, what it waited for); start_ns and end_ns (nanoseconds, half-open); bytes
    (moved over the link); cause (the stream waited for, else an empty text).

    >>> from simgpu.timeline.model import MemoryCurve, SpanKind, Timeline
    >>> import numpy as np
    >>> column = lambda *values: np.array(values, dtype=np.int64)
    >>> empty = MemoryCurve(column(), column(), column(), None)
    >>> timeline = Timeline(("compute",), ("conv1",), gpu=column(0), stream=column(0), name=column(0),
    ...     kind=column(SpanKind.COMPUTE), start_ns=column(0), end_ns=column(7), bytes=column(0), cause=column(-1),
    ...     iteration=column(0), device_memory=empty, host_memory=empty, iteration_ends_ns=(7,))
    >>> to_frame(timeline)[["stream", "kind", "name", "end_ns"]].to_dict("records")
    [{'stream': 'compute', 'kind': 'compute', 'name': 'conv1', 'end_ns': 7}]
    """
    import pandas as pd

    return pd.DataFrame(
        {
            "iteration": timeline.iteration,
            "gpu": timeline.gpu,
            "stream": _words(timeline.streams, timeline.stream),
            "kind": _words(tuple(kind.label for kind in SpanKind), timeline.kind),
            "name": _words(timeline.names, timeline.name),
            "start_ns": timeline.start_ns,
            "end_ns": timeline.end_ns,
            "bytes": timeline.bytes,
            "cause": _words(timeline.streams, timeline.cause),
        },
        columns=list(SPAN_COLUMNS),
    )


def memory_frame(timeline: Timeline) -> pd.DataFrame:
    """One row per memory sample: gpu (-1 for the host), space, time_ns, live_bytes, used_bytes (with padding).

    Each value holds until the next sample of its space; of several samples at one time the last one holds.
    """
    import pandas as pd

    curves = _curves(timeline)
    counts = [len(curve.time_ns) for *_, curve in curves]
    return pd.DataFrame(
        {
            "gpu": np.repeat(np.array([gpu for gpu, _, _ in curves], dtype=np.int64), counts),
            "space": np.repeat(np.array([space for _, space, _ in curves], dtype=object), counts),
            "time_ns": np.concatenate([curve.time_ns for *_, curve in curves]),
            "live_bytes": np.concatenate([curve.live for *_, curve in curves]),
            "used_bytes": np.concatenate([curve.used for *_, curve in curves]),
        },
        columns=list(MEMORY_COLUMNS),
    )


def write_csv(timeline: Timeline, path: str | Path) -> None:
    """The columns of `to_frame` as UTF-8 CSV with ``\\n`` line ends: the same bytes on every system.

    The file appears whole or not at all; `InputError` when it cannot be written.
    """
    _write_rows(path, SPAN_COLUMNS, _span_rows(timeline))


def write_memory_csv(timeline: Timeline, path: str | Path) -> None:
    """The columns of `memory_frame` as CSV, under the same promises as `write_csv`."""
    _write_rows(path, MEMORY_COLUMNS, _memory_rows(timeline))


def write_parquet(timeline: Timeline, path: str | Path) -> None:
    """The table of `to_frame` as Parquet; `MissingExtraError` where pyarrow is not installed.

    The file appears whole or not at all; `InputError` when it cannot be written.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("writing Parquet", "pyarrow", "parquet") from error
    # An open file rather than a path: then the system's own words reach the user when it refuses.
    with atomic_file(path) as part, part.open("wb") as file:
        to_frame(timeline).to_parquet(file, engine="pyarrow", index=False)


def _words(words: tuple[str, ...], index: Column) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    """The words at those positions; position -1 is the empty text, which therefore stands last."""
    return np.array([*words, ""], dtype=object)[index]


def _curves(timeline: Timeline) -> tuple[tuple[int, str, MemoryCurve], ...]:
    devices = ((gpu, "device", curve) for gpu, curve in enumerate(timeline.device_memories))
    return (*devices, (HOST, "host", timeline.host_memory))


def _span_rows(timeline: Timeline) -> Iterator[tuple[object, ...]]:
    for span in timeline:
        yield (
            span.iteration,
            span.gpu,
            span.stream,
            span.kind.label,
            span.name,
            span.start_ns,
            span.end_ns,
            span.bytes,
            span.cause,
        )


def _memory_rows(timeline: Timeline) -> Iterator[tuple[object, ...]]:
    for gpu, space, curve in _curves(timeline):
        for sample in zip(curve.time_ns.tolist(), curve.live.tolist(), curve.used.tolist(), strict=True):
            yield (gpu, space, *sample)


def _write_rows(path: str | Path, header: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> None:
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
