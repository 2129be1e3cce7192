"""Memory and copies while a program is written: what is where, what moves, and when memory is free.

The clock is that of the compute stream. All device memory is acquired by that stream, in its order, so that streams
cannot starve each other; a copy that ends gives memory back at that time.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from simgpu.errors import OutOfMemoryError
from simgpu.hardware.spec import DEVICE, HOST
from simgpu.online.lanes import Lanes
from simgpu.online.view import Flight, View
from simgpu.program.code import CodeWriter
from simgpu.program.instructions import COMPUTE
from simgpu.timeline.streams import StreamId


class OnlineMemory:
    """view: what a policy sees, which is kept up to date. came, left: called when a block's value is in device memory,
    and when it is not any more. short: called with the bytes that are missing; it gives some up."""

    def __init__(
        self, view: View, came: Callable[[int], None], left: Callable[[int], None], short: Callable[[int], None]
    ) -> None:
        self.view, self._came, self._left_to, self._short = view, came, left, short
        self.lanes = Lanes(view.node)
        self.code: defaultdict[StreamId, CodeWriter] = defaultdict(CodeWriter)
        self.compute = self.code[COMPUTE]
        #: Copies that have ended and that the policy has not heard of.
        self.ended: list[Flight] = []
        #: Copies to device memory under way: the event and the time of their end.
        self.arriving: dict[int, tuple[int, int]] = {}
        #: Copies from device memory under way: the event of their end.
        self.departing: dict[int, int] = {}
        #: Blocks that have been copied away: the event of that, until the compute stream has waited for it.
        self._departed: dict[int, int] = {}
        #: Blocks that have come back: the event of that, until the compute stream has waited for it.
        self._arrived: dict[int, int] = {}
        self._flights: list[tuple[int, int, Flight]] = []
        #: The last signal of the compute stream, and how many instructions it had then.
        self._reached = (-1, -1)
        self._locks: Counter[int] = Counter()
        self._events = self._moves = 0

    # --- blocks -----------------------------------------------------------------------------------------------

    def arrives(self, b: int) -> None:
        """The value of a block is in device memory."""
        self.view.here[b] = True
        self._moves += 1
        self.view.since[b] = self._moves
        self._came(b)

    def lock(self, b: int) -> None:
        """A block may not leave, until it is unlocked as often. The compute stream comes after its copy back."""
        self._settle(b)
        self._locks[b] += 1
        self.view.busy[b] = True

    def unlock(self, blocks: Iterable[int]) -> None:
        """The reverse of `lock`."""
        for b in blocks:
            self._locks[b] -= 1
            if not self._locks[b] and b not in self.arriving:
                self.view.busy[b] = False
                self._moves += 1
                self.view.since[b] = self._moves

    def is_locked(self, b: int) -> bool:
        """Whether a block may not leave."""
        return bool(self._locks[b])

    def exists(self, b: int) -> bool:
        """Whether a block's value is in some memory, or on its way."""
        view = self.view
        moving = b in self.arriving or b in self.departing
        return bool(view.here[b]) or moving or any(b in there for there in view.away.values())

    def source(self, b: int) -> str | None:
        """The memory, linked to the device's, that has a block's value."""
        return next((m for m, blocks in self.view.away.items() if b in blocks and self.lanes.links(m, DEVICE)), None)

    # --- room -------------------------------------------------------------------------------------------------

    def take(self, blocks: Sequence[int], who: str) -> None:
        """Acquires device memory for blocks, all at once; the compute stream waits for it.

        Raises `OutOfMemoryError`, which names `who`, where nothing more is given up.
        """
        if not len(blocks):
            return
        view = self.view
        need = int(view.sizes[list(blocks)].sum())
        while view.free + view.leaving < need:
            before = view.free + view.leaving
            self._short(need - before)
            if view.free + view.leaving <= before:
                raise self.out_of_memory(who, need)
        for b in blocks:
            self.order(b)
        self.compute.acquire(blocks)
        while view.free < need:
            self._pass_until(self._flights[0][0])
        view.free -= need

    def give_up(self, blocks: Sequence[int]) -> None:
        """Releases the device memory of blocks now; with it go their values there."""
        if len(blocks):
            for b in blocks:
                self._settle(b)
            self.compute.release(blocks)
            for b in blocks:
                self._leaves(b)
                self.view.free += int(self.view.sizes[b])

    def scratch(self, b: int) -> None:
        """Releases device memory that held no value."""
        self.compute.release((b,))
        self.view.free += int(self.view.sizes[b])

    def free(self, blocks: Iterable[int]) -> None:
        """Releases blocks everywhere: nothing needs them any more."""
        blocks = list(blocks)
        for b in blocks:
            self.wait_for(b)
            self.wait_until_left(b)
        self.give_up([b for b in blocks if self.view.here[b]])
        self.forget_copies(blocks)

    def forget_copies(self, blocks: Iterable[int]) -> None:
        """Releases copies in other memories: the block changes, or nothing needs it any more."""
        for b in blocks:
            for memory, there in self.view.away.items():
                if b in there:
                    there.discard(b)
                    self.order(b)
                    self.compute.release((b,), memory)
                    self._grow(memory, self.view.bytes_in(memory, b))

    def order(self, b: int) -> None:
        """Lets the compute stream come after a copy of a block that has ended."""
        if b in self._departed:
            self.compute.wait(self._departed.pop(b))

    def _settle(self, b: int) -> None:
        """Lets the compute stream come after the copy back of a block."""
        if b in self._arrived:
            self.compute.wait(self._arrived.pop(b))

    def _leaves(self, b: int) -> None:
        self.view.here[b] = False
        self._left_to(b)

    def _grow(self, memory: str, by: int) -> None:
        room = self.view.room[memory]
        if room is not None:
            self.view.room[memory] = room + by

    # --- copies -----------------------------------------------------------------------------------------------

    def evict(self, b: int, to: str) -> None:
        """Copies a block to another memory, unless its value is there, and releases its device memory then."""
        if b in self.view.away[to]:
            self.give_up([b])
            return
        self._settle(b)
        size, done = self.view.graph.copy_sizes[b], self._event()
        code = self.code[_stream(DEVICE, to)]
        code.wait(self._signal())
        code.acquire((b,), to)
        code.copy(b, DEVICE, to)
        code.release((b,))
        code.signal(done)
        self._grow(to, -self.view.bytes_in(to, b))
        self._leaves(b)
        self.departing[b] = done
        self.view.leaving += int(self.view.sizes[b])
        self._fly(Flight(b, DEVICE, to, self.lanes.copy(DEVICE, to, size, self.view.now_ns)))

    def fetch(self, b: int) -> None:
        """Copies a block back to device memory."""
        src = self.source(b)
        assert src is not None, "callers check that"
        self.take([b], f"block {self.view.graph.blocks[b].id}, which comes back,")
        code, arrived = self.code[_stream(src, DEVICE)], self._event()
        code.wait(self._signal())
        code.copy(b, src, DEVICE)
        code.signal(arrived)
        self.view.busy[b] = True
        ends = self.lanes.copy(src, DEVICE, self.view.graph.copy_sizes[b], self.view.now_ns)
        self.arriving[b] = arrived, ends
        self._fly(Flight(b, src, DEVICE, ends))

    def wait_for(self, b: int) -> None:
        """The compute stream waits until a block has arrived, if it has been on its way."""
        if b in self.arriving:
            self._pass_until(self.arriving[b][1])
        self._settle(b)

    def wait_until_left(self, b: int) -> None:
        """Lets a copy of a block to another memory end, if one is under way."""
        while b in self.departing:
            self._pass_until(self._flights[0][0])

    def finish(self) -> None:
        """The compute stream waits for all others."""
        for stream in [each for each in self.code if each != COMPUTE]:
            done = self._event()
            self.code[stream].signal(done)
            self.compute.wait(done)

    # --- the clock --------------------------------------------------------------------------------------------

    def advance(self, duration: int) -> None:
        """Lets a kernel run; copies end meanwhile."""
        self._pass_until(self.view.now_ns + duration)

    def _pass_until(self, time: int) -> None:
        while self._flights and self._flights[0][0] <= time:
            ends, _, flight = heapq.heappop(self._flights)
            self.view.now_ns = max(self.view.now_ns, ends)
            self._lands(flight)
        self.view.now_ns = max(self.view.now_ns, time)

    def _fly(self, flight: Flight) -> None:
        self._moves += 1
        heapq.heappush(self._flights, (flight.ends_ns, self._moves, flight))
        self.view.flights.append(flight)

    def _lands(self, flight: Flight) -> None:
        b, view = flight.block, self.view
        view.flights.remove(flight)
        self.ended.append(flight)
        if flight.src == DEVICE:
            view.leaving -= int(view.sizes[b])
            view.free += int(view.sizes[b])
            view.away[flight.dst].add(b)
            self._departed[b] = self.departing.pop(b)
        else:
            self._arrived[b] = self.arriving.pop(b)[0]
            view.busy[b] = self.is_locked(b)
            self.arrives(b)

    def _event(self) -> int:
        self._events += 1
        return self._events - 1

    def _signal(self) -> int:
        """The event that the compute stream has come to where it is."""
        event, position = self._reached
        if position != len(self.compute):
            event = self._event()
            self.compute.signal(event)
            self._reached = event, len(self.compute)
        return event

    def out_of_memory(self, who: str, need: int) -> OutOfMemoryError:
        """The error where `who` needs more memory than there can be."""
        view, graph = self.view, self.view.graph
        holders = sorted(((graph.blocks[b].id, graph.sizes[b]) for b in view.here.nonzero()[0]), key=lambda e: -e[1])
        kernel = graph.kernels[view.kernel].id if view.kernel < len(graph.kernels) else ""
        free, now = view.free, view.now_ns
        return OutOfMemoryError(who, DEVICE, need, free, free, view.budget, now, tuple(holders), kernel)


def _stream(src: str, dst: str) -> StreamId:
    """The stream of a direction of a link; those between device and host have their usual names."""
    if (src, dst) == (DEVICE, HOST):
        return StreamId(0, "d2h")
    if (src, dst) == (HOST, DEVICE):
        return StreamId(0, "h2d")
    return StreamId(0, f"{src}2{dst}")
