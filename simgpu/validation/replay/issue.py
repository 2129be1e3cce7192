"""Issues a program to a device, with busy loops as kernels and real copies, events and memory.

One host thread issues all instructions; each stream of the program is a stream of the device.

* Launch, Encode, Decode: a busy loop of the simulated duration. Encoding on host cores occupies its own stream (on a
  GPU, a GPU stream), not a core of the host.
* Copy: copies between the block's device and host buffers, with as many bytes as the simulated copy.
* Signal, Await: events of the device. The stream waits, not the host.
* Acquire, Release: allocates and releases buffers. The host allocates ahead of the device; if memory is short, it waits
  until the device has reached enough releases.
* Initialize: nothing, as in the simulation.

Differences from the simulated machine: memory is granted in the simulated order, whichever stream asks first on the
device. A stream that waits for memory continues some microseconds after the release, when the host has seen it and
issued the next instruction. Events and launches take time on the device that the simulated machine does not model.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from simgpu.errors import InputError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.memory.pool import aligned
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    Initialize,
    Launch,
    Location,
    Program,
    Release,
    Signal,
)
from simgpu.timeline.streams import StreamId
from simgpu.validation.devices import Device, Event, Stream
from simgpu.validation.measured import MeasuredKind, MeasuredSpan
from simgpu.validation.replay.order import Step

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Issued:
    """Measurements of an issued program.

    iteration_ends_ns: end of each iteration's compute, ns from the first instruction.
    peak_bytes: peak device memory of blocks, by the device's clock.
    allocated_bytes: peak device memory allocated by the host, ahead of the device.
    d2h_bytes, h2d_bytes: copied in the last iteration.
    spans: of all streams in the last iteration.
    """

    iteration_ends_ns: tuple[int, ...]
    peak_bytes: int
    allocated_bytes: int
    d2h_bytes: int
    h2d_bytes: int
    spans: tuple[MeasuredSpan, ...]


class Limits(NamedTuple):
    """Memory limits.

    device: bytes of device memory.
    host: bytes of pinned host memory, None without limit.
    alignment: bytes to which each block on the device is rounded up.
    """

    device: int
    host: int | None
    alignment: int


def issue(
    steps: Iterable[Step], program: Program, graph: TaskGraph, device: Device, limits: Limits, iterations: int
) -> Issued:
    """Issues the steps of `iterations` iterations, and waits for their end.

    Raises `InputError` if the device or the host runs out of memory.
    """
    issuer = _Issuer(program, graph, device, limits, iterations)
    for step in steps:
        issuer.issue(step)
    return issuer.finish()


class _Work(NamedTuple):
    """Work on a stream between two events."""

    stream: str
    kind: MeasuredKind
    name: str
    op: str
    call: int
    bytes: int
    begin: Event
    end: Event


class _Issuer:
    """Issues steps to a device, as an `Effects` of their instructions. step: the one that is issued."""

    def __init__(self, program: Program, graph: TaskGraph, device: Device, limits: Limits, iterations: int) -> None:
        self.graph = graph
        self.device = device
        self.ids = program.streams
        self.last = iterations - 1
        self.streams: list[Stream] = [device.new_stream(str(stream)) for stream in program.streams]
        self.memories = {
            DEVICE: BlockMemory(graph.sizes, limits.device, limits.alignment, _maker(device.empty, device.name)),
            HOST: BlockMemory(graph.copy_sizes, limits.host, 1, _maker(device.host_buffer, "the host")),
        }
        self.works: list[_Work] = []
        self.calls: Counter[str] = Counter()
        self.events: defaultdict[int, list[Event]] = defaultdict(list)
        self.launches = [_launches(program, stream) for stream in program.streams]
        self.launched = [0] * len(program.streams)
        self.ends: list[list[Event]] = [[] for _ in range(iterations)]
        self.copied: Counter[MeasuredKind] = Counter()
        #: Events of device memory acquired (positive bytes) and released (negative), in the order issued.
        self.moments: list[tuple[Event, int]] = []
        for holding in program.initial_contents:
            self.memories[holding.memory].take(holding.blocks)
        self.initial_bytes = self.memories[DEVICE].bytes_of(program.resident)
        device.synchronize()
        self.origin = self.streams[0].record()

    def issue(self, step: Step) -> None:
        """Issues one instruction."""
        self.step = step
        step.instruction.apply(self)

    def runs(self, launch: Launch) -> None:
        """A kernel keeps the stream busy for its duration."""
        self._busy(self.graph.durations[launch.kernel], "busy", self.graph.kernels[launch.kernel].id)
        if self.ids[self.step.stream].role == "compute":
            self.launched[self.step.stream] += 1
            if self.launched[self.step.stream] % self.launches[self.step.stream] == 0:
                self.ends[self.step.iteration].append(self.stream.record())

    def moves(self, work: Copy | Encode | Decode, source: Location, target: Location) -> None:
        """A copy, or a codec that keeps the stream busy for its time."""
        encoded, names = self.graph.encoded, self.graph.blocks
        if isinstance(work, Copy):
            kind = MeasuredKind.COPY_D2H if source.memory == DEVICE else MeasuredKind.COPY_H2D
            self._copy(kind, source.block, target.block)
        elif isinstance(work, Encode):
            self._busy(encoded[target.block].encode_ns, "encode", names[target.block].id)
        else:
            self._busy(encoded[source.block].decode_ns, "decode", names[source.block].id)

    def signals(self, signal: Signal) -> None:
        """An event of the device."""
        self.events[signal.event].append(self.stream.record())

    def awaits(self, wait: Await) -> None:
        """The stream waits for the event that the step names."""
        if self.step.nth > 0:
            self.stream.wait(self.events[wait.event][self.step.nth - 1])

    def acquires(self, acquire: Acquire) -> None:
        """Buffers for blocks."""
        size = self.memories[acquire.memory].take(acquire.blocks)
        if acquire.memory == DEVICE and size:
            self.moments.append((self.stream.record(), size))

    def releases(self, release: Release) -> None:
        """Buffers that others may use after what the stream has done so far."""
        released = self.stream.record()
        size = self.memories[release.memory].release(release.blocks, released)
        if release.memory == DEVICE and size:
            self.moments.append((released, -size))

    def initializes(self, initialize: Initialize) -> None:
        """Takes no time."""

    @property
    def stream(self) -> Stream:
        """The stream of the step."""
        return self.streams[self.step.stream]

    def finish(self) -> Issued:
        """Waits for all work, and reads the event times."""
        self.device.synchronize()
        since = self._since
        spans = [
            MeasuredSpan(
                work.stream, work.kind, work.name, work.op, work.call, since(work.begin), since(work.end), work.bytes
            )
            for work in self.works
        ]
        first = min((span.start_ns for span in spans), default=0)
        spans = [span._replace(start_ns=span.start_ns - first, end_ns=span.end_ns - first) for span in spans]
        return Issued(
            iteration_ends_ns=tuple(max(map(since, ends), default=0) for ends in self.ends),
            peak_bytes=self._peak(),
            allocated_bytes=self.memories[DEVICE].peak,
            d2h_bytes=self.copied[MeasuredKind.COPY_D2H],
            h2d_bytes=self.copied[MeasuredKind.COPY_H2D],
            spans=tuple(sorted(spans, key=lambda span: span.start_ns)),
        )

    def _since(self, event: Event) -> int:
        return event.ns_since(self.origin)

    def _peak(self) -> int:
        """Peak bytes by the device's clock; events at the same time count in the order issued."""
        current = peak = self.initial_bytes
        for _, change in sorted(((self._since(event), change) for event, change in self.moments), key=_first):
            current += change
            peak = max(peak, current)
        return peak

    def _busy(self, ns: int, name: str, op: str) -> None:
        stream = self.stream
        self._between(MeasuredKind.KERNEL, name, op, 0, lambda: stream.busy(ns))

    def _copy(self, kind: MeasuredKind, b: int, retained: int) -> None:
        """Copies between block b on the device and its host block `retained`."""
        size = self.graph.copy_sizes[retained]
        on_host, on_device = self.memories[HOST][retained], self.memories[DEVICE][b][:size]
        target, source = (on_host, on_device) if kind is MeasuredKind.COPY_D2H else (on_device, on_host)
        stream = self.stream
        self._between(kind, self.graph.blocks[retained].id, "", size, lambda: stream.copy(target, source))
        if self.step.iteration == self.last:
            self.copied[kind] += target.nbytes

    def _between(self, kind: MeasuredKind, name: str, op: str, size: int, enqueue: Callable[[], None]) -> None:
        """Enqueues work; in the last iteration between two events, to measure its times."""
        if self.step.iteration < self.last:
            enqueue()
            return
        begin = self.stream.record()
        enqueue()
        call = self.calls[op] if op else -1
        self.calls[op] += 1
        stream = str(self.ids[self.step.stream])
        self.works.append(_Work(stream, kind, name, op, call, size, begin, self.stream.record()))


