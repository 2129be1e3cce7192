"""What a program did on a real device beside what the machine says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import Any

from simgpu.timeline.model import SpanKind, Timeline
from simgpu.validation.measured import MeasuredKind, MeasuredMachine, MeasuredSpan
from simgpu.validation.replay.program import SimulatedProgram
from simgpu.validation.timelines.beside import Agreement, Event, Row, SideBySide, StreamBeside

SCHEMA = "simgpu.replay/1"
#: Starts may differ by so much of the simulated iteration before they count as parted.
TOLERANCE = 0.05

#: What the machine calls what the device was asked to do.
_KINDS = {
    SpanKind.COMPUTE: MeasuredKind.KERNEL,
    SpanKind.RECOMPUTE: MeasuredKind.KERNEL,
    SpanKind.ENCODE: MeasuredKind.KERNEL,
    SpanKind.DECODE: MeasuredKind.KERNEL,
    SpanKind.COPY_D2H: MeasuredKind.COPY_D2H,
    SpanKind.COPY_H2D: MeasuredKind.COPY_H2D,
}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison.

    iterations_ns: of each steady iteration. peak_bytes: the most device memory that blocks held at once, each as the
    program's node rounds it up. d2h_bytes, h2d_bytes: copied in one iteration.
    """

    iterations_ns: tuple[int, ...]
    peak_bytes: int
    d2h_bytes: int
    h2d_bytes: int

    @property
    def iteration_ns(self) -> int:
        """The median."""
        return median_low(self.iterations_ns)


@dataclass(frozen=True)
class Outcome:
    """A program issued to a device, and simulated on the link that was measured there.

    limit_bytes: the most device memory that the host might allocate; allocated_bytes: the most that it did, ahead of
    the device. warm_up: iterations before those that count. beside: the streams of one more iteration.
    """

    program: SimulatedProgram
    machine: MeasuredMachine
    measured: Side
    simulated: Side
    steady: bool | None
    warm_up: int
    limit_bytes: int
    allocated_bytes: int
    beside: SideBySide

    @property
    def error(self) -> float:
        """Of the simulated iteration time, relative to the measured one."""
        return self.simulated.iteration_ns / max(self.measured.iteration_ns, 1) - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        node = self.program.node
        return {
            "schema": SCHEMA,
            "program": {
                "title": self.program.title,
                "budget_bytes": self.program.budget,
                "pool": self.program.pool,
                "node": {"name": node.name, "link": asdict(node.link), "copy_engines": node.gpu.copy_engines},
                "iteration_ns": self.program.iteration_ns,
            },
            "machine": asdict(self.machine),
            "warm_up": self.warm_up,
            "limit_bytes": self.limit_bytes,
            "allocated_bytes": self.allocated_bytes,
            "measured": _plain(self.measured),
            "simulated": {**_plain(self.simulated), "steady": self.steady},
            "error": self.error,
            "tolerance_ns": self.beside.tolerance_ns,
            "streams": {name: _stream(stream) for name, stream in self.beside.streams.items()},
        }


def besides(spans: tuple[MeasuredSpan, ...], timeline: Timeline) -> SideBySide:
    """The spans of a replayed iteration beside the last one of its simulation, place by place of each stream."""
    last = len(timeline.iteration_ends_ns) - 1
    simulated: dict[str, list[Event]] = {}
    kept = [span for span in timeline if span.iteration == last and not span.kind.is_stall]
    begin = min((span.start_ns for span in kept), default=0)
    for span in kept:
        # What a kernel is called stands as its operator on both sides, so that it is told which one ran.
        op = "" if span.kind in (SpanKind.COPY_D2H, SpanKind.COPY_H2D) else span.name
        times = span.start_ns - begin, span.end_ns - begin
        event = Event(_KINDS[span.kind].value, op, span.name, *times, span.bytes)
        simulated.setdefault(span.stream, []).append(event)
    real: dict[str, list[Event]] = {}
    for each in spans:
        event = Event(each.kind.value, each.op, each.op or each.name, each.start_ns, each.end_ns, each.bytes)
        real.setdefault(each.stream, []).append(event)
    length = max((event.end_ns for events in simulated.values() for event in events), default=0)
    tolerance_ns = int(length * TOLERANCE)
    streams = {
        stream: StreamBeside(stream, _rows(stream, real.get(stream, []), events), tolerance_ns)
        for stream, events in simulated.items()
    }
    real_ns = max((span.end_ns for span in spans), default=0)
    return SideBySide(streams, real_ns, length, tolerance_ns)


def _rows(stream: str, real: list[Event], simulated: list[Event]) -> tuple[Row, ...]:
    """A stream does its instructions in order on both sides, so the nth answers to the nth."""
    rows = []
    for position in range(max(len(real), len(simulated))):
        one = real[position] if position < len(real) else None
        other = simulated[position] if position < len(simulated) else None
        rows.append(Row(stream, position, _agreement(one, other), one, other))
    return tuple(rows)


def _agreement(real: Event | None, simulated: Event | None) -> Agreement:
    if real is None:
        return Agreement.ONLY_SIMULATED
    if simulated is None:
        return Agreement.ONLY_REAL
    same = (real.kind, real.name, real.bytes) == (simulated.kind, simulated.name, simulated.bytes)
    return Agreement.SAME if same else Agreement.OTHER


def busy_ns(stream: StreamBeside) -> tuple[int, int]:
    """How long a stream worked, measured and simulated."""
    real = sum(row.real.end_ns - row.real.start_ns for row in stream.rows if row.real)
    return real, sum(row.simulated.end_ns - row.simulated.start_ns for row in stream.rows if row.simulated)


def _plain(side: Side) -> dict[str, Any]:
    return {"iteration_ns": side.iteration_ns, **asdict(side)}


def _stream(stream: StreamBeside) -> Mapping[str, Any]:
    real, simulated = busy_ns(stream)
    parting = stream.parting
    return {
        "busy_ns": {"measured": real, "simulated": simulated},
        "parts_at": None if parting is None else parting.position,
        "spans": [
            {
                "agreement": row.agreement.value,
                "measured": None if row.real is None else row.real._asdict(),
                "simulated": None if row.simulated is None else row.simulated._asdict(),
            }
            for row in stream.rows
        ],
    }
