"""A measured step beside a simulated iteration, stream by stream, and where they part.

The simulated iteration is the last one. Compute is put side by side by operator, in order, copies of each way by
their bytes, in order, whichever stream they ran on. Time counts from the first start of either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from simgpu.simulation.result import Result
from simgpu.timeline.model import SpanKind
from simgpu.validation.measured import MeasuredKind, MeasuredSpan
from simgpu.validation.timelines.alignment import aligned
from simgpu.validation.timelines.calls import calls_of, same_work
from simgpu.validation.timelines.spans import STREAMS, from_first_start

if TYPE_CHECKING:
    import pandas as pd

#: Starts may differ by so much of the measured step before they count as parted, unless somebody says otherwise.
TOLERANCE = 0.05

_SIMULATED = {
    SpanKind.COMPUTE: "compute",
    SpanKind.RECOMPUTE: "compute",
    SpanKind.COPY_D2H: STREAMS[MeasuredKind.COPY_D2H],
    SpanKind.COPY_H2D: STREAMS[MeasuredKind.COPY_H2D],
}


class Event(NamedTuple):
    """A call of an operator or a copy, on either side; ns from the first start.

    kind: as its side calls it (``kernel`` or ``compute``, ``recompute``, ``copy_d2h``, ``copy_h2d``). op: the operator,
    empty for a copy. name: of the device's kernel or copy, or of the simulated kernel or block.
    """

    kind: str
    op: str
    name: str
    start_ns: int
    end_ns: int
    bytes: int = 0


class Agreement(StrEnum):
    """Whether two events are the same but for their time."""

    SAME = "same"
    OTHER = "other"
    """another operator, or another number of bytes"""
    ONLY_REAL = "only_real"
    ONLY_SIMULATED = "only_simulated"


class Row(NamedTuple):
    """What stands side by side at one place of a stream; None where a side has nothing there."""

    stream: str
    position: int
    agreement: Agreement
    real: Event | None
    simulated: Event | None

    @property
    def offset_ns(self) -> int | None:
        """How much later the real event starts; None where one is missing."""
        return None if self.real is None or self.simulated is None else self.real.start_ns - self.simulated.start_ns

    @property
    def at_ns(self) -> int:
        """The earlier start."""
        return min(event.start_ns for event in (self.real, self.simulated) if event is not None)


@dataclass(frozen=True)
class StreamBeside:
    """One stream, row by row. tolerance_ns: by how much starts may differ."""

    stream: str
    rows: tuple[Row, ...]
    tolerance_ns: int

    @cached_property
    def parting(self) -> Row | None:
        """The first row in which the sides differ in what they do, or in when by more than is tolerated."""
        return next((row for row in self.rows if _differ(row) or self.is_late(row)), None)

    @cached_property
    def parting_in_order(self) -> Row | None:
        """The first row in which the sides differ in what they do."""
        return next(filter(_differ, self.rows), None)

    def is_late(self, row: Row) -> bool:
        """Whether its starts differ by more than is tolerated."""
        return row.offset_ns is not None and abs(row.offset_ns) > self.tolerance_ns


class Bar(NamedTuple):
    """An event as a figure draws it. side: ``real`` or ``simulated``; kind: see `Event`."""

    side: str
    stream: str
    kind: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class SideBySide:
    """All streams. real_ns, simulated_ns: from the first start to the last end of each side."""

    streams: Mapping[str, StreamBeside]
    real_ns: int
    simulated_ns: int
    tolerance_ns: int

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all streams, one stream after the other."""
        return tuple(row for stream in self.streams.values() for row in stream.rows)

    @cached_property
    def first_parting(self) -> Row | None:
        """Of the rows at which each stream parts, the earliest; None where none does."""
        found = (stream.parting for stream in self.streams.values())
        return min((row for row in found if row is not None), key=lambda row: row.at_ns, default=None)

    @property
    def is_same_order(self) -> bool:
        """Whether both sides do the same on every stream, whenever they do it."""
        return all(stream.parting_in_order is None for stream in self.streams.values())

    @cached_property
    def latest(self) -> Row | None:
        """The row whose starts differ most; None where no event is on both sides."""
        return max((row for row in self.rows if row.offset_ns is not None), key=_distance, default=None)

    def bars(self) -> tuple[Bar, ...]:
        """Every event of both sides, for a figure."""
        return tuple(_bars(self.rows))

    def as_frame(self) -> pd.DataFrame:
        """The rows as a pandas table: stream, position, agreement, offset_ns, and `Event`'s fields of either side."""
        import pandas as pd

        columns = ["stream", "position", "agreement", "offset_ns"]
        columns += [f"{side}_{field}" for side in ("real", "simulated") for field in Event._fields]
        nothing = (None,) * len(Event._fields)
        values = [
            (*row[:2], row.agreement.value, row.offset_ns, *(row.real or nothing), *(row.simulated or nothing))
            for row in self.rows
        ]
        frame = pd.DataFrame(values, columns=columns)
        whole = [name for name in columns if name == "position" or name.endswith(("_ns", "_bytes"))]
        return frame.astype(dict.fromkeys(whole, "Int64"))


