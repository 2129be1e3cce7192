"""The instructions of a program, and the program itself: plain values that can be printed, saved and compared.

Blocks and kernels are their positions in the task graph, memories are names; a program holds no sizes and no durations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, get_args

from simgpu.graph.taskgraph import Transform
from simgpu.hardware.spec import DEVICE as DEVICE
from simgpu.hardware.spec import HOST as HOST
from simgpu.program.paging import Paged, Remote
from simgpu.timeline.streams import StreamId

#: Streams of a single GPU.
COMPUTE = StreamId(0, "compute")
D2H = StreamId(0, "d2h")
H2D = StreamId(0, "h2d")
HOST_CORES = StreamId(0, "host")
#: The stream for copies in both directions that some policies use instead of the two above.
DATA = StreamId(0, "data")
#: The stream of what GPUs exchange: kernels of NCCL, which run while other kernels compute.
COLLECTIVES = StreamId(0, "collectives")


class Location(NamedTuple):
    """A block in a memory."""

    memory: str
    block: int


class Effects(Protocol):
    """Receives the effects of instructions, one call for each.

    `verify`, the machine and whatever else follows a program implements it, and calls `apply` of one instruction after
    the other.
    """

    def runs(self, launch: Launch) -> None:
        """A kernel runs."""
        ...

    def moves(self, work: Copy | Encode | Decode, source: Location, target: Location) -> None:
        """The value of a block is copied to another memory, or into another form in the same memory."""
        ...

    def acquires(self, acquire: Acquire) -> None:
        """Blocks get memory."""
        ...

    def releases(self, release: Release) -> None:
        """Blocks give their memory back."""
        ...

    def initializes(self, initialize: Initialize) -> None:
        """Blocks get their initial values."""
        ...

    def signals(self, signal: Signal) -> None:
        """An event happens."""
        ...

    def awaits(self, wait: Await) -> None:
        """The stream waits for an event."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel. recompute: it runs again to restore blocks that it wrote. makes: the restored blocks; if empty, all
    that it can restore."""

    kernel: int
    recompute: bool = False
    makes: tuple[int, ...] = ()

    def apply(self, effects: Effects) -> None:
        """Report the effect."""
        effects.runs(self)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a block from one memory to another; both must hold memory for it. into: the form of the block in the memory
    `dst`, if it is not the block itself (`simgpu.graph.transforms`)."""

    block: int
    src: str
    dst: str
    into: int | None = None

    @property
    def copied(self) -> int:
        """The block in `dst` after the copy; the copy has its size."""
        return self.block if self.into is None else self.into

    def apply(self, effects: Effects) -> None:
        """Report the effect."""
        effects.moves(self, Location(self.src, self.block), Location(self.dst, self.copied))


@dataclass(frozen=True, slots=True)
class Acquire:
    """Acquire memory for blocks, all or nothing, in listed order; wait first in, first out until there is enough."""

    blocks: tuple[int, ...]
    memory: str = DEVICE
    offsets: tuple[int, ...] | None = None

    def apply(self, effects: Effects) -> None:
        """Report the effect."""
        effects.acquires(self)


@dataclass(frozen=True, slots=True)
class Release:
    """Release the memory of blocks."""

    blocks: tuple[int, ...]
    memory: str = DEVICE

    def apply(self, effects: Effects) -> None:
        """Report the effect."""
        effects.releases(self)


@dataclass(frozen=True, slots=True)
class Initialize:
    """The host writes a block's initial value into its memory, at no cost (the next batch, a constant)."""

    blocks: tuple[int, ...]
    memory: str = DEVICE

    def apply(self, effects: Effects) -> None:
        """Report the effect."""
        effects.initializes(self)


@dataclass(frozen=True, slots=True)
class Encode:
    """Compress a block into its encoded form, which is a block of its own in the same memory."""

    block: int
    into: int
    memory: str = DEVICE

    def apply(self, effects: Effects) -> None:
        """Report the effect."""
        effects.moves(self, Location(self.memory, self.block), Location(self.memory, self.into))


