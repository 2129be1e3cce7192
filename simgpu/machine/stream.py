"""Where one stream is in its program, and the one timer by which its work ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy
from simpy.events import NORMAL

from simgpu.machine.code import Op
from simgpu.machine.engines import Engines
from simgpu.machine.memory import Memory

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
    """Stands in for `Stream.fire` until the executor has given the stream its own."""


class _Timer(simpy.Event):
    """An event that can be scheduled again and again, unlike SimPy's timeouts."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
