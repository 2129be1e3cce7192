"""The simulator: streams are SimPy processes that perform the steps of a program, in order.

There is a step for each instruction: run a kernel, copy, take memory or give it back, signal an event or hear it.
Simultaneous steps follow the order of `simgpu.machine.instants`; memories are in `simgpu.machine.containers`, copies in
`simgpu.machine.engines`. Kernels that do more than run for their time have steps of their own, in `dram`, `buddy`,
`paged` and `remote`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from simgpu.machine.containers import NOBODY, BlockRequest, Cause, Container, Memories, Waiting
from simgpu.machine.instants import InstantOrder, InstantPhase
from simgpu.machine.log import Entry, Ran, columns_of
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import StreamId

#: What a process of SimPy's is made of.
Events = Generator[simpy.Event, Any, None]


class Step(Protocol):
    """What a stream does for one instruction."""

    def perform(self, stream: Stream) -> Events | None:
        """Do it, and return None; or return the events that are waited for one after another while it is done."""
        ...


class LaunchingThread(Protocol):
    """The thread that launches the work of a GPU's compute streams (`simgpu.machine.launches`)."""

    def ends(self, stream: Stream) -> None:
        """A stream has ended its iteration."""
        ...


@dataclass(slots=True)
class Part:
    """A stream's part of a segment."""

    steps: Sequence[Step]
    repeat: int


@dataclass(slots=True, eq=False)
class Stream:
    """A stream: where it is in the program, and what it has done.

    rank: its place among simultaneous streams. entries: the log of all streams. position: the step in this part. ended:
    when its last work ended. memory: of its GPU, for the GPU's first stream, else None; snapshots: the states of its
    pool at each iteration's end. thread: that launches its work, if that takes time.
    """

    env: InstantOrder
    id: StreamId
    rank: int
    parts: Sequence[Part]
    entries: list[Entry]
    memory: Container | None = None
    iteration: int = 0
    segment: int = 0
    repetition: int = 0
    position: int = 0
    finished: bool = False
    ended: int = 0
    snapshots: list[object] = field(default_factory=list)
    thread: LaunchingThread | None = None

    def run(self, iterations: int) -> Events:
        """The process: every iteration of the program."""
        for iteration in range(iterations):
            for segment, part in enumerate(self.parts):
                for repetition in range(part.repeat):
                    self.iteration, self.segment, self.repetition = iteration, segment, repetition
                    for position, step in enumerate(part.steps):
                        self.position = position
                        waits = step.perform(self)
                        if waits is not None:
                            yield from waits
            if self.memory is not None:
                self.snapshots.append(self.memory.pool.state())
            if self.thread is not None:
                self.thread.ends(self)
        self.finished = True

    def turn(self, phase: InstantPhase) -> simpy.Event:
        """The stream's turn in a phase of this instant."""
        return self.env.turn(phase, self.rank)

    def has_turn(self, phase: InstantPhase) -> bool:
        """Whether it is the stream's turn in a phase of this instant already, so that it need not wait."""
        return self.env.has_turn(phase, self.rank)

    def worked(self, kind: int, name: int, since: int, size: int = 0, resource: int = -1) -> None:
        """Note that work has ended."""
        now = self.ended = self.env.instant
        self.entries.append(Entry(self.rank, kind, name, since, now, size, -1, self.iteration, resource))

    def waited(self, kind: int, since: int, cause: Cause = NOBODY, resource: int = -1) -> None:
        """Note that a wait has ended, if it took time."""
        now = self.env.instant
        if now > since:
            entry = Entry(self.rank, kind, cause.name, since, now, 0, cause.stream, self.iteration, resource)
            self.entries.append(entry)


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Run a kernel, or a codec, for its time. kind: a `SpanKind`; name: its position in the timeline's names."""

    kind: int
    name: int
    duration: int

    def perform(self, stream: Stream) -> Events | None:
        # It takes nothing that others could have taken, so it need not wait for its turn to start.
        since = stream.env.instant
        if not stream.env.has_passed(self.duration, stream.rank):
            return self._until_its_end(stream, since)
        stream.worked(self.kind, self.name, since)
        return None

    def _until_its_end(self, stream: Stream, since: int) -> Events:
        yield stream.env.timer(self.duration, stream.rank)
        stream.worked(self.kind, self.name, since)


