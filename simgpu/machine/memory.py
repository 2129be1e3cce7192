"""A memory over time: a pool, the queue of streams that wait for it, and samples of its use.

Lives here: `Memory`. Does not live here: which bytes go where (`simgpu.memory`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from simgpu.memory.pool import Pool
from simgpu.timeline.model import MemoryCurve

if TYPE_CHECKING:
    from simgpu.machine.executor import Stream


@dataclass(slots=True, eq=False)
class Memory:
    """waiting: streams whose request has not been granted, first in, first out. freed: whether memory came back
    since the head of the queue was last tried. times, live, used: samples, one per change."""

    name: str
    pool: Pool[Any]
    waiting: deque[tuple[Stream, Any]] = field(default_factory=deque)
    freed: bool = False
    times: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)

    def sample(self, now: int) -> None:
        """Note the use at this time."""
        self.times.append(now)
        self.live.append(self.pool.live)
        self.used.append(self.pool.used)

    def curve(self) -> MemoryCurve:
        """The samples as columns."""
        times, live, used = (np.array(values, dtype=np.int64) for values in (self.times, self.live, self.used))
        return MemoryCurve(times, live, used, self.pool.capacity)
