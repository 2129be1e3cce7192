"""Machine code: per stream a list of small tuples with durations, bytes and memory requests filled in.

`simgpu.machine.translate` creates it from a program, `simgpu.machine.simulator` executes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import StreamId

# Op codes in the order in which they are executed at one instant. Awaits and ends come first because they have no
# effect on other streams.
PASS, AWAIT, END, RELEASE, SIGNAL, ACQUIRE, LAUNCH, COPY, DRAM_LAUNCH, DRIVEN_LAUNCH = range(10)

COMPUTE, RECOMPUTE = int(SpanKind.COMPUTE), int(SpanKind.RECOMPUTE)
ENCODE, DECODE = int(SpanKind.ENCODE), int(SpanKind.DECODE)

#: Directions of a copy: from the first end of its link to the second, and back. On the GPU's own link, OUT is D2H.
OUT, IN = range(2)

#: A kind of work and a number are packed into one integer, `kind + WORK * number`. The kinds are those of `SpanKind`
#: that are not stalls, and from `COPIES` on one for each direction of each of the node's links.
WORK = 1 << 10
COPIES = 16


def copy_kind(link: int, direction: int) -> int:
    """The kind of work of a copy over a link."""
    return COPIES + 2 * link + direction


def memory_wait(memory: int) -> int:
    """In place of a kind, in rows for the timeline: a wait for the memory with this position among their names."""
    return -1 - memory


#: Copies over the GPU's own link.
COPY_D2H, COPY_H2D = copy_kind(0, OUT), copy_kind(0, IN)

#: An instruction of machine code: its op code and operands.
#:
#: (PASS,): nothing to do.
#: (AWAIT, event, offset, repeat): wait until the event has happened often enough: for an event of the same segment
#: (repeat 0) as often as this segment has begun, for one of another segment as often as that segment has repeated up to
#: and including this iteration. The offset subtracts lags.
#: (END,): go on to the next repetition.
#: (RELEASE, memory, request, number), (ACQUIRE, memory, request, number): the number identifies it in the memory's log.
#: (SIGNAL, event).
#: (LAUNCH, duration).
#: (DRAM_LAUNCH, duration, DRAM bytes per second used by the kernel): where kernels slow down copies.
#: (DRIVEN_LAUNCH, begin): another part of the machine runs the kernel: `begin` is called with the stream and its GPU's
#: copy engines, and calls the stream's `fire` when the kernel has ended. Its recorded duration comes last.
#: (DRIVEN_LAUNCH, begin, bytes per second of DRAM): the same for a kernel that records when it starts.
#: (COPY, link, direction, bytes over the link, bytes of the block): `link` is a position in the node's links.
#: (COPY, link, direction, bytes over the link, bytes of the block, bytes in buddy memory): the block lies partly there.
Op = tuple[Any, ...]


@dataclass(slots=True)
class StreamCode:
    """One stream's part of one segment.

    ops: one per instruction, then an end op. works: for each op that takes time, `kind + WORK * number`, which encodes
    the kind of work and the number of the kernel or block (for a codec, of the encoded form).
    """

    ops: list[Op]
    works: list[int]
    repeat: int


@dataclass(slots=True)
class MachineCode:
    """A program's machine code, with events numbered from 0.

    segments[stream][segment]: the code. signaller[event]: the stream that signals it; signal_work[event]: the work
    before that signal, as in `StreamCode.works`, -1 for none. engines: names by the kinds of copies, from `COPIES` on.
    demands_vary: whether the DRAM bandwidth that each kernel
    takes is known. linked: whether kernels share the link to buddy memory.
    """

    streams: tuple[StreamId, ...]
    segments: list[list[StreamCode]]
    engines: tuple[str, ...] = ()
    signaller: list[int] = field(default_factory=list)
    signal_work: list[int] = field(default_factory=list)
    demands_vary: bool = False
    linked: bool = False