@dataclass(frozen=True, slots=True)
class AcquireStep:
    """Acquire memory for some blocks, all or nothing; wait first in, first out. resource: the memory, in the log."""

    memory: Container
    request: BlockRequest
    resource: int

    def perform(self, stream: Stream) -> Events | None:
        if not stream.has_turn(InstantPhase.ACQUIRE):
            return self._at_its_turn(stream)
        return None if self._acquired(stream.env.instant) else self._when_granted(stream)

    def _acquired(self, now: int) -> bool:
        return not self.memory.waiting and self.memory.acquire(self.request, now)

    def _at_its_turn(self, stream: Stream) -> Events:
        yield stream.turn(InstantPhase.ACQUIRE)
        if not self._acquired(stream.env.instant):
            yield from self._when_granted(stream)

    def _when_granted(self, stream: Stream) -> Events:
        since, granted = stream.env.instant, stream.env.event()
        self.memory.waiting.append(Waiting(stream.rank, self.request, granted))
        # `Memories` grants it after a release, and says which.
        cause = yield granted
        stream.waited(SpanKind.STALL_MEMORY, since, cause, self.resource)


@dataclass(frozen=True, slots=True)
class ReleaseStep:
    """Release memory of some blocks. cause: this stream, and its work before, for those who wait for memory."""

    memory: Container
    request: BlockRequest
    memories: Memories
    cause: Cause

    def perform(self, stream: Stream) -> Events | None:
        if not stream.has_turn(InstantPhase.RELEASE):
            return self._at_its_turn(stream)
        self._release(stream)
        return None

    def _at_its_turn(self, stream: Stream) -> Events:
        yield stream.turn(InstantPhase.RELEASE)
        self._release(stream)

    def _release(self, stream: Stream) -> None:
        self.memory.release(self.request, stream.env.instant)
        if self.memory.waiting:
            self.memories.released(stream.env, self.cause)


@dataclass(slots=True, eq=False)
class ProgramEvent:
    """An event of the program, which happens once in each repetition of its segment.

    repeat: how often that segment repeats in an iteration. cause: the stream that signals it, and its work before.
    count: how often it has happened. waiting: counts that streams wait for, with the events that succeed then.
    """

    repeat: int = 1
    cause: Cause = NOBODY
    count: int = 0
    waiting: list[tuple[int, simpy.Event]] = field(default_factory=list)

    def happen(self) -> None:
        """It happens once more; who waited for this goes on."""
        self.count += 1
        for _, reached in (each for each in self.waiting if each[0] <= self.count):
            reached.succeed()
        self.waiting = [each for each in self.waiting if each[0] > self.count]


@dataclass(frozen=True, slots=True)
class SignalStep:
    """Signal an event."""

    event: ProgramEvent

    def perform(self, stream: Stream) -> Events | None:
        if not stream.has_turn(InstantPhase.SIGNAL):
            return self._at_its_turn(stream)
        self.event.happen()
        return None

    def _at_its_turn(self, stream: Stream) -> Events:
        yield stream.turn(InstantPhase.SIGNAL)
        self.event.happen()


@dataclass(frozen=True, slots=True)
class AwaitStep:
    """Wait for an event, `lag` repetitions back. here: whether it is signalled in the stream's own segment."""

    event: ProgramEvent
    lag: int
    here: bool

    def perform(self, stream: Stream) -> Events | None:
        event, before = self.event, stream.iteration * self.event.repeat
        # How often the event must have happened since the start of the run.
        target = before + (stream.repetition + 1 if self.here else event.repeat) - self.lag
        return self._until(target, stream) if event.count < target else None

    def _until(self, target: int, stream: Stream) -> Events:
        since, reached = stream.env.instant, stream.env.event()
        self.event.waiting.append((target, reached))
        yield reached
        stream.waited(SpanKind.STALL_EVENT, since, self.event.cause)


@dataclass(frozen=True, slots=True)
class EmptyStep:
    """Nothing to do."""

    def perform(self, stream: Stream) -> None:
        pass


class Simulator:
    """Runs the streams of a program for a number of iterations."""

    def __init__(self, env: InstantOrder, streams: Sequence[Stream], memories: Memories, iterations: int) -> None:
        self.env = env
        self.streams = streams
        self.memories = memories
        self.iterations = iterations

    def run(self) -> bool:
        """Run until nothing can happen any more; returns whether all streams have finished."""
        for stream in self.streams:
            process = self.env.process(stream.run(self.iterations))
            process.callbacks.append(_raise_failure)
        self.env.run()
        return all(stream.finished for stream in self.streams)

    @property
    def ran(self) -> Ran:
        """What the run leaves."""
        return Ran(
            columns_of(self.streams[0].entries),
            self.memories.curves(),
            [stream.snapshots for stream in self.streams if stream.memory is not None],
            max(memory.pool.high_water for memory in self.memories.devices),
            max(memory.buddy_peak for memory in self.memories.devices),
        )


def _raise_failure(process: simpy.Event) -> None:
    """Raise a process's error itself, where SimPy would raise a copy of it."""
    if isinstance(process.value, BaseException) and not process.ok:
        raise process.value
