"""The mutable state of a run: streams and memories."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from simpy.events import NORMAL

from simgpu.machine.code import Op
from simgpu.memory.pool import Pool, Request
from simgpu.program.instructions import DEVICE
from simgpu.timeline.model import SHARED, Column, MemoryCurve

#: What a stream's running work holds, see `Stream.holds`.
HOLDS_NOTHING, HOLDS_ENGINE, HOLDS_DRAM = -1, 0, 1


class Timer(simpy.Event):
    """An event that can be scheduled again and again, unlike SimPy's timeouts."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None


def unset(*_: Any) -> None:
    """Does nothing: the default of callbacks that are set once both sides exist."""


@dataclass(slots=True, eq=False)
class Stream:
    """The state of one stream.

    pc: position in `ops` of the present segment. number: repetitions of that segment so far, over all iterations.
    target: the count that the event it awaits must reach. stalled_since: when its wait began, -1 without one.
    holds: `HOLDS_ENGINE` while its copy is issued, `HOLDS_DRAM` while a kernel takes bandwidth from copies.
    starts: when its copies and driven kernels started; ends: when its kernels and copies ended; both in program order.
    fire: called when the running work has ended. timer: the one SimPy event that calls it. callbacks: that event's.
    memory: of its GPU, for the GPU's first stream, else None; snapshots: states of its pool at each iteration's end.
    """

    env: simpy.Environment
    rank: int
    ops: list[Op]
    memory: TimedMemory | None
    pc: int = 0
    segment: int = 0
    repetition: int = 0
    number: int = 0
    iteration: int = 0
    target: int = 0
    holds: int = HOLDS_NOTHING
    stalled_since: int = -1
    finished: bool = False
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    snapshots: list[object] = field(default_factory=list)
    fire: Callable[..., None] = unset
    callbacks: Any = ()
    timer: Timer = field(init=False)

    def __post_init__(self) -> None:
        self.timer = Timer(self.env)

    def arm(self, delay: int) -> None:
        """Call `fire` after a delay in nanoseconds."""
        self.env.schedule(self.timer, NORMAL, delay)
        self.timer.callbacks = self.callbacks


class TimedMemory:
    """A memory over time: its pool, the streams that wait for it, and a log of its use.

    waiting: streams whose request has not been granted, first in, first out. times, changes: the log, one entry per
    change: when, and the number of the request that was granted or released. The log holds only integers, and sizes
    are filled in when the curve is drawn, because a run writes it at every kernel.
    """

    __slots__ = ("_carved", "_log", "changes", "name", "pool", "requests", "times", "waiting")

    def __init__(self, name: str, pool: Pool) -> None:
        self.name = name
        self.pool = pool
        self.waiting: deque[Stream] = deque()
        self.times: list[int] = []
        self.changes: list[int] = []
        self._log: tuple[Column, Column] | None = None
        self.requests: list[Request] = []
        self._carved: list[int] = []

    def number(self, request: Request, carved: int = 0) -> int:
        """The number of a request in the log; its release has the next number.

        carved: bytes of buddy memory that its blocks own.
        """
        self.requests.append(request)
        self._carved.append(carved)
        return 2 * len(self.requests) - 2

    def log(self, now: int, number: int) -> None:
        """Note that a request was granted or released."""
        self.times.append(now)
        self.changes.append(number)

    def curve(self, name: str, gpu: int) -> MemoryCurve:
        """The use over time, with the memory's name and GPU in the timeline."""
        sizes = np.array([request[:2] for request in self.requests], dtype=np.int64).reshape(-1, 2)
        times, changes = self._entries()
        which, sign = changes >> 1, 1 - 2 * (changes & 1)
        live, used = (np.cumsum(column[which] * sign) for column in sizes.T)
        return MemoryCurve(times, live, used, self.pool.capacity, name, gpu)

    def write_log(self, times: Column, changes: Column) -> None:
        """Set the whole log, which replaces `times` and `changes`."""
        self._log = times, changes

    def _entries(self) -> tuple[Column, Column]:
        """The log as columns."""
        return self._log or (np.array(self.times, dtype=np.int64), np.array(self.changes, dtype=np.int64))

    def buddy_peak(self) -> int:
        """The most bytes of buddy memory that blocks in this memory owned at once."""
        if not any(self._carved):
            return 0
        _, changes = self._entries()
        owned = np.array(self._carved, dtype=np.int64)[changes >> 1] * (1 - 2 * (changes & 1))
        return int(np.cumsum(owned).max(initial=0))


class Memories:
    """The memories of a run: one of each GPU, and those that all GPUs share, by name.

    all: in the order in which their queues are served: the GPUs', the host's, then others. names: the GPUs' name, then
    the others'.
    """

    def __init__(self, devices: Sequence[TimedMemory], shared: Mapping[str, TimedMemory]) -> None:
        self.devices = tuple(devices)
        self.shared = dict(shared)
        self.all = (*self.devices, *self.shared.values())
        self.names = (DEVICE, *self.shared)

    def of(self, gpu: int, name: str) -> TimedMemory:
        """The memory of that name that the streams of a GPU reach."""
        return self.devices[gpu] if name == DEVICE else self.shared[name]

    def position(self, memory: TimedMemory) -> int:
        """The position of a memory's name in `names`."""
        if memory in self.devices:
            return 0
        return 1 + list(self.shared.values()).index(memory)

    def curves(self) -> tuple[MemoryCurve, ...]:
        """The use of each over time."""
        own = (memory.curve(DEVICE, gpu) for gpu, memory in enumerate(self.devices))
        return (*own, *(memory.curve(name, SHARED) for name, memory in self.shared.items()))
