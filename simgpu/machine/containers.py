"""Memories over time: containers whose requests wait first in, first out.

What a memory can hold is decided by its pool (`simgpu.memory`); a container adds the queue and a log of its use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import simpy

from simgpu.machine.instants import InstantOrder, InstantPhase
from simgpu.memory.caching.pool import CachingPool
from simgpu.memory.pool import Pool, Request
from simgpu.program.instructions import DEVICE
from simgpu.timeline.model import SHARED, Column, MemoryCurve


class BlockRequest(NamedTuple):
    """Memory for some blocks, as their pool prepared it. carved: bytes of buddy memory that they own."""

    prepared: Request
    carved: int = 0


#: Called with the time of a request, whether it is granted (True), refused for now (None) or a release (False), and the
#: request.
Observer = Callable[[int, bool | None, BlockRequest], None]


class Waiting(NamedTuple):
    """What a stream, by its rank, requests, and the event that succeeds when it is granted."""

    stream: int
    request: BlockRequest
    granted: simpy.Event


class Cause(NamedTuple):
    """What ended a wait: a stream, and its work before, as a position in the timeline's names; -1 for none."""

    stream: int
    name: int


NOBODY = Cause(-1, -1)


class Container:
    """A memory. Not SimPy's container: a request is for several blocks at once, decided by an allocator.

    waiting: requests that are not yet granted, first in, first out. observe: called for each request and release. Lists
    of times, live and used bytes have one entry for each change, and so has that of reserved bytes, if the memory has
    PyTorch's allocator; refused requests may change these too, as segments without blocks are freed. buddy_peak: the
    most bytes of buddy memory that its blocks owned at once.

    >>> from simgpu.memory.pool import CountingPool
    >>> memory = Container("device", CountingPool(100))
    >>> some = BlockRequest(memory.pool.prepare([0], [70]))
    >>> memory.acquire(some, 0), memory.acquire(some, 5), memory.release(some, 9)
    (True, False, None)
    >>> memory.times, memory.live
    ([0, 9], [70, 0])
    """

    def __init__(self, name: str, pool: Pool, observe: Observer | None = None) -> None:
        self.name = name
        self.pool = pool
        self.observe = observe
        self.waiting: deque[Waiting] = deque()
        self.times: list[int] = []
        self.live: list[int] = []
        self.used: list[int] = []
        self.reserved: list[int] | None = [] if isinstance(pool, CachingPool) else None
        self.carved = self.buddy_peak = 0

    def acquire(self, request: BlockRequest, now: int) -> bool:
        """Acquire memory, or nothing and return False."""
        acquired = self.pool.acquire(request.prepared)
        if self.observe is not None:
            self.observe(now, True if acquired else None, request)
        if acquired:
            self._changed(now, request.carved)
        elif isinstance(self.pool, CachingPool) and self.pool.reserved != (self.reserved or [0])[-1]:
            self.log(now)
        return acquired

    def release(self, request: BlockRequest, now: int) -> None:
        """Release memory."""
        self.pool.release(request.prepared)
        if self.observe is not None:
            self.observe(now, False, request)
        self._changed(now, -request.carved)

    def log(self, now: int) -> None:
        """Note the bytes in use."""
        self.times.append(now)
        self.live.append(self.pool.live)
        self.used.append(self.pool.used)
        if self.reserved is not None and isinstance(self.pool, CachingPool):
            self.reserved.append(self.pool.reserved)

    @property
    def levels(self) -> Column:
        """The log as columns: times, live and used bytes, and with PyTorch's allocator reserved bytes."""
        more = [] if self.reserved is None else [self.reserved]
        return np.array([self.times, self.live, self.used, *more], dtype=np.int64)

    def _changed(self, now: int, carved: int) -> None:
        self.log(now)
        self.carved += carved
        self.buddy_peak = max(self.buddy_peak, self.carved)


class Memories:
    """The memories of a run: one of each GPU, and those that all GPUs share, by name.

    all: in the order in which their queues are served: the GPUs', the host's, then others. names: the GPUs' name, then
    the others'.
    """

    def __init__(self, devices: Sequence[Container], shared: Mapping[str, Container]) -> None:
        self.devices = tuple(devices)
        self.shared = dict(shared)
        self.all = (*self.devices, *self.shared.values())
        self.names = (DEVICE, *self.shared)
        self._released = NOBODY
        self._granting = False

    def of(self, gpu: int, name: str) -> Container:
        """The memory of that name that the streams of a GPU reach."""
        return self.devices[gpu] if name == DEVICE else self.shared[name]

    def released(self, env: InstantOrder, by: Cause) -> None:
        """Memory for which a stream waits was released: the queues are served after the releases of this instant."""
        self._released = by
        if not self._granting:
            self._granting = True
            env.process(self._grant(env))

    def curves(self, levels: Iterable[Column] | None = None) -> tuple[MemoryCurve, ...]:
        """The use of each over time. levels: None for those that the containers logged."""
        ids = [(DEVICE, gpu) for gpu in range(len(self.devices))] + [(name, SHARED) for name in self.shared]
        curves = []
        logs = levels or [each.levels for each in self.all]
        for memory, (name, gpu), log in zip(self.all, ids, logs, strict=True):
            reserved = None if memory.reserved is None else log[3]
            curves.append(MemoryCurve(log[0], log[1], log[2], memory.pool.capacity, name, gpu, reserved))
        return tuple(curves)

    def _grant(self, env: InstantOrder) -> Generator[simpy.Event, Any, None]:
        yield env.turn(InstantPhase.GRANT)
        self._granting = False
        for memory in self.all:
            while memory.waiting and memory.acquire(memory.waiting[0].request, env.instant):
                memory.waiting.popleft().granted.succeed(self._released)
