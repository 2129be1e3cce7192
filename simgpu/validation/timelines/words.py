"""Where timelines part, told to a person in a sentence or two."""

from __future__ import annotations

from simgpu.units import format_bytes, format_time
from simgpu.validation.timelines.beside import Agreement, Event, Row, SideBySide
from simgpu.validation.timelines.matching import Matching

_NAMES = 48


def matching_text(matching: Matching) -> str:
    """Whether the device ran what the trace has, and if not, how much differs and where first.

    >>> from simgpu.validation.measured import MeasuredKind, MeasuredSpan
    >>> from simgpu.validation.timelines.matching import match
    >>> spans = [MeasuredSpan("compute", MeasuredKind.KERNEL, "", "aten::mm", 0, 0, 5)]
    >>> matching_text(match(spans, ["aten::mm"]))
    'Each of 1 kernels has its call on the device, in order.'
    >>> for sentence in matching_text(match(spans, ["aten::zero_", "aten::mm"])).split(". "):
    ...     print(sentence)
    1 of 2 kernels have no call on the device, and 0 of 1 calls no kernel
    They part at place 0: the device ran aten::mm, expected was aten::zero_.
    """
    place, calls, expected = matching.parting, matching.calls, matching.expected
    if place is None:
        return f"Each of {len(expected)} kernels has its call on the device, in order."
    ran = calls[place].op if place < len(calls) else "nothing more"
    wanted = expected[place] if place < len(expected) else "nothing more"
    return (
        f"{len(matching.unmatched_positions)} of {len(expected)} kernels have no call on the device, and "
        f"{len(matching.unmatched_calls)} of {len(calls)} calls no kernel. They part at place {place}: the device ran "
        f"{ran}, expected was {wanted}."
    )


def parting_text(beside: SideBySide) -> str:
    """Where a measured step and a simulated iteration part first."""
    row = beside.first_parting
    within = f"within {format_time(beside.tolerance_ns)}"
    if row is None:
        latest = beside.latest
        by = f"; starts differ by {format_time(abs(latest.offset_ns or 0))} at most" if latest else ""
        return f"They do not part: the same on every stream, in the same order, {within}{by}."
    told = f"They part at {format_time(row.at_ns)}, on {row.stream}, event {row.position}: {_in_words(row)}."
    if row.agreement is Agreement.SAME:
        order = "The order is the same on every stream." if beside.is_same_order else _in_order(beside)
        return f"{told} {order}"
    return told


def _in_order(beside: SideBySide) -> str:
    found = [row for stream in beside.streams.values() if (row := stream.parting_in_order) is not None]
    first = min(found, key=lambda row: row.at_ns)
    return f"In order they part at {format_time(first.at_ns)}, on {first.stream}, event {first.position}."


def _in_words(row: Row) -> str:
    real, simulated, offset = row.real, row.simulated, row.offset_ns
    if simulated is None:
        assert real is not None
        return f"the device has {_event(real)}, and the simulation nothing there"
    if real is None:
        return f"the simulation has {_event(simulated)}, and the device nothing there"
    if row.agreement is Agreement.OTHER:
        return f"the device has {_event(real)} where the simulation has {_event(simulated)}"
    assert offset is not None
    when = f"{format_time(abs(offset))} {'later' if offset > 0 else 'earlier'}"
    return f"{_event(simulated)} starts {when} on the device than in the simulation"


def _event(event: Event) -> str:
    """An operator with the simulated kernel's name, or a copy with its size."""
    name = event.name if len(event.name) <= _NAMES else f"{event.name[: _NAMES - 2]}.."
    if event.op:
        return event.op if event.kind == "kernel" else f"{event.op} ({event.kind} {name})"
    return f"{event.kind} {name} of {format_bytes(event.bytes)}"
