"""The words of a replay: where its numbers come from, and how far the machine is off."""

from __future__ import annotations

from collections.abc import Iterator

from simgpu.hardware.spec import Duplex, LinkSpec
from simgpu.units import format_bandwidth, format_bytes, format_time
from simgpu.validation.calibration import duplex_of
from simgpu.validation.replay.outcome import TOLERANCE, Outcome, busy_ns
from simgpu.validation.tables import error_text
from simgpu.validation.timelines.beside import Agreement, Row, StreamBeside

NUMBER_HEADINGS = ("", "measured", "simulated", "error")
STREAM_HEADINGS = ("stream", "spans", "busy measured", "simulated", "error", "parts at")
_NONE = "-"
_DUPLEX = {Duplex.FULL: "full", Duplex.HALF: "half"}


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
    for name, real, told in (
        ("peak memory", measured.peak_bytes, simulated.peak_bytes),
        ("copied out", measured.d2h_bytes, simulated.d2h_bytes),
        ("copied in", measured.h2d_bytes, simulated.h2d_bytes),
    ):
        rows.append((name, format_bytes(real), format_bytes(told), _error(real, told)))
    return rows


def stream_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """Texts under `STREAM_HEADINGS`."""
    return list(_stream_rows(outcome))


def parting(outcome: Outcome) -> str:
    """In a sentence where the streams part first."""
    tolerance = f"{format_time(outcome.beside.tolerance_ns)}, {TOLERANCE:.0%} of the simulated iteration"
    row = outcome.beside.first_parting
    if row is None:
        return f"no start differs by over {tolerance}"
    if row.agreement is not Agreement.SAME or row.real is None or row.simulated is None:
        return f"{row.stream} does something else at place {row.position}: {_what(row)}"
    real, told = row.real.start_ns, row.simulated.start_ns
    when = f"{format_time(abs(real - told))} {'later' if real > told else 'earlier'} than simulated"
    return f"{row.stream}, {_what(row)}: started at {format_time(real)}, {when} (tolerated: {tolerance})"


def _stream_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    for name, stream in outcome.beside.streams.items():
        real, simulated = busy_ns(stream)
        times = format_time(real), format_time(simulated)
        yield name, str(len(stream.rows)), *times, _error(real, simulated), _parts_at(stream)


def _parts_at(stream: StreamBeside) -> str:
    return "nowhere" if stream.parting is None else _what(stream.parting)


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
