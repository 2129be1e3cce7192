"""The simulator: streams execute machine code in order on SimPy's clock.

Only kernels, codecs and copies take time, and only their ends are SimPy events: a stream that runs one has one timer
scheduled, a waiting stream has none. When the last timer of an instant has fired, the instant is settled in a fixed
order: completions, releases, signals, acquires, starts; within each by GPU, then by stream (compute, data, d2h, h2d,
host). So results never depend on the order in which SimPy fires the timers of one instant.

This loop takes most of a simulation's time. It therefore uses plain attributes and records integers in lists;
`simgpu.machine.record` builds the timeline from them afterwards.
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
from simgpu.machine.stream import HOLDS_DRAM, HOLDS_ENGINE, HOLDS_NOTHING, Memories, Stream

#: Limit of `Simulator._run` for a stream that is alone at its instant: no limit.
_ALL_OPS = DRIVEN_LAUNCH


class Simulator:
    """Runs machine code for a number of iterations.

    engines[stream]: the copy engines of its GPU. counts[event]: how often
    it was signalled; waiters[event]: streams that wait for it. running: how many streams run a kernel or copy;
    completed: those whose work has ended at this instant; ready: those that can go on now. freed: whether memory for
    which a stream waits was released since the queues were last served, and release: by which stream, segment, op.
    stalls: waits of positive length, seven numbers each: stream, segment, op, begin, end, iteration, and for memory the
    index in `releases` of the release that ended the wait, else -1. releases: three numbers each, like `release`.
    """

    def __init__(
        self,
        env: simpy.Environment,
        code: MachineCode,
        node: NodeSpec,
        memories: Memories,
        iterations: int,
    ) -> None:
        self.env = env
        self.schedule = env.schedule
        self.code = code
        engines = engines_of(
            env,
            node,
            len(memories.devices),
            self.settle_if_last,
            demands_vary=code.demands_vary,
            buddy_flows=code.linked,
        )
        self.memories = memories
        self.iterations = iterations
        self.counts = [0] * len(code.signaller)
        self.waiters: list[list[Stream]] = [[] for _ in code.signaller]
        self.completed: list[Stream] = []
        self.running = 0
        self.freed = False
        self.stalls: list[int] = []
        self.releases: list[int] = []
        self.release = (-1, -1, -1)
        self.engines = [engines[stream_id.gpu] for stream_id in code.streams]
        self.streams: list[Stream] = []
        for rank, (stream_id, segments) in enumerate(zip(code.streams, code.segments, strict=True)):
            first = rank == 0 or code.streams[rank - 1].gpu != stream_id.gpu
            self.streams.append(Stream(env, rank, segments[0].ops, memories.devices[stream_id.gpu] if first else None))
        self.ready = list(self.streams)
        for stream in self.streams:
            stream.fire = self._on_end(stream)
            stream.callbacks = (stream.fire,)

    def _on_end(self, stream: Stream) -> Callable[..., None]:
        """The callback for the end of a stream's work; it settles the instant unless more work ends at it."""
        env, completed, ready, ended = self.env, self.completed, self.ready, stream.ends.append

        def fire(_: simpy.Event | None = None) -> None:
            self.running -= 1
            # With nothing running, any timers left at this instant are outdated ones.
            if self.running and env.peek() <= env.now:
                completed.append(stream)
                return
            if completed:
                completed.append(stream)
                self.settle()
                return
            # Nothing else ends at this instant: the stream can go on at once. Delays are integers, so the clock is too.
            now: int = env.now  # type: ignore[assignment]
            ended(now)
            if stream.holds >= 0:
                self._free_hardware(stream, now)
            stream.pc += 1
            if self._run(stream, _ALL_OPS, now):
                ready.append(stream)
            if ready or self.freed:
                self.settle()

        return fire

    @property
    def high_water(self) -> int:
        """Bytes of device memory that the pool needed, maximum over GPUs."""
        return max(memory.pool.high_water for memory in self.memories.devices)

    def run(self) -> None:
        """Run until no event is left."""
        self.settle()
        self.env.run()

    # --- one instant ----------------------------------------------------------------------------------------

    def settle_if_last(self) -> None:
        """Settle the instant if work has ended at it and no event of it is left."""
        if self.completed and self.env.peek() > self.env.now:
            self.settle()

    def settle(self) -> None:
        """Execute everything that can happen now."""
        now: int = self.env.now  # type: ignore[assignment]  # an integer, as in `_on_end`
        ready = self.ready
        if self.completed:
            self._complete(now)
        while True:
            if len(ready) == 1:
                stream = ready[0]
                # Even alone, it must not acquire or start anything before those who wait for memory that it released.
                limit = SIGNAL if self.freed else _ALL_OPS
                code = stream.ops[stream.pc][0]
            elif ready:
                stream, code = _most_urgent(ready)
                limit = code
            elif self.freed and self._grant(now):
                continue
            else:
                return
            # Waiting requests are granted after the releases of this instant and before its new requests.
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
            if stream.holds >= 0:
                self._free_hardware(stream, now)
            stream.pc += 1
            self.ready.append(stream)
        completed.clear()

    def _free_hardware(self, stream: Stream, now: int) -> None:
        """Free the DRAM bandwidth or the copy engine of work that has ended; the next queued copy starts."""
        held, stream.holds = stream.holds, HOLDS_NOTHING
        if held == HOLDS_DRAM:
            self.engines[stream.rank].take_dram(-stream.ops[stream.pc][2])
            return
        following = self.engines[stream.rank].finished(stream.ops[stream.pc])
        if following is not None:
            self._note_stall(following, now)
            following.starts.append(now)

    def _grant(self, now: int) -> bool:
        """Serve the queues for memory, first in, first out; returns whether a stream got memory."""
        granted = self.freed = False
        for memory in self.memories.all:
            while memory.waiting:
                stream = memory.waiting[0]
                _, _, request, number = stream.ops[stream.pc]
                if not memory.pool.acquire(request):
                    break
                memory.waiting.popleft()
                memory.log(now, number)
                self.releases += self.release
                self._resume(stream, now, len(self.releases) // 3 - 1)
                granted = True
        return granted

    def _run(self, stream: Stream, limit: int, now: int) -> bool:  # noqa: C901 - one branch per op, kept in one loop
        """Execute a ready stream's ops up to the code `limit`, as long as they take no time and wake no other stream.

        Returns whether the stream is still ready.
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
                    self.release = (stream.rank, stream.segment, pc)
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
                    # Other streams can act now; this one may only step past awaits until it is chosen again.
                    limit = AWAIT
            elif code == COPY:
                stream.pc = pc
                self._issue(stream, op, now)
                return False
            elif code == DRAM_LAUNCH:
                stream.pc = pc
                self.running += 1
                stream.holds = HOLDS_DRAM
                self.engines[stream.rank].take_dram(op[2])
                stream.arm(op[1])
                return False
            elif code == DRIVEN_LAUNCH:
                stream.pc = pc
                self.running += 1
                op[1](stream, self.engines[stream.rank])
                return False
            elif code == PASS:
                pc += 1
            else:
                if not self._next_segment(stream):
                    return False
                ops, pc = stream.ops, 0

    def _issue(self, stream: Stream, op: Op, now: int) -> None:
        self.running += 1
        stream.holds = HOLDS_ENGINE
        if self.engines[stream.rank].issue(stream, op):
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
        """Resume the streams whose awaited count an event has reached."""
        count = self.counts[event]
        waiting = self.waiters[event]
        self.waiters[event] = [stream for stream in waiting if stream.target > count]
        for stream in waiting:
            if stream.target <= count:
                self._resume(stream, now)

    def _resume(self, stream: Stream, now: int, release: int = -1) -> None:
        """A stream steps past the op at which it waited."""
        self._note_stall(stream, now, release)
        stream.pc += 1
        self.ready.append(stream)

    def _note_stall(self, stream: Stream, now: int, release: int = -1) -> None:
        since = stream.stalled_since
        if now > since:
            self.stalls += (stream.rank, stream.segment, stream.pc, since, now, stream.iteration, release)
        stream.stalled_since = -1


def _most_urgent(ready: list[Stream]) -> tuple[Stream, int]:
    """The stream whose next op comes first at this instant, and that op's code."""
    best, best_code = ready[0], _ALL_OPS + 1
    for stream in ready:
        code = min(stream.ops[stream.pc][0], LAUNCH)
        if code < best_code or (code == best_code and stream.rank < best.rank):
            best, best_code = stream, code
    return best, best.ops[best.pc][0]


def _rank(stream: Stream) -> int:
    return stream.rank
