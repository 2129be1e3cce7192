"""Instructions of swaps: plain, encoded by the GPU, or encoded on the host.

* Plain: the block is copied out, and later copied in.
* Encoded by the GPU: the compute stream encodes the block, its encoded form is copied out and in, and the compute
  stream decodes it before its next use. Only the encoded form is on the link and on the host.
* Encoded on the host: the block is copied out, then encoded in host memory, and decoded there before it is copied in.
  This saves only host memory.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from simgpu.program.code import CodeWriter
from simgpu.program.instructions import COMPUTE, D2H, DEVICE, H2D, HOST, HOST_CORES
from simgpu.program.placement import Swap
from simgpu.timeline.streams import StreamId


@dataclass
class SwapWriter:
    """Writes the instructions of swaps into the streams' code.

    events: number of events so far. copied_out[swap]: event of the end of its device-to-host copy; offloaded[swap]:
    event after which the host has its final form; copied_in[swap]: event of the end of its host-to-device copy.
    """

    code: dict[StreamId, CodeWriter] = field(default_factory=lambda: defaultdict(CodeWriter))
    events: int = 0
    copied_out: dict[Swap, int] = field(default_factory=dict)
    offloaded: dict[Swap, int] = field(default_factory=dict)
    copied_in: dict[Swap, int] = field(default_factory=dict)
    _awaited: dict[StreamId, bytearray] = field(default_factory=lambda: defaultdict(bytearray))

    def event(self) -> int:
        """A new event number."""
        self.events += 1
        return self.events - 1

    def _wait(self, stream: StreamId, *events: int) -> None:
        """Let a stream wait for events, once for each."""
        awaited = self._awaited[stream]
        awaited += bytes(self.events - len(awaited))
        for event in events:
            if not awaited[event]:
                awaited[event] = True
                self.code[stream].wait(event)

    def encode(self, swap: Swap) -> None:
        """If the GPU encodes the block: do so on the compute stream, between two kernels."""
        if swap.encoded_by_gpu:
            form = _form(swap)
            code = self.code[COMPUTE]
            code.acquire((form,))
            code.encode(swap.block, form)

    def copy_d2h(self, swap: Swap, after: int, *, release: bool, free: int | None = None) -> None:
        """Copy out the block or its encoded form after the event `after`.

        release: free its device memory at the copy's end, and not before the event `free`.
        """
        copied = _copied_block(swap)
        self._wait(D2H, after)
        code = self.code[D2H]
        code.acquire((copied,), HOST)
        code.copy(copied, DEVICE, HOST)
        if free is not None:
            self._wait(D2H, free)
        if release:
            code.release((copied,))
        self.copied_out[swap] = self.offloaded[swap] = self.event()
        code.signal(self.copied_out[swap])
        if swap.encoded_by_host:
            self._encode_on_host(swap)

    def _encode_on_host(self, swap: Swap) -> None:
        form = _form(swap)
        self.offloaded[swap] = self.event()
        self._wait(HOST_CORES, self.copied_out[swap])
        code = self.code[HOST_CORES]
        code.acquire((form,), HOST)
        code.encode(swap.block, form, HOST)
        code.release((swap.block,), HOST)
        code.signal(self.offloaded[swap])

    def copy_h2d(self, swap: Swap, after: tuple[int, ...]) -> None:
        """Copy in the block or its encoded form after these events, into memory that the copy stream acquires."""
        after = self._ready_on_host(swap, after)
        self._wait(H2D, *after)
        self.code[H2D].acquire((_copied_block(swap),))
        self._copy_in(swap)

    def fetch(self, swap: Swap) -> None:
        """Copy in the block or its encoded form, into memory that the compute stream acquires here.

        So a single stream acquires all memory for which a stream may have to wait, and only copies out release it:
        streams cannot starve each other. The compute stream also waits until the block has been offloaded.
        """
        compute = self.code[COMPUTE]
        if swap.drain:
            # Copies of one direction end in the order in which they were issued.
            self._wait(COMPUTE, *(list(copies.values())[-1] for copies in (self.copied_out, self.copied_in) if copies))
        self._wait(COMPUTE, self.offloaded[swap])
        reached = self.event()
        compute.acquire((_copied_block(swap),))
        compute.signal(reached)
        self._wait(H2D, *self._ready_on_host(swap, (reached,)))
        self._copy_in(swap)

    def _ready_on_host(self, swap: Swap, after: tuple[int, ...]) -> tuple[int, ...]:
        """The events after which the host has the block to be copied in."""
        return (self._decode_on_host(swap, after),) if swap.encoded_by_host else after

    def _copy_in(self, swap: Swap) -> None:
        self.copied_in[swap] = self.event()
        code, copied = self.code[H2D], _copied_block(swap)
        code.copy(copied, HOST, DEVICE)
        code.release((copied,), HOST)
        code.signal(self.copied_in[swap])

    def _decode_on_host(self, swap: Swap, after: tuple[int, ...]) -> int:
        self._wait(HOST_CORES, *after)
        form, decoded = _form(swap), self.event()
        code = self.code[HOST_CORES]
        code.acquire((swap.block,), HOST)
        code.decode(swap.block, form, HOST)
        code.release((form,), HOST)
        code.signal(decoded)
        return decoded

    def wait_for_copy_in(self, swap: Swap) -> None:
        """Let the compute stream wait until a fetched block, or its encoded form, has arrived."""
        self._wait(COMPUTE, self.copied_in[swap])

    def ended_out(self, swap: Swap) -> int:
        """The event of the end of a copy out that nothing else will wait for."""
        del self.offloaded[swap]
        return self.copied_out.pop(swap)

    def ended_in(self, swap: Swap) -> int:
        """The event of the end of a copy in that nothing else will wait for."""
        return self.copied_in.pop(swap)

    def decode(self, swap: Swap) -> None:
        """If the GPU encodes the block: decode it on the compute stream."""
        if swap.encoded_by_gpu:
            form = _form(swap)
            code = self.code[COMPUTE]
            code.acquire((swap.block,))
            code.decode(swap.block, form)
            code.release((form,))


def _copied_block(swap: Swap) -> int:
    return _form(swap) if swap.encoded_by_gpu else swap.block


def _form(swap: Swap) -> int:
    assert swap.form is not None, "callers check that the swap is encoded"
    return swap.form
