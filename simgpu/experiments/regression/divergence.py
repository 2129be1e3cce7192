"""Where two timelines part: the first event that differs.

Streams are gone through one by one, event by event, up to the first that differs. Of these, the one counts at which
the two histories part earliest: at the earlier of the two ends where only the end differs (and of a wait what is known
when it ends, what was waited for), otherwise at the earlier start. A wait that begins before the kernel that it waits
for, and is longer because that kernel is, therefore does not hide it. Of several at one instant, work comes before
waiting, what ends there before what begins there, and then streams in their order.
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

    at_ns: when the histories part. stored, now: the event of each, None where its stream has no more of them. before:
    the last events ahead of it on the stream, equal in both; equal: how many those are.
    """

    stream: str
    at_ns: int
    stored: Span | None
    now: Span | None
    before: tuple[Span, ...]
    equal: int

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what differs of an event that is in both."""
        if self.stored is None or self.now is None:
            return ()
        pairs = zip(Span._fields, self.stored, self.now, strict=True)
        return tuple(name for name, stored, now in pairs if stored != now)


def first_difference(stored: Iterable[Span], now: Iterable[Span]) -> EventDifference | None:
    """The first event that differs of two timelines, None where all streams are equal."""
    then, later = _by_stream(stored), _by_stream(now)
    found = [_on_stream(stream, then.get(stream, []), later.get(stream, [])) for stream in then | later]
    return min((each for each in found if each is not None), key=_order, default=None)


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
    return EventDifference(stream, _parting(one, other), one, other, before, place)


def _parting(stored: Span | None, now: Span | None) -> int:
    """When the two histories part at this event of one stream."""
    if stored is None or now is None:
        event = stored or now
        assert event is not None
        return event.end_ns if event.kind.is_stall else event.start_ns
    if _part_at_the_end(stored, now):
        return min(stored.end_ns, now.end_ns)
    return min(stored.start_ns, now.start_ns)


def _part_at_the_end(stored: Span, now: Span) -> bool:
    return _at_the_start(stored) == _at_the_start(now)


def _at_the_start(event: Span) -> Span:
    """What of an event is known when it begins."""
    begun = event._replace(end_ns=0)
    return begun._replace(name="", cause="", iteration=0) if event.kind.is_stall else begun


def _order(found: EventDifference) -> tuple[int, bool, bool, tuple[int, int, str, int]]:
    events = [event for event in (found.stored, found.now) if event is not None]
    waits = all(event.kind.is_stall for event in events)
    begins = len(events) < 2 or not _part_at_the_end(*events)
    return found.at_ns, waits, begins, track_order(found.stream)
