"""Streams executing a program in order on SimPy's clock.

Lives here: what happens at one instant and in which order. Does not live here: the translation of programs
(`simgpu.machine.code`), engines and links (`simgpu.machine.engines`), or what is made of the record
(`simgpu.machine.record`).

Only work takes time, and only work is an event of SimPy: a stream that runs a kernel or a copy has one timer under way,
a stream that waits has none. When the last timer of an instant has fired, the instant is settled: completions, then
releases, then signals, then acquires, then starts; within each by GPU, compute before d2h before h2d before host.
Nothing depends on the order in which SimPy happens to fire timers of one instant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import simpy

from simgpu.machine.code import ACQUIRE, AWAIT, COPY, END, LAUNCH, RELEASE, SIGNAL, MachineCode, Op, target_of
from simgpu.machine.engines import Engines
from simgpu.machine.memory import Memory

#: Limit of `Executor._run` for a stream that is alone at its instant.
_EVERYTHING = COPY


class Stall(NamedTuple):
    """A stream waited from `start` to `end` at op `pc` of a segment; what for is what that op says."""

    stream: int
    segment: int
    pc: int
    start: int
    end: int
    iteration: int


@dataclass(slots=True, eq=False)
class Stream:
    """Where one stream is. starts, ends: of its timed ops, in program order. number: repetitions of its present
    segment so far, over all iterations."""

    rank: int
    on_timer: Callable[[simpy.Event], None]
    done: Callable[[], None]
    ops: list[Op]
    pc: int = 0
    segment: int = 0
    repetition: int = 0
    number: int = 0
    iteration: int = 0
    finished: bool = False
    stalled_since: int = -1
    direction: int = -1
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


class Executor:
    """Runs machine code for a number of iterations.

    `snapshots[i]` is the device pool's state when the first stream, which computes, ended iteration i.
    """

    def __init__(
        self,
        env: simpy.Environment,
        code: MachineCode,
        engines: Engines,
        memories: tuple[Memory, Memory],
        iterations: int,
    ) -> None:
        self.env = env
        self.code = code
        self.engines = engines
        self.memories = memories
        self.iterations = iterations
        self.counts = dict.fromkeys(code.signaller, 0)
        self.waiters: dict[int, list[tuple[Stream, int]]] = {}
        self.completed: list[Stream] = []
        self.stalls: list[Stall] = []
        self.snapshots: list[object] = []
        self.streams = [self._make_stream(rank) for rank in range(len(code.streams))]
        self.ready = list(self.streams)

    def _make_stream(self, rank: int) -> Stream:
        env, completed = self.env, self.completed

        def done() -> None:
            completed.append(stream)
            if env.peek() > env.now:
                self._settle()

        stream = Stream(rank, lambda _: done(), done, self.code.segments[rank][0].ops)
        return stream

    def run(self) -> None:
        """Run until nothing can happen any more."""
        self._settle()
        self.env.run()

    # --- one instant ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let everything happen that can happen now."""
        now: int = self.env.now  # type: ignore[assignment]
        if self.completed:
            self._complete(now)
        ready = self.ready
        while ready or self._grant(now):
            if len(ready) == 1:
                stream, limit = ready[0], _EVERYTHING
            else:
                stream = min(ready, key=_urgency)
                limit = stream.ops[stream.pc][0]
            # What waited in line is granted before what is asked for now, and after what is given back now.
            if stream.ops[stream.pc][0] >= ACQUIRE and self._grant(now):
                continue
            self._run(stream, limit, now)

    def _complete(self, now: int) -> None:
        completed = self.completed
        if len(completed) > 1:
            completed.sort(key=_rank)
        for stream in completed:
            stream.ends.append(now)
            if stream.direction >= 0:
                following = self.engines.finished(stream.direction)
                stream.direction = -1
                if following is not None:
                    self._begin_copy(following, now)
            stream.pc += 1
            self.ready.append(stream)
        completed.clear()

    def _grant(self, now: int) -> bool:
        """Serve the queues of memories that got bytes back; returns whether a stream was freed."""
        granted = False
        for memory in self.memories:
            if not memory.freed:
                continue
            memory.freed = False
            while memory.waiting and memory.pool.acquire(memory.waiting[0][1]):
                stream, _ = memory.waiting.popleft()
                memory.sample(now)
                self._resume(stream, now)
                stream.pc += 1
                granted = True
        return granted

    def _run(self, stream: Stream, limit: int, now: int) -> None:
        """Execute a ready stream's ops up to the code `limit`, as long as they take no time and free nobody else."""
        ops, pc = stream.ops, stream.pc
        while True:
            op = ops[pc]
            code = op[0]
            if code > limit:
                break
            if code == LAUNCH:
                stream.starts.append(now)
                self.env.timeout(op[1]).callbacks.append(stream.on_timer)
                self.ready.remove(stream)
                break
            if code == RELEASE:
                memory = op[1]
                memory.pool.release(op[2])
                memory.sample(now)
                pc += 1
                if memory.waiting:
                    memory.freed = True
                    break
            elif code == ACQUIRE:
                memory = op[1]
                if memory.waiting or not memory.pool.acquire(op[2]):
                    memory.waiting.append((stream, op[2]))
                    self._block(stream, now)
                    break
                memory.sample(now)
                pc += 1
            elif code == AWAIT:
                target = target_of(op, stream.number, stream.iteration)
                if self.counts[op[1]] < target:
                    self.waiters.setdefault(op[1], []).append((stream, target))
                    self._block(stream, now)
                    break
                pc += 1
            elif code == SIGNAL:
                pc += 1
                self.counts[op[1]] += 1
                if op[1] in self.waiters and self._wake(op[1], now):
                    break
            elif code == COPY:
                stream.direction = op[1]
                self.ready.remove(stream)
                if self.engines.issue(stream, op[1], op[2]):
                    stream.starts.append(now)
                else:
                    stream.stalled_since = now
                break
            else:
                if not self._next_segment(stream):
                    self.ready.remove(stream)
                    return
                ops, pc = stream.ops, 0
        stream.pc = pc

    def _next_segment(self, stream: Stream) -> bool:
        """Go on to the next repetition, segment or iteration; False if all is done."""
        segments = self.code.segments[stream.rank]
        stream.repetition += 1
        if stream.repetition == segments[stream.segment].repeat:
            stream.repetition = 0
            stream.segment += 1
            if stream.segment == len(segments):
                stream.segment = 0
                stream.iteration += 1
                if stream.rank == 0:
                    self.snapshots.append(self.memories[0].pool.state())
                if stream.iteration == self.iterations:
                    stream.finished = True
                    return False
        here = segments[stream.segment]
        stream.number = stream.iteration * here.repeat + stream.repetition
        stream.ops = here.ops
        stream.pc = 0
        return True

    # --- waiting --------------------------------------------------------------------------------------------

    def _block(self, stream: Stream, now: int) -> None:
        self.ready.remove(stream)
        stream.stalled_since = now

    def _resume(self, stream: Stream, now: int) -> None:
        self._note_stall(stream, now)
        self.ready.append(stream)

    def _note_stall(self, stream: Stream, now: int) -> None:
        since = stream.stalled_since
        if since >= 0 and now > since:
            self.stalls.append(Stall(stream.rank, stream.segment, stream.pc, since, now, stream.iteration))
        stream.stalled_since = -1

    def _wake(self, event: int, now: int) -> bool:
        count = self.counts[event]
        waiting = self.waiters.pop(event)
        still = [(stream, target) for stream, target in waiting if target > count]
        if still:
            self.waiters[event] = still
        for stream, target in waiting:
            if target <= count:
                self._resume(stream, now)
                stream.pc += 1
        return len(still) < len(waiting)

    def _begin_copy(self, stream: Stream, now: int) -> None:
        self._note_stall(stream, now)
        stream.starts.append(now)


def _urgency(stream: Stream) -> tuple[int, int]:
    code = stream.ops[stream.pc][0]
    return (LAUNCH if code == COPY else code, stream.rank)


def _rank(stream: Stream) -> int:
    return stream.rank


__all__ = ["END", "Executor", "Stall", "Stream"]
