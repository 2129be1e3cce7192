"""Issuing a program to a device: busy loops for kernels, real copies, real events, real memory.

One host thread issues everything; each stream of the program is a stream of the device.

* Launch, Encode, Decode: a busy loop of the simulated duration. What the host's cores encode keeps a stream of its own
  busy, on a GPU one of the GPU's: no core of the host works.
* CopyOut, CopyIn: copies between the buffers that the block has on both sides, as many bytes as the simulated copy.
* Signal, Await: events of the device. Only the stream waits, not the host.
* Acquire, Release: buffers are allocated and let go. The host allocates ahead of the device, so where memory is short
  the host waits until enough releases have really happened.
* Initialize: nothing, as in the simulation.

What differs from the simulated machine: memory is granted in the order in which the machine granted it, and not to who
comes first on the device. A stream that waits for memory goes on when the host has seen the release and issued what
follows, some microseconds later than the release. Events and launches take the device a moment that the machine does
not know.

Real memory for blocks, never more at once than a limit.
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
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Launch,
    Program,
    Release,
    Signal,
    Space,
)
from simgpu.timeline.streams import StreamId
from simgpu.validation.devices import Device, Event, Stream
from simgpu.validation.measured import MeasuredKind, MeasuredSpan
from simgpu.validation.replay.order import Step

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Issued:
    """What was measured.

    iteration_ends_ns: when compute of each iteration ended, from the first instruction on. peak_bytes: the most device
    memory that blocks held at once in the device's own time; allocated_bytes: the most that the host had allocated at
    once, ahead of the device. d2h_bytes, h2d_bytes: copied in the last iteration; spans: what the streams did in it.
    """

    iteration_ends_ns: tuple[int, ...]
    peak_bytes: int
    allocated_bytes: int
    d2h_bytes: int
    h2d_bytes: int
    spans: tuple[MeasuredSpan, ...]


class Limits(NamedTuple):
    """Bytes of device memory, and of pinned host memory, None for no limit; what each block on the device is rounded
    up to."""

    device: int
    host: int | None
    alignment: int


def issue(
    steps: Iterable[Step], program: Program, graph: TaskGraph, device: Device, limits: Limits, iterations: int
) -> Issued:
    """Issue the steps of so many iterations, and wait for the end of all.

    Raises `InputError` where the device or the host has no memory left.
    """
    issuer = _Issuer(program, graph, device, limits, iterations)
    for step in steps:
        issuer.issue(step)
    return issuer.finish()


class _Work(NamedTuple):
    """Something on a stream between two events."""

    stream: str
    kind: MeasuredKind
    name: str
    op: str
    call: int
    bytes: int
    begin: Event
    end: Event


class _Issuer:
    def __init__(self, program: Program, graph: TaskGraph, device: Device, limits: Limits, iterations: int) -> None:
        self.graph = graph
        self.device = device
        self.ids = program.streams
        self.last = iterations - 1
        self.streams: list[Stream] = [device.new_stream(str(stream)) for stream in program.streams]
        self.memories = {
            Space.DEVICE: BlockMemory(graph.sizes, limits.device, limits.alignment, _maker(device.empty, device.name)),
            Space.HOST: BlockMemory(graph.copy_sizes, limits.host, 1, _maker(device.host_buffer, "the host")),
        }
        self.works: list[_Work] = []
        self.calls: Counter[str] = Counter()
        self.events: defaultdict[int, list[Event]] = defaultdict(list)
        self.launches = [_launches(program, stream) for stream in program.streams]
        self.launched = [0] * len(program.streams)
        self.ends: list[list[Event]] = [[] for _ in range(iterations)]
        self.copied: Counter[MeasuredKind] = Counter()
        #: When device memory was taken (and, negative, given back), in the order issued.
        self.moments: list[tuple[Event, int]] = []
        for holding in program.initial_contents:
            self.memories[Space.HOST if holding.gpu is None else Space.DEVICE].take(holding.blocks)
        self.held_first = self.memories[Space.DEVICE].bytes_of(program.resident)
        device.synchronize()
        self.origin = self.streams[0].record()

    def issue(self, step: Step) -> None:
        """Issue one instruction."""
        graph, stream = self.graph, self.streams[step.stream]
        match step.instruction:
            case Launch(k):
                self._busy(step, graph.durations[k], "busy", graph.kernels[k].id)
            case Encode(_, into):
                self._busy(step, graph.encoded[into].encode_ns, "encode", graph.blocks[into].id)
            case Decode(_, source):
                self._busy(step, graph.encoded[source].decode_ns, "decode", graph.blocks[source].id)
            case CopyOut() as copy:
                self._copy(step, MeasuredKind.COPY_D2H, copy.block, copy.host_block)
            case CopyIn(b):
                self._copy(step, MeasuredKind.COPY_H2D, b, b)
            case Signal(event):
                self.events[event].append(stream.record())
            case Await(event):
                if step.nth > 0:
                    stream.wait(self.events[event][step.nth - 1])
            case Acquire(blocks, space):
                size = self.memories[space].take(blocks)
                if space is Space.DEVICE and size:
                    self.moments.append((stream.record(), size))
            case Release(blocks, space):
                released = stream.record()
                size = self.memories[space].give_back(blocks, released)
                if space is Space.DEVICE and size:
                    self.moments.append((released, -size))
            case _:
                pass  # a value that is provided takes no time

    def finish(self) -> Issued:
        """Wait for the end of all, and read the clocks."""
        self.device.synchronize()
        since = self._since
        spans = [
            MeasuredSpan(w.stream, w.kind, w.name, w.op, w.call, since(w.begin), since(w.end), w.bytes)
            for w in self.works
        ]
        first = min((span.start_ns for span in spans), default=0)
        spans = [span._replace(start_ns=span.start_ns - first, end_ns=span.end_ns - first) for span in spans]
        return Issued(
            iteration_ends_ns=tuple(max(map(since, ends), default=0) for ends in self.ends),
            peak_bytes=self._peak(),
            allocated_bytes=self.memories[Space.DEVICE].most,
            d2h_bytes=self.copied[MeasuredKind.COPY_D2H],
            h2d_bytes=self.copied[MeasuredKind.COPY_H2D],
            spans=tuple(sorted(spans, key=lambda span: span.start_ns)),
        )

    def _since(self, event: Event) -> int:
        return event.ns_since(self.origin)

    def _peak(self) -> int:
        """The most bytes held at once by the device's clock; what has the same time stays in the order issued."""
        held = most = self.held_first
        for _, change in sorted(((self._since(event), change) for event, change in self.moments), key=_first):
            held += change
            most = max(most, held)
        return most

    def _busy(self, step: Step, ns: int, name: str, op: str) -> None:
        stream = self.streams[step.stream]
        self._between(step, MeasuredKind.KERNEL, name, op, 0, lambda: stream.busy(ns))
        if isinstance(step.instruction, Launch) and self.ids[step.stream].role == "compute":
            self.launched[step.stream] += 1
            if self.launched[step.stream] % self.launches[step.stream] == 0:
                self.ends[step.iteration].append(stream.record())

    def _copy(self, step: Step, kind: MeasuredKind, b: int, retained: int) -> None:
        """Between block b on the device and what the host keeps it as."""
        size = self.graph.copy_sizes[retained]
        there, here = self.memories[Space.HOST][retained], self.memories[Space.DEVICE][b][:size]
        target, source = (there, here) if kind is MeasuredKind.COPY_D2H else (here, there)
        stream = self.streams[step.stream]
        self._between(step, kind, self.graph.blocks[retained].id, "", size, lambda: stream.copy(target, source))
        if step.iteration == self.last:
            self.copied[kind] += target.nbytes

    def _between(self, step: Step, kind: MeasuredKind, name: str, op: str, size: int, ask: Callable[[], None]) -> None:
        """Ask a stream for work; in the last iteration between two events, so that its times are known."""
        if step.iteration < self.last:
            ask()
            return
        stream = self.streams[step.stream]
        begin = stream.record()
        ask()
        call = self.calls[op] if op else -1
        self.calls[op] += 1
        self.works.append(_Work(str(self.ids[step.stream]), kind, name, op, call, size, begin, stream.record()))


