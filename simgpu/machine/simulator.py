"""Streams executing a program in order on SimPy's clock.

Only work takes time, and only work is an event of SimPy: a stream that runs a kernel or a copy has one timer under way,
a stream that waits has none. When the last timer of an instant has fired, the instant is settled: completions, then
releases, then signals, then acquires, then starts; within each by GPU, then compute, data, d2h, h2d, host.
Nothing depends on the order in which SimPy happens to fire timers of one instant.

This is the loop that a simulation spends its time in. It therefore keeps to plain attributes, and notes what happened
as whole numbers in lists; names and sizes are filled in afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import NORMAL

from simgpu.hardware.spec import NodeSpec
from simgpu.machine.code import (
    ACQUIRE,
    AWAIT,
    COPY,
    DRAM_LAUNCH,
    DRIVEN_LAUNCH,
    LAUNCH,
    PASS,
    RELEASE,
    SIGNAL,
    MachineCode,
    Op,
)
from simgpu.machine.engines import engines_of
from simgpu.machine.stream import Memory
from simgpu.machine.stream import TAKES_DRAM, Stream

#: Limit of `Simulator._run` for a stream that is alone at its instant.
_EVERYTHING = DRIVEN_LAUNCH


class Simulator:
    """Runs machine code for a number of iterations.

    stalls: waits of positive length, seven numbers each: stream, segment, op, begin, end, iteration, and for memory the
    place in `givers` of the release that ended the wait, else -1. givers: releases that ended waits, three numbers
    each: stream, segment, op. memories: that of each GPU, then the host's. running: streams whose kernel or copy is
    under way. freed: whether memory that somebody waits for came back since the queues were last served.
    """

    def __init__(
        self,
        env: simpy.Environment,
        code: MachineCode,
        node: NodeSpec,
        memories: tuple[Memory, ...],
        iterations: int,
    ) -> None:
        self.env = env
        self.schedule = env.schedule
        self.code = code
        gpus = len(memories) - 1
        engines = engines_of(
            env, node, gpus, self.settle_if_last, demands_vary=code.demands_vary, buddy_flows=code.linked
        )
        self.memories = memories
        self.iterations = iterations
        self.counts = [0] * len(code.signaller)
        self.waiters: list[list[Stream]] = [[] for _ in code.signaller]
        self.completed: list[Stream] = []
        self.running = 0
        self.freed = False
        self.stalls: list[int] = []
        self.givers: list[int] = []
        self.giver = (-1, -1, -1)
        self.streams: list[Stream] = []
        for rank, (stream_id, segments) in enumerate(zip(code.streams, code.segments, strict=True)):
            gpu = stream_id.gpu
            first = rank == 0 or code.streams[rank - 1].gpu != gpu
            stream = Stream(env, rank, segments[0].ops, engines[gpu], memories[gpu] if first else None)
            self.streams.append(stream)
        self.ready = list(self.streams)
        for stream in self.streams:
            stream.fire = self._firing(stream)
            stream.callbacks = (stream.fire,)

    def _firing(self, stream: Stream) -> Callable[..., None]:
        """What happens when a stream's work has ended: the instant is settled unless more ends at it."""
        env, completed, ready, ended = self.env, self.completed, self.ready, stream.ends.append

        def fire(_: simpy.Event | None = None) -> None:
            self.running -= 1
            # With nothing under way, what is left of the instant are timers that no longer mean anything.
            if self.running and env.peek() <= env.now:
                completed.append(stream)
                return
            if completed:
                completed.append(stream)
                self.settle()
                return
            # One kernel or copy ends and no other: its stream can go on at once. SimPy's clock may hold fractions;
            # this one is whole, as every delay is.
            now: int = env.now  # type: ignore[assignment]
            ended(now)
            if stream.direction >= 0:
                self._let_go(stream, now)
            stream.pc += 1
            if self._run(stream, _EVERYTHING, now):
                ready.append(stream)
            if ready or self.freed:
                self.settle()

        return fire

    def run(self) -> None:
        """Run until nothing can happen any more."""
        self.settle()
        self.env.run()

    # --- one instant ----------------------------------------------------------------------------------------

    def settle_if_last(self) -> None:
        """Settle the instant if work has ended at it and no event of it is left."""
        if self.completed and self.env.peek() > self.env.now:
            self.settle()

    def settle(self) -> None:
        """Let everything happen that can happen now."""
        now: int = self.env.now  # type: ignore[assignment]  # whole, as in `fire`
        ready = self.ready
        if self.completed:
            self._complete(now)
        while True:
            if len(ready) == 1:
                stream = ready[0]
                # Even alone, it must not start anything before those are served whose memory it has given back.
                limit = SIGNAL if self.freed else _EVERYTHING
                code = stream.ops[stream.pc][0]
            elif ready:
                stream, code = _most_urgent(ready)
                limit = code
            elif self.freed and self._grant(now):
                continue
            else:
                return
            # What waited in line is granted before what is asked for now, and after what is given back now.
            if self.freed and code >= ACQUIRE and self._grant(now):
                continue
            if not self._run(stream, limit, now):
                ready.remove(stream)

    def _complete(self, now: int) -> None:
        completed = self.completed
        if len(completed) > 1:
            completed.sort(key=_rank)
        for stream in completed:
            stream.ends.append(now)
            if stream.direction >= 0:
                self._let_go(stream, now)
            stream.pc += 1
            self.ready.append(stream)
        completed.clear()

    def _let_go(self, stream: Stream, now: int) -> None:
        if stream.direction == TAKES_DRAM:
            stream.direction = -1
            stream.engines.take_dram(-stream.ops[stream.pc][2])
            return
        following = stream.engines.finished(stream.direction)
        stream.direction = -1
        if following is not None:
            self._note_stall(following, now)
            following.starts.append(now)

    def _grant(self, now: int) -> bool:
        """Serve the queues of memories that got bytes back; returns whether a stream was freed."""
        granted = self.freed = False
        for memory in self.memories:
            while memory.waiting:
                stream = memory.waiting[0]
                _, _, request, number = stream.ops[stream.pc]
                if not memory.pool.acquire(request):
                    break
                memory.waiting.popleft()
                memory.log(now, number)
                self.givers += self.giver
                self._resume(stream, now, len(self.givers) // 3 - 1)
                granted = True
        return granted

    def _run(self, stream: Stream, limit: int, now: int) -> bool:  # noqa: C901 - one branch per op, kept in one loop
        """Execute a ready stream's ops up to the code `limit`, as long as they take no time and free nobody else.

        Returns whether the stream could go on.
        """
        ops, pc = stream.ops, stream.pc
        while True:
            op = ops[pc]
            code = op[0]
            if code > limit:
                stream.pc = pc
                return True
            if code == LAUNCH:
                stream.pc = pc
                self.running += 1
                timer = stream.timer
                self.schedule(timer, NORMAL, op[1])
                timer.callbacks = stream.callbacks
                return False
            if code == RELEASE:
                pc += 1
                memory = op[1]
                memory.pool.release(op[2])
                memory.times.append(now)
                memory.changes.append(op[3])
                if memory.waiting:
                    self.freed = True
                    self.giver = (stream.rank, stream.segment, pc)
                    stream.pc = pc
                    return True
            elif code == ACQUIRE:
                memory = op[1]
                if memory.waiting or not memory.pool.acquire(op[2]):
                    memory.waiting.append(stream)
                    stream.pc = pc
                    stream.stalled_since = now
                    return False
                memory.times.append(now)
                memory.changes.append(op[3])
                pc += 1
            elif code == AWAIT:
                _, event, offset, repeat = op
                target = (stream.iteration + 1) * repeat + offset if repeat else stream.number + offset
                if self.counts[event] < target:
                    stream.target = target
                    self.waiters[event].append(stream)
                    stream.pc = pc
                    stream.stalled_since = now
                    return False
                pc += 1
            elif code == SIGNAL:
                pc += 1
                event = op[1]
                self.counts[event] += 1
                if self.waiters[event]:
                    self._wake(event, now)
                    # Others can act now; this stream may only step past awaits until its turn comes again.
                    limit = AWAIT
            elif code == COPY:
                stream.pc = pc
                self._issue(stream, op, now)
                return False
            elif code == DRAM_LAUNCH:
                stream.pc = pc
                self.running += 1
                stream.direction = TAKES_DRAM
                stream.engines.take_dram(op[2])
                stream.arm(op[1])
                return False
            elif code == DRIVEN_LAUNCH:
                stream.pc = pc
                self.running += 1
                op[1](stream)
                return False
            elif code == PASS:
                pc += 1
            else:
                if not self._next_segment(stream):
                    return False
                ops, pc = stream.ops, 0

    def _issue(self, stream: Stream, op: Op, now: int) -> None:
        self.running += 1
        stream.direction = op[1]
        if stream.engines.issue(stream, op):
            stream.starts.append(now)
        else:
            stream.stalled_since = now

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
                if stream.memory is not None:
                    stream.snapshots.append(stream.memory.pool.state())
                if stream.iteration == self.iterations:
                    stream.finished = True
                    return False
        here = segments[stream.segment]
        stream.number = stream.iteration * here.repeat + stream.repetition
        stream.ops = here.ops
        return True

    # --- waiting --------------------------------------------------------------------------------------------

    def _wake(self, event: int, now: int) -> None:
        """Free the streams whose awaited count an event has reached."""
        count = self.counts[event]
        waiting = self.waiters[event]
        self.waiters[event] = [stream for stream in waiting if stream.target > count]
        for stream in waiting:
            if stream.target <= count:
                self._resume(stream, now)

    def _resume(self, stream: Stream, now: int, giver: int = -1) -> None:
        """A stream steps past the op it waited at."""
        self._note_stall(stream, now, giver)
        stream.pc += 1
        self.ready.append(stream)

    def _note_stall(self, stream: Stream, now: int, giver: int = -1) -> None:
        since = stream.stalled_since
        if now > since:
            self.stalls += (stream.rank, stream.segment, stream.pc, since, now, stream.iteration, giver)
        stream.stalled_since = -1


def _most_urgent(ready: list[Stream]) -> tuple[Stream, int]:
    """The stream whose next op comes first at this instant, and that op's code."""
    best, best_code = ready[0], _EVERYTHING + 1
    for stream in ready:
        code = min(stream.ops[stream.pc][0], LAUNCH)
        if code < best_code or (code == best_code and stream.rank < best.rank):
            best, best_code = stream, code
    return best, best.ops[best.pc][0]


def _rank(stream: Stream) -> int:
    return stream.rank
