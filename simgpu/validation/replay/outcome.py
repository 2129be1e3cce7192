"""What a program did on a real device next to what the machine says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import Any

from simgpu.hardware.spec import Duplex, LinkSpec
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.units import format_bandwidth, format_bytes, format_time
from simgpu.validation.calibration import duplex_of
from simgpu.validation.measured import MeasuredKind, MeasuredMachine, MeasuredSpan
from simgpu.validation.replay.program import SimulatedProgram
from simgpu.validation.tables import error_text
from simgpu.validation.timelines.comparison import (
    Agreement,
    Event,
    Row,
    StreamComparison,
    TimelineComparison,
    compare_events,
)

SCHEMA = "simgpu.replay/1"
#: Starts may differ by so much of the simulated iteration before they count as parted.
TOLERANCE = 0.05

NUMBER_HEADINGS = ("", "measured", "simulated", "error")
STREAM_HEADINGS = ("stream", "spans", "busy measured", "simulated", "error", "parts at")
_NONE = "-"
_DUPLEX = {Duplex.FULL: "full", Duplex.HALF: "half"}
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
    the device. warm_up: iterations before those that count. comparison: the streams of one more iteration.
    """

    program: SimulatedProgram
    machine: MeasuredMachine
    measured: Side
    simulated: Side
    steady: bool | None
    warm_up: int
    limit_bytes: int
    allocated_bytes: int
    comparison: TimelineComparison

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
            "tolerance_ns": self.comparison.tolerance_ns,
            "streams": {name: _stream(stream) for name, stream in self.comparison.streams.items()},
        }


def compare_replay(spans: tuple[MeasuredSpan, ...], timeline: Timeline) -> TimelineComparison:
    """Compares the spans of a replayed iteration with the last iteration of its simulation, stream by stream."""
    last = len(timeline.iteration_ends_ns) - 1
    iteration = [span for span in timeline if span.iteration == last and not span.kind.is_stall]
    begin = min((span.start_ns for span in iteration), default=0)
    simulated: dict[str, list[Event]] = {}
    for span in iteration:
        # The name of a kernel or block is its operator on both sides, so that only equal ones are paired.
        times = span.start_ns - begin, span.end_ns - begin
        event = Event(_KINDS[span.kind].value, span.name, span.name, *times, span.bytes)
        simulated.setdefault(span.stream, []).append(event)
    real: dict[str, list[Event]] = {stream: [] for stream in simulated}
    for each in spans:
        name = each.op or each.name
        real.setdefault(each.stream, []).append(
            Event(each.kind.value, name, name, each.start_ns, each.end_ns, each.bytes)
        )
    length = max((event.end_ns for events in simulated.values() for event in events), default=0)
    return compare_events(real, simulated, int(length * TOLERANCE))


def busy_ns(stream: StreamComparison) -> tuple[int, int]:
    """How long a stream worked, measured and simulated."""
    real = sum(row.real.end_ns - row.real.start_ns for row in stream.rows if row.real)
    return real, sum(row.simulated.end_ns - row.simulated.start_ns for row in stream.rows if row.simulated)


def _plain(side: Side) -> dict[str, Any]:
    return {"iteration_ns": side.iteration_ns, **asdict(side)}


def _stream(stream: StreamComparison) -> Mapping[str, Any]:
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


def header(outcome: Outcome) -> list[tuple[str, str]]:
    """What ran, on what, and what it is compared with."""
    machine, program = outcome.machine, outcome.program
    copies = machine.copies
    both = f"both at once {format_bandwidth(copies.both_d2h)} and {format_bandwidth(copies.both_h2d)}"
    measured = LinkSpec("measured", copies.d2h, copies.h2d, copies.latency_ns, duplex_of(copies))
    version = machine.versions.get("pytorch", "")
    again = f"the program simulated again on that link, kernels as long as they were; on {program.node.name} an "
    again += f"iteration took {format_time(program.iteration_ns)}"
    return [
        ("program", program.title),
        ("device", f"{machine.device}{f', PyTorch {version}' if version else ''}, {machine.date}"),
        ("device's link", f"{_link(measured)}; {both}"),
        ("node's link", f"{_link(program.node.link)}; of {program.node.name}"),
        ("compared with", again),
        ("iterations", _iterations(outcome)),
        ("memory", _memory(outcome)),
    ]


def number_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """Texts under `NUMBER_HEADINGS`; errors are the simulation's, relative to what was measured."""
    measured, simulated = outcome.measured, outcome.simulated
    times = measured.iteration_ns, simulated.iteration_ns
    rows = [("iteration", *map(format_time, times), _error(*times))]
    for name, real, text in (
        ("peak memory", measured.peak_bytes, simulated.peak_bytes),
        ("copied out", measured.d2h_bytes, simulated.d2h_bytes),
        ("copied in", measured.h2d_bytes, simulated.h2d_bytes),
    ):
        rows.append((name, format_bytes(real), format_bytes(text), _error(real, text)))
    return rows


def stream_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Texts under `STREAM_HEADINGS`."""
    for name, stream in outcome.comparison.streams.items():
        real, simulated = busy_ns(stream)
        times = format_time(real), format_time(simulated)
        place = "nowhere" if stream.parting is None else _what(stream.parting)
        yield name, str(len(stream.rows)), *times, _error(real, simulated), place


def parting(outcome: Outcome) -> str:
    """In a sentence where the streams part first."""
    tolerance = f"{format_time(outcome.comparison.tolerance_ns)}, {TOLERANCE:.0%} of the simulated iteration"
    row = outcome.comparison.first_parting
    if row is None:
        return f"no start differs by over {tolerance}"
    if row.agreement is not Agreement.SAME or row.real is None or row.simulated is None:
        return f"{row.stream} does something else at place {row.position}: {_what(row)}"
    real, text = row.real.start_ns, row.simulated.start_ns
    when = f"{format_time(abs(real - text))} {'later' if real > text else 'earlier'} than simulated"
    return f"{row.stream}, {_what(row)}: started at {format_time(real)}, {when} (tolerated: {tolerance})"


def _what(row: Row) -> str:
    """What stands at a place of a stream, of both sides where they differ."""
    names = [f"{event.kind} {event.name}" for event in (row.real, row.simulated) if event is not None]
    return names[0] if row.agreement is Agreement.SAME else " / ".join(names)


def _error(measured: int, simulated: int) -> str:
    if not measured:
        return _NONE if not simulated else "not 0"
    return error_text(simulated / measured - 1)


def _link(link: LinkSpec) -> str:
    speeds = f"{format_bandwidth(link.d2h_bandwidth)} out, {format_bandwidth(link.h2d_bandwidth)} in"
    return f"{speeds}, {_DUPLEX[link.duplex]} duplex, {format_time(link.latency_ns)} before the first byte"


def _iterations(outcome: Outcome) -> str:
    times = outcome.measured.iterations_ns
    spread = f", from {format_time(min(times))} to {format_time(max(times))}" if len(times) > 1 else ""
    unsteady = "" if outcome.steady is not False else "; the simulated ones are UNSTEADY"
    return f"median of {len(times)} after {outcome.warm_up}{spread}; one more for the streams{unsteady}"


def _memory(outcome: Outcome) -> str:
    limit, most = format_bytes(outcome.limit_bytes), format_bytes(outcome.allocated_bytes)
    return f"the host, ahead of the device, allocated up to {most} of {limit}"
