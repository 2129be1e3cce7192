"""The table of what a real device did in one step, on disk: a gzipped CSV file."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from sys import intern
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.io.input_files import open_input, read_gzip_text
from simgpu.trace.columns import CellError, Column, Table, whole_number
from simgpu.trace.tables import ReadTable, table_of, write_table
from simgpu.validation.measured import MeasuredKind, MeasuredSpan
from simgpu.validation.timelines.spans import STREAMS

_KINDS = {str(kind): kind for kind in MeasuredKind}


def _kind(text: str) -> MeasuredKind:
    if text not in _KINDS:
        raise CellError(f"'{text}' is not a kind", did_you_mean(text, _KINDS))
    return _KINDS[text]


def _number(name: str, unit: str, **blank: Any) -> Column:
    stand_in = blank.get("blank", 0)
    write = (lambda value: "" if value == stand_in else str(value)) if blank else str
    return Column(name, partial(whole_number, unit=unit), write, stand_in=stand_in, **blank)


SPANS: Table[MeasuredSpan] = Table(
    "spans",
    MeasuredSpan,
    (
        Column("stream", intern, str, stand_in=""),
        Column("kind", _kind, str, stand_in=MeasuredKind.KERNEL),
        Column("name", intern, str, blank="", stand_in=""),
        Column("op", intern, str, blank="", stand_in=""),
        _number("call", "calls", blank=-1),
        _number("start_ns", "nanoseconds"),
        _number("end_ns", "nanoseconds"),
        _number("bytes", "bytes", blank=0),
    ),
)


def write_spans(path: Path, spans: Sequence[MeasuredSpan]) -> None:
    """The spans as a gzipped CSV file; the same bytes for the same spans."""
    plain = path.with_suffix(".part")
    write_table(plain, SPANS, spans)
    with open_input(plain) as file:
        path.write_bytes(gzip.compress(file.read(), mtime=0))
    plain.unlink()


def read_spans(path: Path) -> ReadTable[MeasuredSpan]:
    """The spans of a file, with every problem found in it; never raises for what a file holds."""
    try:
        text = read_gzip_text(path, "a gzipped CSV text file", "record the case again")
    except InputError as error:
        return ReadTable(problems=list(error.problems), sound=False)
    found = table_of(text, path, SPANS)
    if not found.problems:
        rows = zip(found.rows, found.lines, strict=True)
        found.problems += [Problem(str(path), f"row {line}", what) for span, line in rows for what in _wrong(span)]
    return found


def _wrong(span: MeasuredSpan) -> list[str]:
    """What cannot be of a span."""
    is_copy = span.kind is not MeasuredKind.KERNEL
    checks = (
        (span.end_ns < span.start_ns, f"ends at {span.end_ns} ns, before it starts at {span.start_ns} ns"),
        (span.stream != STREAMS[span.kind], f"a {span.kind} is of stream {STREAMS[span.kind]}, not '{span.stream}'"),
        (is_copy and (span.op or span.call >= 0), "a copy belongs to no call of an operator"),
        (not is_copy and span.bytes > 0, "a kernel copies no bytes"),
    )
    return [what for wrong, what in checks if wrong]
