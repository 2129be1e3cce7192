"""A measured step next to a simulated iteration, stream by stream, and where they part.

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
from simgpu.units import format_bytes, format_time
from simgpu.validation.measured import STREAMS, MeasuredKind, MeasuredSpan, from_first_start
from simgpu.validation.timelines.matching import aligned, calls_of, same_work

if TYPE_CHECKING:
    import pandas as pd

#: Characters of a name in a sentence.
_NAMES = 48
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
class StreamComparison:
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


@dataclass(frozen=True)
class TimelineComparison:
    """All streams. real_ns, simulated_ns: from the first start to the last end of each side."""

    streams: Mapping[str, StreamComparison]
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
        result = (stream.parting for stream in self.streams.values())
        return min((row for row in result if row is not None), key=lambda row: row.at_ns, default=None)

    @property
    def is_same_order(self) -> bool:
        """Whether both sides do the same on every stream, whenever they do it."""
        return all(stream.parting_in_order is None for stream in self.streams.values())

    @cached_property
    def latest(self) -> Row | None:
        """The row whose starts differ most; None where no event is on both sides."""
        return max((row for row in self.rows if row.offset_ns is not None), key=_distance, default=None)

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
        total = [name for name in columns if name == "position" or name.endswith(("_ns", "_bytes"))]
        return frame.astype(dict.fromkeys(total, "Int64"))


def side_by_side(spans: Iterable[MeasuredSpan], result: Result, *, tolerance: float = TOLERANCE) -> TimelineComparison:
    """Compares a measured step with the last iteration of a simulated run on one GPU.

    tolerance: by which share of the measured step's length starts may differ.
    """
    real = _real(spans)
    return compare_events(real, _simulated(result), int(_length(real) * tolerance))


def compare_events(
    real: Mapping[str, Sequence[Event]], simulated: Mapping[str, Sequence[Event]], tolerance_ns: int
) -> TimelineComparison:
    """Pairs the events of each simulated stream with the measured ones: equal work in order, the rest between it.

    Work is equal where operator and bytes are (`same_work`).
    """
    streams = {
        stream: StreamComparison(stream, tuple(_rows(stream, real.get(stream, ()), events)), tolerance_ns)
        for stream, events in simulated.items()
    }
    return TimelineComparison(streams, _length(real), _length(simulated), tolerance_ns)


def _real(spans: Iterable[MeasuredSpan]) -> dict[str, list[Event]]:
    """A step's events by stream, in order."""
    retained = from_first_start(spans)
    result: dict[str, list[Event]] = {stream: [] for stream in STREAMS.values()}
    for call in calls_of(retained):
        result["compute"].append(Event("kernel", call.op, call.name, call.start_ns, call.end_ns))
    for span in retained:
        if span.kind is not MeasuredKind.KERNEL:
            event = Event(span.kind.value, "", span.name, span.start_ns, span.end_ns, span.bytes)
            result[STREAMS[span.kind]].append(event)
    return result


def _simulated(result: Result) -> dict[str, list[Event]]:
    """The last iteration's events by stream, in order."""
    graph, last = result.graph, len(result.timeline.iteration_ends_ns) - 1
    retained = [span for span in result.timeline if span.iteration == last and span.kind in _SIMULATED]
    begin = min((span.start_ns for span in retained), default=0)
    outcome: dict[str, list[Event]] = {stream: [] for stream in STREAMS.values()}
    for span in retained:
        op = graph.kernels[graph.kernel(span.name)].op if _SIMULATED[span.kind] == "compute" else ""
        start, end = span.start_ns - begin, span.end_ns - begin
        outcome[_SIMULATED[span.kind]].append(Event(span.kind.label, op, span.name, start, end, span.bytes))
    return outcome


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


def parting_text(comparison: TimelineComparison) -> str:
    """Where a measured step and a simulated iteration part first."""
    row = comparison.first_parting
    within = f"within {format_time(comparison.tolerance_ns)}"
    if row is None:
        latest = comparison.latest
        by = f"; starts differ by {format_time(abs(latest.offset_ns or 0))} at most" if latest else ""
        return f"They do not part: the same on every stream, in the same order, {within}{by}."
    text = f"They part at {format_time(row.at_ns)}, on {row.stream}, event {row.position}: {_in_words(row)}."
    if row.agreement is Agreement.SAME:
        order = "The order is the same on every stream." if comparison.is_same_order else _in_order(comparison)
        return f"{text} {order}"
    return text


def _in_order(comparison: TimelineComparison) -> str:
    result = [row for stream in comparison.streams.values() if (row := stream.parting_in_order) is not None]
    first = min(result, key=lambda row: row.at_ns)
    return f"In order they part at {format_time(first.at_ns)}, on {first.stream}, event {first.position}."


def _in_words(row: Row) -> str:
    real, simulated, offset = row.real, row.simulated, row.offset_ns
    if simulated is None:
        assert real is not None
        return f"the device has {_described(real)}, and the simulation nothing there"
    if real is None:
        return f"the simulation has {_described(simulated)}, and the device nothing there"
    if row.agreement is Agreement.OTHER:
        return f"the device has {_described(real)} where the simulation has {_described(simulated)}"
    assert offset is not None
    when = f"{format_time(abs(offset))} {'later' if offset > 0 else 'earlier'}"
    return f"{_described(simulated)} starts {when} on the device than in the simulation"


def _described(event: Event) -> str:
    """An operator with the simulated kernel's name, or a copy with its size."""
    name = event.name if len(event.name) <= _NAMES else f"{event.name[: _NAMES - 2]}.."
    if event.op:
        return event.op if event.kind == "kernel" else f"{event.op} ({event.kind} {name})"
    return f"{event.kind} {name} of {format_bytes(event.bytes)}"
