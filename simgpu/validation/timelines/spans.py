"""Measured spans as all ways to measure make them: copies on the stream of their way, time from the first start."""

from __future__ import annotations

from collections.abc import Iterable

from simgpu.timeline.streams import track_order
from simgpu.validation.measured import MeasuredKind, MeasuredSpan

#: The stream of each kind, whichever stream of the device it was: of a copy, by its way.
STREAMS = {MeasuredKind.KERNEL: "compute", MeasuredKind.COPY_D2H: "d2h", MeasuredKind.COPY_H2D: "h2d"}


def copy_span(kind: MeasuredKind, name: str, start_ns: int, end_ns: int, size: int) -> MeasuredSpan:
    """A copy over the link.

    >>> copy_span(MeasuredKind.COPY_D2H, "copy", 5, 9, 64).stream
    'd2h'
    """
    return MeasuredSpan(STREAMS[kind], kind, name, "", -1, start_ns, end_ns, size)


def from_first_start(spans: Iterable[MeasuredSpan]) -> tuple[MeasuredSpan, ...]:
    """Spans by their start, then by stream, with time from the first one's start.

    >>> [span.start_ns for span in from_first_start([copy_span(MeasuredKind.COPY_H2D, "copy", 5, 9, 64)])]
    [0]
    """
    ordered = sorted(spans, key=lambda span: (span.start_ns, track_order(span.stream), span.end_ns))
    begin = ordered[0].start_ns if ordered else 0
    return tuple(span._replace(start_ns=span.start_ns - begin, end_ns=span.end_ns - begin) for span in ordered)
