"""A timeline as a small file, and back: gzipped CSV in which every row tells its time from the row before.

    iteration, gpu, stream, kind, name, bytes, cause   as in a run's timeline.csv
    after_ns                                           start, from the start of the row before (of the first: from 0)
    takes_ns                                           from start to end

Iterations that repeat are then the same text, which takes a third of the room, and where one event takes longer, two
files differ in the few rows that it touches and not in all that follow.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable
from pathlib import Path

from simgpu.errors import InputError
from simgpu.io.input_files import read_gzip_text
from simgpu.timeline.model import Span, SpanKind
from simgpu.timeline.streams import StreamId

COLUMNS = ("iteration", "gpu", "stream", "kind", "name", "after_ns", "takes_ns", "bytes", "cause")
SUFFIX = ".csv.gz"
_KINDS = {kind.label: kind for kind in SpanKind}


def write_events(events: Iterable[Span], path: Path) -> None:
    """Writes spans, without the time of writing or the file's name, so that the same spans give the same bytes."""
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        before = 0
        for span in events:
            after, takes = span.start_ns - before, span.end_ns - span.start_ns
            where = (span.iteration, span.gpu, span.stream, span.kind.label, span.name)
            writer.writerow((*where, after, takes, span.bytes, span.cause))
            before = span.start_ns


def read_events(path: Path) -> tuple[Span, ...]:
    """The spans in a file; `InputError` names the row that is none, or says that the file is damaged.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "none.csv.gz"
    >>> spans = (Span(0, "compute", SpanKind.COMPUTE, "conv1", 0, 7, 0, "", 0),)
    >>> write_events(spans, path)
    >>> read_events(path) == spans
    True
    """
    remedy = "get it back from version control, or store it anew"
    text = read_gzip_text(path, "a timeline that simgpu stored", remedy)
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError.single(path, "", f"not readable as CSV ({error})", remedy) from None
    if not rows or tuple(rows[0]) != COLUMNS:
        what = "has not the columns of a stored timeline"
        raise InputError.single(path, "row 1", what, f"{','.join(COLUMNS)} are needed; {remedy}")
    spans: list[Span] = []
    start = 0
    for number, row in enumerate(rows[1:], start=2):
        try:
            iteration, gpu, stream, kind, name, after, takes, size, cause = row
            start += int(after)
            end = start + int(takes)
            spans.append(Span(int(gpu), stream, _KINDS[kind], name, start, end, int(size), cause, int(iteration)))
            StreamId.of(stream)
        except (ValueError, KeyError) as error:
            what = f"{','.join(row)[:80]!r} is no event of a timeline ({error})"
            raise InputError.single(path, f"row {number}", what, remedy) from None
    return tuple(spans)
