"""The result of replaying a program on a measured device, compared with its simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import Any

from simgpu.hardware.spec import Duplex, LinkSpec
from simgpu.timeline.model import Timeline
from simgpu.units import format_bandwidth, format_bytes, format_time
from simgpu.validation.calibration import duplex_of
from simgpu.validation.measured import MeasuredKind, MeasuredMachine, MeasuredSpan
from simgpu.validation.outcome import Quantity, relative_error
from simgpu.validation.replay.program import SimulatedProgram
from simgpu.validation.tables import QUANTITY_LABELS, error_text
from simgpu.validation.timelines.comparison import (
    Agreement,
    Event,
    Row,
    StreamComparison,
    TimelineComparison,
    compare_events,
)

SCHEMA = "simgpu.replay/2"
#: Tolerance of start times, as a fraction of the simulated iteration.
TOLERANCE = 0.05

NUMBER_HEADINGS = ("", "measured", "simulated", "error")
STREAM_HEADINGS = ("stream", "spans", "busy measured", "simulated", "error", "divergence")
_DUPLEX = {Duplex.FULL: "full", Duplex.HALF: "half"}
#: The kind of span that the device runs for each kind of the simulation (`Span.label`).
_KINDS = {
    "compute": MeasuredKind.KERNEL,
    "recompute": MeasuredKind.KERNEL,
    "encode": MeasuredKind.KERNEL,
    "decode": MeasuredKind.KERNEL,
    "copy_d2h": MeasuredKind.COPY_D2H,
    "copy_h2d": MeasuredKind.COPY_H2D,
}


@dataclass(frozen=True, slots=True)
class Side:
    """The measured or the simulated side.

    iterations_ns: time of each steady iteration.
    peak_bytes: peak device memory of blocks, with the node's rounding.
    d2h_bytes, h2d_bytes: copied in one iteration.
    """

    iterations_ns: tuple[int, ...]
    peak_bytes: int
    d2h_bytes: int
    h2d_bytes: int

    @property
    def iteration_ns(self) -> int:
        """The median iteration time, nanoseconds."""
        return median_low(self.iterations_ns)


@dataclass(frozen=True)
class Outcome:
    """A program replayed on a device, and simulated on the link measured there.

    steady: whether the simulated iterations are steady, None if not known.
    warmup: iterations before the measured ones.
    limit_bytes: limit of device memory.
    allocated_bytes: peak device memory allocated by the host, ahead of the device.
    comparison: the streams of one more iteration.
    """

    program: SimulatedProgram
    machine: MeasuredMachine
    measured: Side
    simulated: Side
    steady: bool | None
    warmup: int
    limit_bytes: int
    allocated_bytes: int
    comparison: TimelineComparison

    @property
    def error(self) -> float:
        """Relative error of the simulated iteration time."""
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
            "warmup": self.warmup,
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
        # The name of a kernel or block acts as its operator, so that only equal ones are paired.
        times = span.start_ns - begin, span.end_ns - begin
        event = Event(_KINDS[span.label].value, span.name, span.name, *times, span.bytes)
        simulated.setdefault(span.stream, []).append(event)
    measured: dict[str, list[Event]] = {stream: [] for stream in simulated}
    for real in spans:
        name = real.op or real.name
        measured.setdefault(real.stream, []).append(
            Event(real.kind.value, name, name, real.start_ns, real.end_ns, real.bytes)
        )
    length = max((event.end_ns for events in simulated.values() for event in events), default=0)
    return compare_events(measured, simulated, int(length * TOLERANCE))


def busy_ns(stream: StreamComparison) -> tuple[int, int]:
    """Sum of the durations of a stream's spans, measured and simulated."""
    measured = sum(row.measured.end_ns - row.measured.start_ns for row in stream.rows if row.measured)
    return measured, sum(row.simulated.end_ns - row.simulated.start_ns for row in stream.rows if row.simulated)


