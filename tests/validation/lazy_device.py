"""A device without a clock of its own: it does what it was asked to in any order that its events allow.

Each stream is a queue. Nothing of it happens before the host waits for an event or asks whether it is over; then the
streams go on in an order drawn at random. So whatever must happen before something else has to be said by events.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any


@dataclass(eq=False)
class Buffer:
    """Memory, or a part of it from the beginning."""

    nbytes: int
    number: int
    base: Buffer | None = None

    def __getitem__(self, part: slice) -> Buffer:
        assert part.start is None
        assert part.stop <= self.nbytes
        return Buffer(part.stop, self.number, self.base or self)


@dataclass(eq=False)
class LazyEvent:
    device: LazyDevice
    at: int | None = None

    def is_done(self) -> bool:
        self.device.go_on(self.device.random.randrange(4))
        return self.at is not None

    def synchronize(self) -> None:
        while self.at is None:
            assert self.device.go_on(1), "the host waits for what never happens"

    def ns_since(self, earlier: LazyEvent) -> int:
        self.synchronize()
        earlier.synchronize()
        assert self.at is not None
        assert earlier.at is not None
        return self.at - earlier.at


@dataclass(eq=False)
class LazyStream:
    device: LazyDevice
    role: str
    queue: deque[tuple[str, Any]] = field(default_factory=deque)
    requested: int = 0

    def copy(self, target: Buffer, source: Buffer) -> None:
        assert target.nbytes == source.nbytes
        self._ask(("copy", target, source))

    def busy(self, ns: int) -> None:
        self._ask(("busy", ns))

    def _ask(self, what: tuple[Any, ...]) -> None:
        self.queue.append(("work", (self.role, self.requested, *what)))
        self.requested += 1

    def record(self) -> LazyEvent:
        event = LazyEvent(self.device)
        self.queue.append(("reach", event))
        return event

    def wait(self, event: LazyEvent) -> None:
        self.queue.append(("wait", event))

    def synchronize(self) -> None:
        self.record().synchronize()

    def step(self) -> bool:
        """Do the next thing, unless it has to wait."""
        if not self.queue:
            return False
        kind, what = self.queue[0]
        if kind == "wait" and what.at is None:
            return False
        self.queue.popleft()
        self.device.now += 1
        if kind == "reach":
            what.at = self.device.now
        elif kind == "work":
            role, number, name, *rest = what
            self.device.done.append((role, number, name, [getattr(each, "number", each) for each in rest]))
        return True


class LazyDevice:
    """limit: bytes of device memory that exist, beyond which `empty` fails.

    done: all work in the order it was done: stream, number in that stream, ``copy`` or ``busy``, and the numbers of
    target and source or the nanoseconds.
    """

    kind, name, torch_device = "cpu", "a lazy device", None

    def __init__(self, random: Random, limit: int | None = None) -> None:
        self.random = random
        self.limit = limit
        self.now = 0
        self.held = 0
        self.most = 0
        self.buffers = 0
        self.done: list[tuple[Any, ...]] = []
        self.streams: list[LazyStream] = []
        self.compute = self.new_stream("device")

    def new_stream(self, role: str) -> LazyStream:
        self.streams.append(LazyStream(self, role))
        return self.streams[-1]

    def go_on(self, steps: int) -> bool:
        """Let some streams go on; whether any could."""
        for _ in range(steps):
            streams = self.random.sample(self.streams, len(self.streams))
            if not any(stream.step() for stream in streams):
                return False
        return True

    def host_buffer(self, nbytes: int) -> Buffer:
        self.buffers += 1
        return Buffer(nbytes, self.buffers)

    def empty(self, nbytes: int) -> Buffer:
        if self.limit is not None and self.held + nbytes > self.limit:
            raise MemoryError("the lazy device is full")
        self.held += nbytes
        self.most = max(self.most, self.held)
        self.buffers += 1
        buffer = Buffer(nbytes, self.buffers)
        weakref.finalize(buffer, self._free, nbytes)
        return buffer

    def _free(self, nbytes: int) -> None:
        self.held -= nbytes

    def synchronize(self) -> None:
        while self.go_on(1):
            pass
        assert not any(stream.queue for stream in self.streams), "the device waits for what never happens"
