"""The order within an instant: SimPy's clock, with the machine's rule for what comes first.

What happens at one nanosecond happens in rounds. In a round, the link's events come first; then work ends, memory is
released, events are signalled, queued requests for memory are granted, new requests are made, and work starts. Within
each phase the streams follow their rank: by GPU, then compute, data, d2h, h2d, host, others by name. So results never
depend on the order in which simultaneous events were scheduled.

A stream takes its `turn` before it acts on what others see, and sets a `timer` for the end of its work. Work of no
duration ends in the next round, after everything else of this one. Plain SimPy has its place too: a timeout is an event
of the link, and what SimPy triggers itself (an event that succeeds, a request that a resource grants, a process that
begins) follows at once what caused it.
"""

from __future__ import annotations

from enum import IntEnum

import simpy
from simpy.events import NORMAL, EventPriority


class InstantPhase(IntEnum):
    """The phases of a round, in their order."""

    AT_ONCE = 0
    LINK = 1
    END = 2
    RELEASE = 3
    SIGNAL = 4
    GRANT = 5
    ACQUIRE = 6
    START = 7


class InstantOrder(simpy.Environment):
    """SimPy's environment, where SimPy's priorities are places: round, phase and rank in one integer.

    place = (round * phases + phase) * ranks + rank, counted anew at each instant.

    >>> env, order = InstantOrder(streams=2), []
    >>> def acts(name, phase, rank):
    ...     yield env.timer(5, rank)
    ...     yield env.turn(phase, rank)
    ...     order.append(name)
    >>> for name, phase, rank in (("start", InstantPhase.START, 0), ("release", InstantPhase.RELEASE, 1)):
    ...     _ = env.process(acts(name, phase, rank))
    >>> env.run()
    >>> order
    ['release', 'start']
    """

    def __init__(self, streams: int) -> None:
        super().__init__(initial_time=0)
        self._ranks = max(streams, 1)
        # Places in a round.
        self._round = len(InstantPhase) * self._ranks
        # Where the clock stands: programs begin as if an earlier round had just started their first work.
        self._place = InstantPhase.START * self._ranks
        self._happened = self._event(self._place, 0)
        # Whether the event that is being processed makes more than one process go on.
        self._others_wait = False
        self.step()

    @property
    def instant(self) -> int:
        """The time in whole nanoseconds."""
        return int(self._now)

    def turn(self, phase: InstantPhase, rank: int = 0) -> simpy.Event:
        """An event in this round, for a process to wait for.

        If nothing comes before it, it has been processed already, and SimPy lets the process go on at once.
        """
        if self.has_turn(phase, rank):
            return self._happened
        return self._event(self._in_round(phase, rank), 0)

    def has_turn(self, phase: InstantPhase, rank: int) -> bool:
        """Whether nothing comes before a stream's turn in this round; then the clock stands there, and it need not
        wait."""
        place = self._in_round(phase, rank)
        if self._queue and self._queue[0][:2] <= (self._now, place):
            return False
        self._place = place
        return True

    def timer(self, delay: int, rank: int) -> simpy.Event:
        """An event after a delay in nanoseconds, when the work of a stream ends."""
        return self._event(self._at_end(delay, rank), delay)

    def has_passed(self, delay: int, rank: int) -> bool:
        """Whether nothing comes before the work of a stream ends; then the clock stands there, and it need not wait.

        Asked by the process whose event is being processed, if no other process waits for the same event.
        """
        place, at = self._at_end(delay, rank), self._now + delay
        if self._others_wait or (self._queue and self._queue[0][:2] <= (at, place)):
            return False
        self._now, self._place = at, place
        return True

    def schedule(self, event: simpy.Event, priority: int = NORMAL, delay: float = 0) -> None:
        """Schedule an event of SimPy's own at its place, whatever `priority` SimPy gives it."""
        if isinstance(event, simpy.Timeout):
            place = self._first(int(delay)) + InstantPhase.LINK * self._ranks
        else:
            # Only `run(until=...)` gives these a delay: it ends before all that happens at that time, as SimPy's does.
            place = 0 if delay else self._place - self._place % self._round
        super().schedule(event, EventPriority(place), delay)

    def step(self) -> None:
        """Process the next event; those that follow at once leave the clock where their cause put it."""
        if self._queue:
            _, place, _, event = self._queue[0]
            self._others_wait = len(event.callbacks or ()) > 1
            if place % self._round >= self._ranks:
                self._place = place
        super().step()

    def _in_round(self, phase: InstantPhase, rank: int) -> int:
        return self._place - self._place % self._round + phase * self._ranks + rank

    def _at_end(self, delay: int, rank: int) -> int:
        return self._first(delay) + InstantPhase.END * self._ranks + rank

    def _first(self, delay: int) -> int:
        """The first place of the round in which a delay ends."""
        if delay:
            return 0
        here = self._place % self._round
        return self._place - here + (self._round if here >= InstantPhase.END * self._ranks else 0)

    def _event(self, place: int, delay: int) -> simpy.Event:
        event = simpy.Event(self)
        event._ok = True
        event._value = None
        super().schedule(event, EventPriority(place), delay)
        return event
