"""Compares a measured step with the last simulated iteration, stream by stream, and locates the first divergence.

Kernels are paired in order by operator, copies of each direction in order by size, whichever stream they ran on. Time
counts from the first start on each side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from simgpu.simulation.result import Result
from simgpu.units import format_bytes, format_time
from simgpu.validation.measured import STREAMS, MeasuredKind, MeasuredSpan, from_first_start
from simgpu.validation.timelines.matching import aligned, calls_of, same_work

if TYPE_CHECKING:
    import pandas as pd

#: Longest name in a sentence, characters.
_NAME_LENGTH = 48
#: Default tolerance of start times, as a fraction of the measured step.
TOLERANCE = 0.05

#: Streams by kinds of simulated spans (`Span.label`).
_STREAM_OF = {
    "compute": "compute",
    "recompute": "compute",
    "copy_d2h": STREAMS[MeasuredKind.COPY_D2H],
    "copy_h2d": STREAMS[MeasuredKind.COPY_H2D],
}


class Event(NamedTuple):
    """A kernel or copy, measured or simulated; ns from the first start.

    kind: ``kernel`` (measured), ``compute`` or ``recompute`` (simulated), ``copy_d2h``, ``copy_h2d``.
    op: the operator, empty for a copy.
    name: of the device's kernel or copy, or of the simulated kernel or block.
    """

    kind: str
    op: str
    name: str
    start_ns: int
    end_ns: int
    bytes: int = 0


class Agreement(StrEnum):
    """Whether a row's two events do the same work, whenever they start."""

    SAME = "same"
    DIFFERENT = "different"
    """another operator, or another number of bytes"""
    ONLY_MEASURED = "only_measured"
    ONLY_SIMULATED = "only_simulated"


class Row(NamedTuple):
    """The measured and the simulated event at one position of a stream; None for a missing one."""

    stream: str
    position: int
    agreement: Agreement
    measured: Event | None
    simulated: Event | None

    @property
    def offset_ns(self) -> int | None:
        """Measured start minus simulated start; None if one is missing."""
        return (
            None
            if self.measured is None or self.simulated is None
            else self.measured.start_ns - self.simulated.start_ns
        )

    @property
    def at_ns(self) -> int:
        """The earlier start."""
        return min(event.start_ns for event in (self.measured, self.simulated) if event is not None)


@dataclass(frozen=True)
class StreamComparison:
    """One stream, row by row. tolerance_ns: largest difference of start times that is not a divergence."""

    stream: str
    rows: tuple[Row, ...]
    tolerance_ns: int

    @cached_property
    def divergence(self) -> Row | None:
        """The first row whose work differs, or whose starts differ by more than the tolerance."""
        return next((row for row in self.rows if _differ(row) or self.is_late(row)), None)

    @cached_property
    def order_divergence(self) -> Row | None:
        """The first row whose work differs."""
        return next(filter(_differ, self.rows), None)

    def is_late(self, row: Row) -> bool:
        """Whether its starts differ by more than the tolerance."""
        return row.offset_ns is not None and abs(row.offset_ns) > self.tolerance_ns


@dataclass(frozen=True)
class TimelineComparison:
    """All streams. measured_ns, simulated_ns: time from the first start to the last end."""

    streams: Mapping[str, StreamComparison]
    measured_ns: int
    simulated_ns: int
    tolerance_ns: int

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all streams, stream by stream."""
        return tuple(row for stream in self.streams.values() for row in stream.rows)

    @cached_property
    def first_divergence(self) -> Row | None:
        """The earliest divergence of any stream; None if there is none."""
        rows = (stream.divergence for stream in self.streams.values())
        return min((row for row in rows if row is not None), key=lambda row: row.at_ns, default=None)

    @property
    def is_same_order(self) -> bool:
        """Whether every stream does the same work in the same order."""
        return all(stream.order_divergence is None for stream in self.streams.values())

    @cached_property
    def latest(self) -> Row | None:
        """The row whose starts differ most; None if no row has both events."""
        return max((row for row in self.rows if row.offset_ns is not None), key=_distance, default=None)

    def as_frame(self) -> pd.DataFrame:
        """The rows as a pandas table: stream, position, agreement, offset_ns, and the fields of both events."""
        import pandas as pd

        columns = ["stream", "position", "agreement", "offset_ns"]
        columns += [f"{side}_{field}" for side in ("measured", "simulated") for field in Event._fields]
        missing = (None,) * len(Event._fields)
        values = [
            (*row[:2], row.agreement.value, row.offset_ns, *(row.measured or missing), *(row.simulated or missing))
            for row in self.rows
        ]
        frame = pd.DataFrame(values, columns=columns)
        integers = [name for name in columns if name == "position" or name.endswith(("_ns", "_bytes"))]
        return frame.astype(dict.fromkeys(integers, "Int64"))


def compare_timelines(
    spans: Iterable[MeasuredSpan], result: Result, *, tolerance: float = TOLERANCE
) -> TimelineComparison:
    """Compares a measured step with the last iteration of a simulated run on one GPU.

    tolerance: largest difference of start times that is not a divergence, as a fraction of the measured step.
    """
    measured = _measured(spans)
    return compare_events(measured, _simulated(result), int(_length(measured) * tolerance))


def compare_events(
    measured: Mapping[str, Sequence[Event]], simulated: Mapping[str, Sequence[Event]], tolerance_ns: int
) -> TimelineComparison:
    """Pairs the measured events of each stream with the simulated ones by equal operator (`same_work`) and bytes.

    Events without an equal counterpart are paired by position between the equal ones.
    """
    streams = {
        stream: StreamComparison(stream, tuple(_rows(stream, measured.get(stream, ()), events)), tolerance_ns)
        for stream, events in simulated.items()
    }
    return TimelineComparison(streams, _length(measured), _length(simulated), tolerance_ns)


def _measured(spans: Iterable[MeasuredSpan]) -> dict[str, list[Event]]:
    """A step's events by stream, in order."""
    ordered = from_first_start(spans)
    events: dict[str, list[Event]] = {stream: [] for stream in STREAMS.values()}
    for call in calls_of(ordered):
        events["compute"].append(Event("kernel", call.op, call.name, call.start_ns, call.end_ns))
    for span in ordered:
        if span.kind is not MeasuredKind.KERNEL:
            event = Event(span.kind.value, "", span.name, span.start_ns, span.end_ns, span.bytes)
            events[STREAMS[span.kind]].append(event)
    return events