def _first(moment: tuple[int, int]) -> int:
    return moment[0]


def _maker(make: Callable[[int], torch.Tensor], where: str) -> Callable[[int], torch.Tensor]:
    """Makes buffers; `InputError` where there is no memory for one."""

    def buffer(size: int) -> torch.Tensor:
        try:
            return make(size)
        except (MemoryError, RuntimeError) as error:  # PyTorch's running out of memory is one, on host and device
            reason = str(error).partition("\n")[0] or type(error).__name__
            what = f"no memory for {size} bytes on {where}: {reason}"
            remedy = "close what else uses it, or simulate the program with a smaller budget"
            raise InputError.single("program", "memory", what, remedy) from error

    return buffer


def _launches(program: Program, stream: StreamId) -> int:
    """How many kernels a stream launches in one iteration."""
    return sum(
        segment.repeat * sum(isinstance(each, Launch) for each in segment.streams.get(stream, ()))
        for segment in program.segments
    )


class BlockMemory:
    """Buffers of blocks on the device or on the host.

    sizes: bytes of each block. limit: bytes for all, None for none. alignment: each block counts as a multiple of it.
    make: a new buffer of so many bytes.

    The host asks ahead of the device. What is given back stays until the event behind it has happened, so memory is
    handed out again only when it is really free: `take` waits until that is enough, for the oldest release first. Then
    what all streams hold at any time on the device fits into the limit. Free buffers are kept for blocks of their size,
    as PyTorch keeps them on a GPU, as long as they fit into the limit too.
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
        self._leaving: deque[tuple[Event, list[tuple[int, torch.Tensor]]]] = deque()
        self._retained: dict[int, list[torch.Tensor]] = {}  # by their bytes
        self._retained_bytes = 0
        self._held = 0
        #: Bytes that the host had handed out at most, with those whose release was still to happen.
        self.most = 0

    def __getitem__(self, block: int) -> torch.Tensor:
        """The buffer of a block that holds memory."""
        return self._buffers[block]

    def bytes_of(self, blocks: Sequence[int]) -> int:
        """What blocks take together."""
        return sum(self._counted[b] for b in blocks)

    def take(self, blocks: Sequence[int]) -> int:
        """Find buffers for blocks, when there is room for all of them; returns their bytes.

        Raises `ProgramError` where there is no room and nothing is leaving.
        """
        needed = self.bytes_of(blocks)
        while self._leaving and (self._leaving[0][0].is_done() or self._lacks(needed)):
            self._let_one_go()
        if self._lacks(needed):
            what = f"{needed} B are asked for, {self._held} of {self._limit} B are held, and nobody will give any back"
            raise ProgramError(what)
        self._held += needed
        self.most = max(self.most, self._held)
        result = {b: self._reused(b) for b in blocks}
        while self._retained and self._lacks(self._retained_bytes):
            self._pop_retained(next(iter(self._retained)))
        for b, buffer in result.items():
            self._buffers[b] = self._make(self._sizes[b]) if buffer is None else buffer
        return needed

    def give_back(self, blocks: Sequence[int], event: Event) -> int:
        """Let go of blocks when the event has happened; returns their bytes."""
        self._leaving.append((event, [(b, self._buffers.pop(b)) for b in blocks]))
        return self.bytes_of(blocks)

    def _let_one_go(self) -> None:
        """Wait for the oldest release. In a function of its own, so that nothing here refers to its buffers longer."""
        event, gone = self._leaving.popleft()
        event.synchronize()
        for b, buffer in gone:
            self._keep(b, buffer)

    def _keep(self, block: int, buffer: torch.Tensor) -> None:
        """A block's buffer is free."""
        self._retained.setdefault(self._sizes[block], []).append(buffer)
        self._retained_bytes += self._counted[block]
        self._held -= self._counted[block]

    def _reused(self, block: int) -> torch.Tensor | None:
        """A kept buffer of a block's size."""
        return self._pop_retained(self._sizes[block]) if self._sizes[block] in self._retained else None

    def _pop_retained(self, size: int) -> torch.Tensor:
        buffers = self._retained[size]
        buffer = buffers.pop()
        self._retained_bytes -= aligned(size, self._alignment)
        if not buffers:
            del self._retained[size]
        return buffer

    def _lacks(self, needed: int) -> bool:
        return self._limit is not None and self._held + needed > self._limit
