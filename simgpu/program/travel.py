"""How a block that leaves the device travels: as it is, encoded by the GPU, or encoded on the host.

* As it is: copied out, and copied in again.
* Encoded by the GPU: the compute stream encodes it, the encoded form is copied out and in, the compute stream decodes
  it before its next use. Only the encoded form is on the link and on the host.
* Encoded on the host: copied out as it is, then encoded in host memory, and decoded there before it is copied in.
  Only the host's memory is saved.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    H2D,
    HOST,
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Instruction,
    Release,
    Signal,
    Space,
)
from simgpu.program.placement import Swap
from simgpu.timeline.streams import StreamId


@dataclass
class Travel:
    """Writes the instructions of swaps into the streams' code.

    events: how many event numbers are taken. copied_out[swap]: event of the end of its copy out; away[swap]: event
    after which the host holds it as it will stay there; back[swap]: event of the end of its copy in.
    """

    code: dict[StreamId, list[Instruction]] = field(default_factory=lambda: defaultdict(list))
    events: int = 0
    copied_out: dict[Swap, int] = field(default_factory=dict)
    away: dict[Swap, int] = field(default_factory=dict)
    back: dict[Swap, int] = field(default_factory=dict)
    _heard: set[tuple[StreamId, int]] = field(default_factory=set)

    def event(self) -> int:
        """A new event number."""
        self.events += 1
        return self.events - 1

    def _wait(self, stream: StreamId, *events: int) -> None:
        """Let a stream wait for events, each of them once."""
        for event in events:
            if (stream, event) not in self._heard:
                self._heard.add((stream, event))
                self.code[stream].append(Await(event))

    def encode(self, swap: Swap) -> None:
        """The GPU encodes the block, if it is to: between two kernels of its compute stream."""
        if swap.encoded_by_gpu:
            form = _form(swap)
            self.code[COMPUTE] += [Acquire((form,)), Encode(swap.block, form)]

    def out(self, swap: Swap, after: int, *, release: bool, free: int | None = None) -> None:
        """Copy out what travels, once `after` has happened.

        release: give its device memory back at the copy's end, and not before the event `free`.
        """
        moving = _moving(swap)
        self._wait(D2H, after)
        code = self.code[D2H]
        code += [Acquire((moving,), Space.HOST), CopyOut(moving)]
        if free is not None:
            self._wait(D2H, free)
        if release:
            code.append(Release((moving,)))
        self.copied_out[swap] = self.away[swap] = self.event()
        code.append(Signal(self.copied_out[swap]))
        if swap.encoded_by_host:
            self._encode_on_host(swap)

    def _encode_on_host(self, swap: Swap) -> None:
        form = _form(swap)
        self.away[swap] = self.event()
        self._wait(HOST, self.copied_out[swap])
        self.code[HOST] += [
            Acquire((form,), Space.HOST),
            Encode(swap.block, form, Space.HOST),
            Release((swap.block,), Space.HOST),
            Signal(self.away[swap]),
        ]

    def into(self, swap: Swap, after: tuple[int, ...]) -> None:
        """Copy in what travels, once these events have happened, into memory that the copy takes."""
        after = self._readied(swap, after)
        self._wait(H2D, *after)
        self.code[H2D].append(Acquire((_moving(swap),)))
        self._copy_in(swap)

    def fetch(self, swap: Swap) -> None:
        """Copy in what travels from here on, into memory that the compute stream takes.

        So all memory that anybody may have to wait for is taken by one stream, and only copies out give it what it
        waits for: streams cannot starve each other. The compute stream also waits until the block has left.
        """
        compute = self.code[COMPUTE]
        if swap.drain:
            # Copies of one direction end in the order in which they were issued.
            self._wait(COMPUTE, *(list(copies.values())[-1] for copies in (self.copied_out, self.back) if copies))
        self._wait(COMPUTE, self.away[swap])
        reached = self.event()
        compute += [Acquire((_moving(swap),)), Signal(reached)]
        self._wait(H2D, *self._readied(swap, (reached,)))
        self._copy_in(swap)

    def _readied(self, swap: Swap, after: tuple[int, ...]) -> tuple[int, ...]:
        """The events after which the host holds what travels."""
        return (self._decode_on_host(swap, after),) if swap.encoded_by_host else after

    def _copy_in(self, swap: Swap) -> None:
        self.back[swap] = self.event()
        moving = _moving(swap)
        self.code[H2D] += [CopyIn(moving), Release((moving,), Space.HOST), Signal(self.back[swap])]

    def _decode_on_host(self, swap: Swap, after: tuple[int, ...]) -> int:
        self._wait(HOST, *after)
        form, decoded = _form(swap), self.event()
        self.code[HOST] += [
            Acquire((swap.block,), Space.HOST),
            Decode(swap.block, form, Space.HOST),
            Release((form,), Space.HOST),
            Signal(decoded),
        ]
        return decoded

    def wait_for_copy_in(self, swap: Swap) -> None:
        """Let the compute stream wait until a fetched block, or its encoded form, is there."""
        self._wait(COMPUTE, self.back[swap])

    def decode(self, swap: Swap) -> None:
        """The GPU decodes the block, if it is to."""
        if swap.encoded_by_gpu:
            form = _form(swap)
            self.code[COMPUTE] += [Acquire((swap.block,)), Decode(swap.block, form), Release((form,))]


def _moving(swap: Swap) -> int:
    return _form(swap) if swap.encoded_by_gpu else swap.block


def _form(swap: Swap) -> int:
    assert swap.form is not None, "the callers ask who encodes it"
    return swap.form