def _simulated(result: Result) -> dict[str, list[Event]]:
    """The last iteration's events by stream, in order."""
    graph, last = result.graph, len(result.timeline.iteration_ends_ns) - 1
    spans = [span for span in result.timeline if span.iteration == last and span.label in _STREAM_OF]
    begin = min((span.start_ns for span in spans), default=0)
    events: dict[str, list[Event]] = {stream: [] for stream in STREAMS.values()}
    for span in spans:
        op = graph.kernels[graph.kernel(span.name)].op if _STREAM_OF[span.label] == "compute" else ""
        start, end = span.start_ns - begin, span.end_ns - begin
        events[_STREAM_OF[span.label]].append(Event(span.label, op, span.name, start, end, span.bytes))
    return events


def _length(side: Mapping[str, Sequence[Event]]) -> int:
    return max((event.end_ns for events in side.values() for event in events), default=0)


def _rows(stream: str, measured: Sequence[Event], simulated: Sequence[Event]) -> Iterator[Row]:
    """Rows of equal events, and between them rows of the other events, paired by position."""
    pairs = aligned([_work(event) for event in measured], [_work(event) for event in simulated])
    position, i, j = 0, 0, 0
    for left_end, right_end in (*pairs, (len(measured), len(simulated))):
        for left, right in zip_longest(measured[i:left_end], simulated[j:right_end]):
            yield Row(stream, position, _agreement(left, right), left, right)
            position += 1
        if left_end < len(measured):
            yield Row(stream, position, Agreement.SAME, measured[left_end], simulated[right_end])
            position += 1
        i, j = left_end + 1, right_end + 1


def _work(event: Event) -> tuple[str, int]:
    return same_work(event.op), event.bytes


def _agreement(measured: Event | None, simulated: Event | None) -> Agreement:
    if measured is None:
        return Agreement.ONLY_SIMULATED
    return Agreement.ONLY_MEASURED if simulated is None else Agreement.DIFFERENT


def _differ(row: Row) -> bool:
    return row.agreement is not Agreement.SAME


def _distance(row: Row) -> int:
    return abs(row.offset_ns or 0)


def divergence_text(comparison: TimelineComparison) -> str:
    """The first divergence of a measured step and a simulated iteration, in one or two sentences."""
    row = comparison.first_divergence
    if row is None:
        latest = comparison.latest
        largest = f"; starts differ by at most {format_time(abs(latest.offset_ns or 0))}" if latest else ""
        tolerance = format_time(comparison.tolerance_ns)
        return f"No divergence: the same order on every stream, starts within {tolerance}{largest}."
    text = f"First divergence at {format_time(row.at_ns)}, {row.stream}, event {row.position}: {_row_text(row)}."
    if row.agreement is not Agreement.SAME:
        return text
    if comparison.is_same_order:
        return f"{text} The order is the same on every stream."
    rows = [row for stream in comparison.streams.values() if (row := stream.order_divergence) is not None]
    first = min(rows, key=lambda row: row.at_ns)
    return f"{text} The order first differs at {format_time(first.at_ns)}, {first.stream}, event {first.position}."


def _row_text(row: Row) -> str:
    measured, simulated, offset = row.measured, row.simulated, row.offset_ns
    if measured is None or simulated is None:
        side, event = ("simulated", simulated) if measured is None else ("measured", measured)
        assert event is not None
        return f"only {side}: {_described(event)}"
    if row.agreement is Agreement.DIFFERENT:
        return f"measured {_described(measured)}, simulated {_described(simulated)}"
    assert offset is not None
    when = f"{format_time(abs(offset))} {'later' if offset > 0 else 'earlier'}"
    return f"{_described(simulated)} starts {when} than simulated"


def _described(event: Event) -> str:
    """An operator with the simulated kernel's name, or a copy with its size."""
    name = event.name if len(event.name) <= _NAME_LENGTH else f"{event.name[: _NAME_LENGTH - 2]}.."
    if event.op:
        return event.op if event.kind == "kernel" else f"{event.op} ({event.kind} {name})"
    return f"{event.kind} {name} of {format_bytes(event.bytes)}"