@dataclass(frozen=True, slots=True)
class Decode:
    """Bring a block back from its encoded form in the same memory."""

    block: int
    source: int
    memory: str = DEVICE

    def apply(self, effects: Effects) -> None:
        """Report the effect."""
        effects.moves(self, Location(self.memory, self.source), Location(self.memory, self.block))


@dataclass(frozen=True, slots=True)
class Signal:
    """Mark an event as having happened once more. Each event is signalled at one place of one segment."""

    event: int

    def apply(self, effects: Effects) -> None:
        """Report the effect."""
        effects.signals(self)


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until an event has happened in this repetition, or `lag` repetitions of its segment earlier."""

    event: int
    lag: int = 0

    def apply(self, effects: Effects) -> None:
        """Report the effect."""
        effects.awaits(self)


Instruction = Launch | Copy | Acquire | Release | Initialize | Encode | Decode | Signal | Await
#: The closed set of instructions: an object of any other type, even a subclass, is rejected (`simgpu.program.check`).
INSTRUCTIONS: tuple[type[Any], ...] = get_args(Instruction)
#: Instructions that take time.
WORK = (Launch, Copy, Encode, Decode)


@dataclass(frozen=True, slots=True)
class Segment:
    """Instructions per stream that repeat together `repeat` times before the next segment begins.

    Streams pass from repetition to repetition, and from segment to segment, on their own; only events bind them. The
    instructions of a stream are a tuple, or a `simgpu.program.code.Code`, which reads like one.
    """

    streams: Mapping[StreamId, Sequence[Instruction]]
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class InitialContents:
    """Blocks that are in a memory when an iteration starts, in the order in which they were allocated.

    gpu: the GPU whose memory it is; 0 for memories that GPUs share.
    """

    memory: str
    blocks: tuple[int, ...]
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Section:
    """A checkpointed section of forward, as a policy describes it; the machine does not use it.

    layers: in order. held_bytes: bytes of its input activations, which stay until its backward is done. rerun_ns: time
    of the recomputed kernels.
    """

    name: str
    layers: tuple[str, ...]
    held_bytes: int
    rerun_ns: int


@dataclass(frozen=True, slots=True)
class Program:
    """One training iteration, which the machine repeats.

    Instructions of a stream act on the device memory of its GPU; all GPUs share the other memories. A kernel on a host
    stream runs on the host's cores and uses the blocks in host memory.

    segments: in order. resident: blocks in the memory of GPU 0 when an iteration starts, in the order of allocation;
    other_contents: blocks in other memories. transforms: the policy's changes to its graph (convolution algorithms, for
    example), in order; verify and machine apply them first. unlimited_memory: run without a budget. pool: the pool for
    which the program was written (``addressed`` if it has offsets), None for any. residency: for a program that
    acquires no memory, where its blocks are; None if it does. If they are on demand, copies are hints to migrate pages.
    sections: the checkpointed sections, in order.
    """

    segments: tuple[Segment, ...]
    resident: tuple[int, ...] = ()
    transforms: tuple[Transform, ...] = ()
    unlimited_memory: bool = False
    pool: str | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    other_contents: tuple[InitialContents, ...] = ()
    residency: Paged | Remote | None = None
    sections: tuple[Section, ...] = field(default=(), compare=False)

    @property
    def initial_contents(self) -> tuple[InitialContents, ...]:
        """The initial contents of each memory when an iteration starts, GPU 0 first."""
        return (InitialContents(DEVICE, self.resident), *self.other_contents)

    @property
    def gpus(self) -> int:
        """How many GPUs the program uses."""
        return 1 + max((stream.gpu for segment in self.segments for stream in segment.streams), default=0)

    @property
    def streams(self) -> tuple[StreamId, ...]:
        """Every stream the program uses, in instant order."""
        return tuple(
            sorted({stream for segment in self.segments for stream in segment.streams}, key=lambda stream: stream.rank)
        )

    def __len__(self) -> int:
        """Number of instructions in one iteration, repetitions not counted."""
        return sum(len(code) for segment in self.segments for code in segment.streams.values())
