"""Where one stream is in its program, and the one timer by which its work ends.

A memory over time: a pool, the queue of streams that wait for it, and a log of its use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
import simpy
from simpy.events import NORMAL
from simgpu.machine.code import Op
from simgpu.machine.engines import Engines
from collections import deque
from typing import TYPE_CHECKING
import numpy as np
from simgpu.memory.pool import Pool, Request
from simgpu.timeline.model import MemoryCurve


#: `Stream.direction` while a kernel runs that takes DRAM bandwidth which copies then lack.
TAKES_DRAM = 2


class Stream:
    """Where one stream is.

    ends: when its kernels and copies ended, in program order; starts: when its copies began to be served, likewise.
    number: repetitions of its present segment so far, over all iterations. direction: of the copy it issued, -1
    while it runs a kernel, `TAKES_DRAM` where copies feel that. stalled_since: -1 while it does not wait. fire: what
    is called when the work under way has ended; timer: the one SimPy event that calls it, scheduled again and again.
    engines: of its GPU. memory: that of its GPU where it is the first stream of it, else None; snapshots: states of
    that memory's pool when the stream ended each iteration.
    """

    __slots__ = (
        "callbacks",
        "direction",
        "ends",
        "engines",
        "env",
        "finished",
        "fire",
        "iteration",
        "memory",
        "number",
        "ops",
        "pc",
        "rank",
        "repetition",
        "segment",
        "snapshots",
        "stalled_since",
        "starts",
        "target",
        "timer",
    )

    def __init__(
        self, env: simpy.Environment, rank: int, ops: list[Op], engines: Engines, memory: Memory | None
    ) -> None:
        self.env = env
        self.rank = rank
        self.ops = ops
        self.engines = engines
        self.memory = memory
        self.snapshots: list[object] = []
        self.pc = 0
        self.segment = 0
        self.repetition = 0
        self.number = 0
        self.iteration = 0
        self.target = 0
        self.direction = -1
        self.stalled_since = -1
        self.finished = False
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.timer = _Timer(env)
        self.fire: Callable[..., None] = _nothing
        self.callbacks: Any = ()

    def arm(self, delay: int) -> None:
        """Let `fire` be called after a delay in nanoseconds."""
        self.env.schedule(self.timer, NORMAL, delay)
        self.timer.callbacks = self.callbacks


def _nothing() -> None:
    """Stands in for `Stream.fire` until the simulator has given the stream its own."""


class _Timer(simpy.Event):
    """An event that can be scheduled again and again, unlike SimPy's timeouts."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None


class Memory:
    """One space of the machine.

    waiting: streams whose request has not been granted, first in, first out. times, changes: the log, one entry per
    change: when, and the number of the request that was granted or given back. The log holds only whole numbers, and
    sizes are filled in when the curve is drawn: a run writes it at every kernel.
    """

    __slots__ = ("_carved", "_requests", "changes", "name", "pool", "times", "waiting")

    def __init__(self, name: str, pool: Pool) -> None:
        self.name = name
        self.pool = pool
        self.waiting: deque[Stream] = deque()
        self.times: list[int] = []
        self.changes: list[int] = []
        self._requests: list[Request] = []
        self._carved: list[int] = []

    def number(self, request: Request, carved: int = 0) -> int:
        """The number of a request in the log; the number after it stands for giving it back.

        carved: bytes of buddy memory that its blocks own.
        """
        self._requests.append(request)
        self._carved.append(carved)
        return 2 * len(self._requests) - 2

    def log(self, now: int, number: int) -> None:
        """Note that a request was granted or given back."""
        self.times.append(now)
        self.changes.append(number)

    def curve(self) -> MemoryCurve:
        """The use over time."""
        count = len(self._requests)
        live = np.fromiter((request[0] for request in self._requests), dtype=np.int64, count=count)
        used = np.fromiter((request[1] for request in self._requests), dtype=np.int64, count=count)
        changes = np.fromiter(self.changes, dtype=np.int64, count=len(self.changes))
        which, sign = changes >> 1, 1 - 2 * (changes & 1)
        return MemoryCurve(
            np.fromiter(self.times, dtype=np.int64, count=len(self.times)),
            np.cumsum(live[which] * sign),
            np.cumsum(used[which] * sign),
            self.pool.capacity,
        )

    def buddy_peak(self) -> int:
        """Bytes of buddy memory that blocks in this memory owned at most."""
        if not any(self._carved):
            return 0
        changes = np.array(self.changes, dtype=np.int64)
        owned = np.array(self._carved, dtype=np.int64)[changes >> 1] * (1 - 2 * (changes & 1))
        return int(np.cumsum(owned).max(initial=0))
