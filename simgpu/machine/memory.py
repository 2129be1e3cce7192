"""A memory over time: a pool, the queue of streams that wait for it, and a log of its use."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from simgpu.memory.pool import Pool, Request
from simgpu.timeline.model import MemoryCurve

if TYPE_CHECKING:
    from simgpu.machine.stream import Stream


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
