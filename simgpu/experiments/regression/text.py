"""Formats a difference of timings as text, in lines of at most 76 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from simgpu.analysis.tables import table_text
from simgpu.experiments.regression.difference import (
    ABSENT,
    FactChange,
    PolicyDifference,
    TimingDifference,
    ValueDifference,
)
from simgpu.experiments.regression.divergence import EventDifference
from simgpu.experiments.regression.timings import Number
from simgpu.timeline.model import Span
from simgpu.units import format_time

WIDTH = 76
_LABELS = 12
_NAMES = 48
_FIELDS = ("kind", "name", "iteration", "gpu", "start_ns", "end_ns", "bytes", "cause")
#: Fields that are shown even if they are 0 or empty.
_ALWAYS = ("kind", "name", "iteration", "start_ns", "end_ns")
_UNITS = {"start_ns": "ns", "end_ns": "ns", "bytes": "B"}
_HEADINGS = ("", "stored", "now", "by", "")


def difference_text(difference: TimingDifference) -> str:
    """All differences, including those that do not count.

    >>> import simgpu
    >>> from simgpu.experiments.regression.difference import compare_timings
    >>> from simgpu.experiments.regression.timings import timings_of
    >>> def timings(bandwidth: str):
    ...     changes = {"policies": "vdnn", "node.link.d2h_bandwidth": bandwidth}
    ...     return timings_of(simgpu.load_scenario("quickstart", changes))
    >>> text = difference_text(compare_timings(timings("1 GB/s"), timings("0.99 GB/s")))
    >>> print(next(line.strip() for line in text.splitlines() if "diverge" in line))
    timelines diverge at 393.2 us, on d2h: copy_d2h input ends 3,972 ns later
    """
    return "\n".join(_lines(difference))


def _lines(difference: TimingDifference) -> Iterator[str]:
    if difference.overrides:
        yield "stored with other settings:"
        yield from _changes(difference.overrides, "  ")
    if difference.inputs:
        yield "trace or node changed:"
        yield from _changes(difference.inputs, "  ")
    for labels, title in ((difference.only_stored, "only stored"), (difference.only_now, "only now")):
        if labels:
            yield from _wrapped(f"{title}: {', '.join(labels)}", "")
    if difference.reordered:
        yield "policies are in another order, which does not count"
    for policy in difference.policies:
        yield from _of_policy(policy)


def _of_policy(policy: PolicyDifference) -> Iterator[str]:
    yield policy.label if policy.counts else f"{policy.label} (does not count)"
    yield from _changes(policy.facts, "  ")
    yield from _values([value for value in policy.values if not value.tolerated], "")
    yield from _values([value for value in policy.values if value.tolerated], "within tolerance:")
    if policy.not_stored:
        yield from _wrapped(f"not stored, and not counted: {', '.join(policy.not_stored)}", "  ")
    if policy.events is not None:
        yield from _events(policy.events, informative=policy.by_metrics)
    elif policy.values:
        yield "  the timelines are equal, event by event"


def _values(values: Sequence[ValueDifference], title: str) -> Iterator[str]:
    if not values:
        return
    if title:
        yield f"  {title}"
    rows = [_value_row(value) for value in values]
    lines = table_text((*_HEADINGS, ""), [(*row, "") for row in rows]).splitlines()
    if max(map(len, lines)) + 2 > WIDTH:
        width = max(len(value.key) for value in values)
        lines = [
            line
            for name, stored, now, by, share in rows
            for line in (
                f"{name.ljust(width)}  {stored} -> {now}",
                f"{' ' * width}  {', '.join(part for part in (by, share) if part)}",
            )
        ]
    yield from (f"  {line}" for line in lines)


def _value_row(value: ValueDifference) -> tuple[str, ...]:
    return value.key, _number(value.stored), _number(value.now), _number(value.by, "+"), _share(value)


def _share(value: ValueDifference) -> str:
    """The change in percent, or from ten times on as a multiple of the stored value."""
    if value.share is None:
        return ""
    return f"{100 * value.share:+.3g}%" if abs(value.share) < 9 else f"{value.share + 1:.4g}x"


def _number(value: Number, sign: str = "") -> str:
    """Integers in full, other numbers to six digits."""
    if value is None:
        return "-"
    return f"{value:{sign},}" if isinstance(value, int) else f"{value:{sign}.6g}"


def _changes(changes: Iterable[FactChange], indent: str) -> Iterator[str]:
    for key, stored, now in changes:
        yield from _wrapped(f"{key}: {_fact(stored)} -> {_fact(now)}", indent)


def _fact(value: Any) -> str:
    if value is ABSENT:
        return "nothing"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return str(value)


def _events(events: EventDifference, informative: bool) -> Iterator[str]:
    note = "; this does not count, as metrics have tolerances" if informative else ""
    where = f"timelines diverge at {format_time(events.at_ns)}, on {events.stream}"
    yield from _wrapped(f"{where}: {_described(events)}{note}", "  ")
    yield from _side_by_side(events)
    if events.before:
        title = f"last of {events.equal:,} events" if events.equal > len(events.before) else "events"
        yield f"    {title} before it on {events.stream}, equal in both:"
        for event in events.before:
            yield from _wrapped(_event(event), "      ")
    else:
        yield f"    it is the first event on {events.stream}"


def _described(events: EventDifference) -> str:
    stored, now, fields = events.stored, events.now, events.fields
    if now is None and stored is not None:
        return f"{_named(stored)} is only in the stored timeline; its stream now ends before it"
    if stored is None and now is not None:
        return f"{_named(now)} is only in the current timeline; the stored stream ends before it"
    assert stored is not None
    assert now is not None
    if "kind" in fields or "name" in fields:
        return f"{_named(now)} replaces {_named(stored)}"
    changes = []
    later = now.start_ns - stored.start_ns
    longer = (now.end_ns - now.start_ns) - (stored.end_ns - stored.start_ns)
    if later:
        changes.append(f"starts {_by(later)}")
    if longer and later:
        changes.append(f"takes {abs(longer):,} ns {'more' if longer > 0 else 'less'}")
    elif longer:
        changes.append(f"ends {_by(longer)}")
    if "bytes" in fields:
        more = now.bytes - stored.bytes
        changes.append(f"moves {abs(more):,} B {'more' if more > 0 else 'less'}")
    changes += [
        f"has {field} {getattr(now, field) or 'none'} and had {getattr(stored, field) or 'none'}"
        for field in ("cause", "gpu", "iteration")
        if field in fields
    ]
    return f"{_named(now)} {', '.join(changes)}"


def _by(nanoseconds: int) -> str:
    return f"{abs(nanoseconds):,} ns {'later' if nanoseconds > 0 else 'earlier'}"


def _side_by_side(events: EventDifference) -> Iterator[str]:
    """One line per field, stored and current, with differences marked; long names are shortened."""
    widest = (WIDTH - 4 - _LABELS - 4) // 2
    heads = "only stored" if events.now is None else "stored", "only now" if events.stored is None else "now"
    both = (events.stored, events.now)
    shown = [field for field in _FIELDS if field in _ALWAYS or any(getattr(event, field, 0) for event in both)]
    fields = [(field.removesuffix("_ns"), _cell(events.stored, field), _cell(events.now, field)) for field in shown]
    rows = [("", *heads), *fields]
    width = min(widest, max(len(row[1]) for row in rows))
    for name, stored, now in rows:
        mark = ">" if name and stored != now else " "
        yield f"  {mark} {name.ljust(_LABELS)}{_cut(stored, width).ljust(width)}  {_cut(now, widest)}".rstrip()


def _cell(event: Span | None, field: str) -> str:
    if event is None:
        return "-"
    value = getattr(event, field)
    if field == "kind":
        return event.label
    return f"{value:,} {_UNITS[field]}" if field in _UNITS else str(value)


def _cut(text: str, width: int) -> str:
    """The text, without its middle if it is too long: names of blocks differ at their beginning and end."""
    if len(text) <= width:
        return text
    head = (width - 2) // 2
    return f"{text[:head]}..{text[len(text) - (width - 2 - head) :]}"


def _event(event: Span) -> str:
    size = f", {event.bytes:,} B" if event.bytes else ""
    return f"{_named(event)}: {event.start_ns:,} to {event.end_ns:,} ns{size}"


def _named(event: Span) -> str:
    return f"{event.label} {_cut(event.name, _NAMES)}".rstrip()


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