def _plain(side: Side) -> dict[str, Any]:
    return {"iteration_ns": side.iteration_ns, **asdict(side)}


def _stream(stream: StreamComparison) -> Mapping[str, Any]:
    measured, simulated = busy_ns(stream)
    divergence = stream.divergence
    return {
        "busy_ns": {"measured": measured, "simulated": simulated},
        "first_divergence": None if divergence is None else divergence.position,
        "spans": [
            {
                "agreement": row.agreement.value,
                "measured": None if row.measured is None else row.measured._asdict(),
                "simulated": None if row.simulated is None else row.simulated._asdict(),
            }
            for row in stream.rows
        ],
    }


def header(outcome: Outcome) -> list[tuple[str, str]]:
    """The program, the device, both links, and the number of iterations."""
    machine, program = outcome.machine, outcome.program
    copies = machine.copies
    both = f"bidirectional {format_bandwidth(copies.bidirectional_d2h)} + {format_bandwidth(copies.bidirectional_h2d)}"
    link = LinkSpec("measured", copies.d2h, copies.h2d, copies.latency_ns, duplex_of(copies))
    version = machine.versions.get("pytorch", "")
    simulated = f"the program simulated on the device's link with unchanged kernel times; on {program.node.name} its "
    simulated += f"iteration took {format_time(program.iteration_ns)}"
    return [
        ("program", program.title),
        ("device", f"{machine.device}{f', PyTorch {version}' if version else ''}, {machine.date}"),
        ("device's link", f"{_link(link)}; {both}"),
        ("node's link", f"{_link(program.node.link)}; of {program.node.name}"),
        ("compared with", simulated),
        ("iterations", _iterations(outcome)),
        ("memory", _memory(outcome)),
    ]


def number_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Rows of the table with `NUMBER_HEADINGS`."""
    measured, simulated = outcome.measured, outcome.simulated
    yield "iteration", *_pair(measured.iteration_ns, simulated.iteration_ns, format_time)
    for quantity in (Quantity.PEAK, Quantity.OUT, Quantity.IN):
        values = getattr(measured, quantity), getattr(simulated, quantity)
        yield QUANTITY_LABELS[quantity], *_pair(*values, format_bytes)


def stream_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Rows of the table with `STREAM_HEADINGS`."""
    for name, stream in outcome.comparison.streams.items():
        row = stream.divergence
        yield name, str(len(stream.rows)), *_pair(*busy_ns(stream), format_time), "none" if row is None else _names(row)


def _pair(measured: int, simulated: int, form: Callable[[int], str]) -> tuple[str, str, str]:
    return form(measured), form(simulated), error_text(relative_error(simulated, measured))


def _names(row: Row) -> str:
    """The event of a row, or both if they differ."""
    names = [f"{event.kind} {event.name}" for event in (row.measured, row.simulated) if event is not None]
    return names[0] if row.agreement is Agreement.SAME else " / ".join(names)


def _link(link: LinkSpec) -> str:
    speeds = f"{format_bandwidth(link.d2h_bandwidth)} D2H, {format_bandwidth(link.h2d_bandwidth)} H2D"
    return f"{speeds}, {_DUPLEX[link.duplex]} duplex, latency {format_time(link.latency_ns)}"


def _iterations(outcome: Outcome) -> str:
    times = outcome.measured.iterations_ns
    spread = f", from {format_time(min(times))} to {format_time(max(times))}" if len(times) > 1 else ""
    unsteady = "" if outcome.steady is not False else "; the simulated iterations are UNSTEADY"
    return f"median of {len(times)}{spread}, {outcome.warmup} for warm-up, one for the streams{unsteady}"


def _memory(outcome: Outcome) -> str:
    limit, peak = format_bytes(outcome.limit_bytes), format_bytes(outcome.allocated_bytes)
    return f"the host allocated up to {peak} of {limit}, ahead of the device"
