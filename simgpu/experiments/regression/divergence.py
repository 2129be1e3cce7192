"""Where two timelines diverge: the first event that differs.

Each stream has a first event that differs; the result is the one at which the histories diverge earliest. That is the
earlier of the two ends where only the end differs (for a wait also its cause, which is known when it ends), otherwise
the earlier start. So a wait that is longer because of a longer kernel does not hide that kernel. At the same instant
work comes before waits, ends before starts, and then streams in their order.
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

    at_ns: when the histories diverge.
    stored, now: the event of each timeline, None where its stream has no more events.
    before: the last events before it on the stream, equal in both. equal: the number of all equal events before it.
    """

    stream: str
    at_ns: int
    stored: Span | None
    now: Span | None
    before: tuple[Span, ...]
    equal: int

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that differ, of an event that is in both."""
        if self.stored is None or self.now is None:
            return ()
        pairs = zip(Span._fields, self.stored, self.now, strict=True)
        return tuple(name for name, stored, now in pairs if stored != now)


def first_difference(stored: Iterable[Span], now: Iterable[Span]) -> EventDifference | None:
    """The first event that differs of two timelines, None where all streams are equal."""
    then, later = _by_stream(stored), _by_stream(now)
    difference = [_on_stream(stream, then.get(stream, []), later.get(stream, [])) for stream in then | later]
    return min((each for each in difference if each is not None), key=_order, default=None)


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
    """When the two histories diverge at this event of one stream."""
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
    """The event with only those fields that are known when it starts."""
    begun = event._replace(end_ns=0)
    return begun._replace(name="", cause="", iteration=0) if event.kind.is_stall else begun


def _order(difference: EventDifference) -> tuple[int, bool, bool, tuple[int, int, str, int]]:
    events = [event for event in (difference.stored, difference.now) if event is not None]
    waits = all(event.kind.is_stall for event in events)
    begins = len(events) < 2 or not _same_start(*events)
    return difference.at_ns, waits, begins, track_order(difference.stream)