def side_by_side(spans: Iterable[MeasuredSpan], result: Result, *, tolerance: float = TOLERANCE) -> SideBySide:
    """A measured step beside the last iteration of a simulated run on one GPU.

    tolerance: by how much of the measured step's length starts may differ before they count as parted.
    """
    real, simulated = _real(spans), _simulated(result)
    real_ns, simulated_ns = (_length(side) for side in (real, simulated))
    tolerance_ns = int(real_ns * tolerance)
    streams = {
        stream: StreamBeside(stream, tuple(_rows(stream, real[stream], simulated[stream])), tolerance_ns)
        for stream in STREAMS.values()
    }
    return SideBySide(streams, real_ns, simulated_ns, tolerance_ns)


def _real(spans: Iterable[MeasuredSpan]) -> dict[str, list[Event]]:
    """A step's events by stream, in order."""
    kept = from_first_start(spans)
    found: dict[str, list[Event]] = {stream: [] for stream in STREAMS.values()}
    for call in calls_of(kept):
        found["compute"].append(Event("kernel", call.op, call.name, call.start_ns, call.end_ns))
    for span in kept:
        if span.kind is not MeasuredKind.KERNEL:
            event = Event(span.kind.value, "", span.name, span.start_ns, span.end_ns, span.bytes)
            found[STREAMS[span.kind]].append(event)
    return found


def _simulated(result: Result) -> dict[str, list[Event]]:
    """The last iteration's events by stream, in order."""
    graph, last = result.graph, len(result.timeline.iteration_ends_ns) - 1
    kept = [span for span in result.timeline if span.iteration == last and span.kind in _SIMULATED]
    begin = min((span.start_ns for span in kept), default=0)
    found: dict[str, list[Event]] = {stream: [] for stream in STREAMS.values()}
    for span in kept:
        op = graph.kernels[graph.kernel(span.name)].op if _SIMULATED[span.kind] == "compute" else ""
        start, end = span.start_ns - begin, span.end_ns - begin
        found[_SIMULATED[span.kind]].append(Event(span.kind.label, op, span.name, start, end, span.bytes))
    return found


def _length(side: Mapping[str, Sequence[Event]]) -> int:
    return max((event.end_ns for events in side.values() for event in events), default=0)


def _rows(stream: str, real: Sequence[Event], simulated: Sequence[Event]) -> Iterator[Row]:
    """What is the same on both sides; between two such, what is not: side by side as far as there is something."""
    pairs = aligned([_what(event) for event in real], [_what(event) for event in simulated])
    position, i, j = 0, 0, 0
    for one, other in (*pairs, (len(real), len(simulated))):
        for left, right in zip_longest(real[i:one], simulated[j:other]):
            yield Row(stream, position, _agreement(left, right), left, right)
            position += 1
        if one < len(real):
            yield Row(stream, position, Agreement.SAME, real[one], simulated[other])
            position += 1
        i, j = one + 1, other + 1


def _what(event: Event) -> tuple[str, int]:
    return same_work(event.op), event.bytes


def _agreement(real: Event | None, simulated: Event | None) -> Agreement:
    if real is None:
        return Agreement.ONLY_SIMULATED
    return Agreement.ONLY_REAL if simulated is None else Agreement.OTHER


def _differ(row: Row) -> bool:
    return row.agreement is not Agreement.SAME


def _distance(row: Row) -> int:
    return abs(row.offset_ns or 0)


def _bars(rows: Iterable[Row]) -> Iterator[Bar]:
    for row in rows:
        for side, event in (("real", row.real), ("simulated", row.simulated)):
            if event is not None:
                yield Bar(side, row.stream, event.kind, event.start_ns, event.end_ns)
