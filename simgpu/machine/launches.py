"""The host's threads, which launch the work of compute streams one after another, each in its time.

Each GPU has a thread. It launches what takes time on the GPU's compute streams (kernels, also those that run again,
codecs, copies) in the order of the program, and runs ahead of the GPU without limit. At the end of an iteration it
waits for these streams, as a loop that reads the loss does. Work starts when it has been launched and its stream
reaches it; memory is acquired before, when the stream reaches that. Copy streams and host streams need no launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import simpy

from simgpu.hardware.spec import HostSpec
from simgpu.machine.simulator import AwaitStep, Events, Step, Stream
from simgpu.program.instructions import WORK, Instruction, Launch, Program, Segment
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import StreamId


@dataclass(slots=True, eq=False)
class HostThread:
    """A GPU's thread.

    launch_ns: of each launch. streams: how many it serves. before: works that it launches in the segments before each,
    and in a repetition of each. begun: when it would have begun the iteration's launches, had it not waited since.
    iteration: that it launches. ended: streams that have ended it. waiting: for the next one.
    """

    launch_ns: int
    streams: int
    before: Sequence[tuple[int, int]]
    begun: int = 0
    iteration: int = 0
    ended: int = 0
    waiting: list[simpy.Event] = field(default_factory=list)

    def launched(self, stream: Stream, number: int) -> int:
        """Works that are launched before the one with this number in a stream's repetition."""
        first, each = self.before[stream.segment]
        return first + stream.repetition * each + number

    def waits(self, stream: Stream, number: int) -> None:
        """It waits until now before it launches the work with this number."""
        self.begun = stream.env.instant - self.launched(stream, number) * self.launch_ns

    def ends(self, stream: Stream) -> None:
        """A stream has ended its iteration; when all have, the next one begins."""
        self.ended += 1
        if self.ended == self.streams:
            self.ended, self.iteration, self.begun = 0, self.iteration + 1, stream.env.instant
            for event in self.waiting:
                event.succeed()
            self.waiting = []


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Work that starts when the thread has launched it. number: among the works of a repetition."""

    work: Step
    thread: HostThread
    number: int

    def perform(self, stream: Stream) -> Events:
        """Wait for the launch, then do the work."""
        thread, env, since = self.thread, stream.env, stream.env.instant
        if thread.iteration < stream.iteration:
            begins = env.event()
            thread.waiting.append(begins)
            yield begins
        launched_at = thread.begun + (thread.launched(stream, self.number) + 1) * thread.launch_ns
        delay = launched_at - env.instant
        if delay > 0 and not env.has_passed(delay, stream.rank):
            yield env.timer(delay, stream.rank)
        stream.waited(SpanKind.STALL_LAUNCH, since)
        waits = self.work.perform(stream)
        if waits is not None:
            yield from waits


@dataclass(frozen=True, slots=True)
class BlockingAwaitStep:
    """A stream's wait for an event, for which the thread waits too. number: of the next work."""

    wait: AwaitStep
    thread: HostThread
    number: int

    def perform(self, stream: Stream) -> Events:
        """Wait, then let the thread go on."""
        waits = self.wait.perform(stream)
        if waits is not None:
            yield from waits
        self.thread.waits(stream, self.number)


def launched(
    steps: Sequence[Step], code: Sequence[Instruction], thread: HostThread, numbers: Sequence[int], *, blocking: bool
) -> list[Step]:
    """The steps of a compute stream's instructions, of which the thread launches the works.

    numbers: of the works, from `launch_numbers`. blocking: whether the thread waits for events with the stream.
    """
    result: list[Step] = []
    following = iter(numbers)
    number = next(following, 0)
    for step, instruction in zip(steps, code, strict=True):
        if isinstance(instruction, WORK):
            result.append(LaunchedStep(step, thread, number))
            number = next(following, number + 1)
        elif blocking and isinstance(step, AwaitStep):
            result.append(BlockingAwaitStep(step, thread, number))
        else:
            result.append(step)
    return result


def threads_of(program: Program, host: HostSpec) -> dict[int, HostThread]:
    """The threads of a program's GPUs, by GPU; none where launches take no time."""
    if not host.launch_ns:
        return {}
    threads = {}
    for gpu in range(program.gpus):
        streams = [stream for stream in program.streams if stream.gpu == gpu and stream.role == "compute"]
        before, total = [], 0
        for segment in program.segments:
            each = sum(isinstance(work, WORK) for stream in streams for work in segment.streams.get(stream, ()))
            before.append((total, each))
            total += segment.repeat * each
        threads[gpu] = HostThread(host.launch_ns, len(streams), before)
    return threads


def launch_numbers(segment: Segment, gpu: int) -> dict[StreamId, list[int]]:
    """For each compute stream of a GPU the numbers of its works in the order in which the thread launches them.

    Of several streams it is the order of the graph's kernels; what runs again, a codec or a copy is launched with the
    next kernel of its stream.
    """
    streams = [stream for stream in segment.streams if stream.gpu == gpu and stream.role == "compute"]
    works = [
        (kernel, stream.rank, position)
        for stream in streams
        for position, kernel in enumerate(_next_kernels(segment.streams[stream]))
    ]
    numbers: dict[StreamId, list[int]] = {stream: [] for stream in streams}
    by_rank = {stream.rank: stream for stream in streams}
    for number, (_, rank, _) in enumerate(sorted(works)):
        numbers[by_rank[rank]].append(number)
    return numbers


def _next_kernels(code: Sequence[Instruction]) -> list[float]:
    """For each work of a stream the first kernel from there on that does not run again; never descending."""
    works = [each for each in code if isinstance(each, WORK)]
    kernels: list[float] = []
    following = inf
    for work in reversed(works):
        if isinstance(work, Launch) and not work.recompute:
            following = work.kernel
        kernels.append(following)
    kernels.reverse()
    for at in range(1, len(kernels)):
        kernels[at] = max(kernels[at], kernels[at - 1])
    return kernels
