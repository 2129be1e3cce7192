"""Finds the first event in which two timelines differ.

Each stream has a first event that differs. The result is the event of the stream that diverges earliest. A stream
diverges at the earlier of the two end times if the events have the same start and differ only in what is known at
their end (the end; for a wait also its name and cause), otherwise at the earlier start. So a wait that is longer
because of a longer kernel does not hide that kernel. Ties are broken by: work before waits, ends before starts, then
the order of streams.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from simgpu.timeline.model import Span
from simgpu.timeline.streams import track_order

_SHOWN_BEFORE = 3


@dataclass(frozen=True, slots=True)
class EventDifference:
    """The first event that differs.

    at_ns: time at which the timelines diverge
    stored, now: the event in each timeline; None if its stream has no more events
    before: the last events before it on the stream, equal in both
    equal: number of equal events before it on the stream
    """

    stream: str
    at_ns: int
    stored: Span | None
    now: Span | None
    before: tuple[Span, ...]
    equal: int

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that differ; empty if one timeline lacks the event."""
        if self.stored is None or self.now is None:
            return ()
        # The engine or memory of a span is part of its kind's label.
        names = (name.replace("resource", "kind") for name in Span._fields)
        pairs = zip(names, self.stored, self.now, strict=True)
        return tuple(dict.fromkeys(name for name, stored, now in pairs if stored != now))


def first_difference(stored: Iterable[Span], now: Iterable[Span]) -> EventDifference | None:
    """The first event in which two timelines differ; None if all streams are equal."""
    then, later = _by_stream(stored), _by_stream(now)
    differences = [_on_stream(stream, then.get(stream, []), later.get(stream, [])) for stream in then | later]
    return min((each for each in differences if each is not None), key=_order, default=None)


def _by_stream(events: Iterable[Span]) -> dict[str, list[Span]]:
    streams: dict[str, list[Span]] = {}
    for event in events:
        streams.setdefault(event.stream, []).append(event)
    return streams


def _on_stream(stream: str, stored: list[Span], now: list[Span]) -> EventDifference | None:
    if stored == now:
        return None
    place, one, other = next(
        (place, one, other) for place, (one, other) in enumerate(zip_longest(stored, now)) if one != other
    )
    before = tuple(stored[max(0, place - _SHOWN_BEFORE) : place])
    return EventDifference(stream, _diverged_at(one, other), one, other, before, place)


def _diverged_at(stored: Span | None, now: Span | None) -> int:
    """The time at which the two timelines diverge at this event of a stream."""
    if stored is None or now is None:
        event = stored or now
        assert event is not None
        return event.end_ns if event.kind.is_stall else event.start_ns
    if _same_start(stored, now):
        return min(stored.end_ns, now.end_ns)
    return min(stored.start_ns, now.start_ns)


def _same_start(stored: Span, now: Span) -> bool:
    return _known_at_start(stored) == _known_at_start(now)


def _known_at_start(event: Span) -> Span:
    """The event with only the fields that are known when it starts."""
    begun = event._replace(end_ns=0)
    return begun._replace(name="", cause="", iteration=0) if event.kind.is_stall else begun


def _order(difference: EventDifference) -> tuple[int, bool, bool, tuple[int, int, str, int]]:
    events = [event for event in (difference.stored, difference.now) if event is not None]
    waits = all(event.kind.is_stall for event in events)
    begins = len(events) < 2 or not _same_start(*events)
    return difference.at_ns, waits, begins, track_order(difference.stream)