def _first(moment: tuple[int, int]) -> int:
    return moment[0]


def _maker(make: Callable[[int], torch.Tensor], where: str) -> Callable[[int], torch.Tensor]:
    """A function that allocates buffers, and raises `InputError` if out of memory."""

    def buffer(size: int) -> torch.Tensor:
        try:
            return make(size)
        except (MemoryError, RuntimeError) as error:  # PyTorch's OOM errors on host and device are RuntimeErrors
            reason = str(error).partition("\n")[0] or type(error).__name__
            message = f"no memory for {size} bytes on {where}: {reason}"
            remedy = "stop other programs that use it, or simulate the program with a smaller budget"
            raise InputError.single("program", "memory", message, remedy) from error

    return buffer


def _launches(program: Program, stream: StreamId) -> int:
    """Number of kernels that a stream launches in one iteration."""
    return sum(
        segment.repeat * sum(isinstance(instruction, Launch) for instruction in segment.streams.get(stream, ()))
        for segment in program.segments
    )


class BlockMemory:
    """Buffers of blocks on the device or on the host, within a limit.

    sizes: bytes of each block.
    limit: total bytes, None without limit.
    alignment: bytes to which each block is rounded up in the accounting.
    make: allocates a buffer of a number of bytes.

    The host allocates ahead of the device. A released buffer stays allocated until the release's event has occurred, so
    memory is reused only when it is free on the device. `take` waits for releases, oldest first, until there is enough.
    So the streams never exceed the limit on the device. Free buffers are cached by size within the limit, as PyTorch
    does on a GPU.
    """

    def __init__(
        self, sizes: Sequence[int], limit: int | None, alignment: int, make: Callable[[int], torch.Tensor]
    ) -> None:
        self._sizes = sizes
        self._counted = [aligned(size, alignment) for size in sizes]
        self._limit = limit
        self._alignment = alignment
        self._make = make
        self._buffers: dict[int, torch.Tensor] = {}
        self._pending: deque[tuple[Event, list[tuple[int, torch.Tensor]]]] = deque()
        self._cached: dict[int, list[torch.Tensor]] = {}  # by their bytes
        self._cached_bytes = 0
        self._allocated = 0
        #: Peak allocated bytes, including pending releases.
        self.peak = 0

    def __getitem__(self, block: int) -> torch.Tensor:
        """The buffer of an allocated block."""
        return self._buffers[block]

    def bytes_of(self, blocks: Sequence[int]) -> int:
        """Total accounted bytes of blocks."""
        return sum(self._counted[b] for b in blocks)

    def take(self, blocks: Sequence[int]) -> int:
        """Allocates buffers for blocks, waiting for releases if needed; returns their bytes.

        Raises `ProgramError` if the limit is exceeded and no release is pending.
        """
        needed = self.bytes_of(blocks)
        while self._pending and (self._pending[0][0].is_done() or self._lacks(needed)):
            self._finish_release()
        if self._lacks(needed):
            message = f"{needed} B exceed the limit: {self._allocated} of {self._limit} B are allocated"
            raise ProgramError(f"{message}, and no release is pending")
        self._allocated += needed
        self.peak = max(self.peak, self._allocated)
        buffers = {b: self._reused(b) for b in blocks}
        while self._cached and self._lacks(self._cached_bytes):
            self._pop_cached(next(iter(self._cached)))
        for b, buffer in buffers.items():
            self._buffers[b] = self._make(self._sizes[b]) if buffer is None else buffer
        return needed

    def release(self, blocks: Sequence[int], event: Event) -> int:
        """Releases blocks once the event has occurred; returns their bytes."""
        self._pending.append((event, [(b, self._buffers.pop(b)) for b in blocks]))
        return self.bytes_of(blocks)

    def _finish_release(self) -> None:
        """Waits for the oldest release; a separate function, so that no local variable of `take` keeps its buffers."""
        event, released = self._pending.popleft()
        event.synchronize()
        for b, buffer in released:
            self._cache(b, buffer)

    def _cache(self, block: int, buffer: torch.Tensor) -> None:
        """Caches a block's free buffer."""
        self._cached.setdefault(self._sizes[block], []).append(buffer)
        self._cached_bytes += self._counted[block]
        self._allocated -= self._counted[block]

    def _reused(self, block: int) -> torch.Tensor | None:
        """A cached buffer of a block's size; None if there is none."""
        return self._pop_cached(self._sizes[block]) if self._sizes[block] in self._cached else None

    def _pop_cached(self, size: int) -> torch.Tensor:
        buffers = self._cached[size]
        buffer = buffers.pop()
        self._cached_bytes -= aligned(size, self._alignment)
        if not buffers:
            del self._cached[size]
        return buffer

    def _lacks(self, needed: int) -> bool:
        return self._limit is not None and self._allocated + needed > self._limit
