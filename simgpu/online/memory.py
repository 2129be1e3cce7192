"""Memory and copies while a program is written: what is where, what moves, and when memory is free.

The clock is that of the compute stream. All device memory is acquired by that stream, in its order, so that streams
cannot starve each other; a copy that ends gives memory back at that time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from simgpu.errors import OutOfMemoryError
from simgpu.hardware.spec import DEVICE, HOST
from simgpu.online.lanes import Lanes, Staging
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
        self._cells, self._sizes, self._away = view.cells, view.sizes.tolist(), list(view.away.items())
        self.lanes = Lanes(view.node)
        self.code: defaultdict[StreamId, CodeWriter] = defaultdict(CodeWriter)
        self.compute = self.code[COMPUTE]
        self._codes: dict[tuple[str, str], CodeWriter] = {}
        #: Copies that have ended and that the policy has not heard of.
        self.ended: deque[Flight] = deque()
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
        self._locks = [0] * len(self._sizes)
        #: Blocks on their way through the host.
        self._passing: set[int] = set()
        self._staging = Staging(view.staging)
        self._ways: dict[str, tuple[str, ...]] = {}
        self._events = self._moves = 0

    # --- blocks -----------------------------------------------------------------------------------------------

    def arrive(self, blocks: Iterable[int]) -> None:
        """The values of blocks are in device memory."""
        here, since, came, moves = self._cells.here, self._cells.since, self._came, self._moves
        for b in blocks:
            here[b] = True
            moves += 1
            since[b] = moves
            came(b)
        self._moves = moves

    def lock(self, b: int) -> None:
        """A block may not leave, until it is unlocked as often. The compute stream comes after its copy back."""
        if b in self._arrived:
            self._settle(b)
        self._locks[b] += 1
        self._cells.busy[b] = True

    def lock_present(self, blocks: Iterable[int]) -> list[int]:
        """Locks those of these blocks that are in device memory, and notes that they are used; returns the others."""
        here, busy, last_use_ns = self._cells.here, self._cells.busy, self._cells.last_use_ns
        arrived, locks, now_ns, missing = self._arrived, self._locks, self.view.now_ns, []
        for b in blocks:
            last_use_ns[b] = now_ns
            if not here[b]:
                missing.append(b)
                continue
            if b in arrived:
                self._settle(b)
            locks[b] += 1
            busy[b] = True
        return missing

    def unlock(self, blocks: Iterable[int]) -> None:
        """The reverse of `lock`."""
        locks, arriving, moves = self._locks, self.arriving, self._moves
        busy, since = self._cells.busy, self._cells.since
        for b in blocks:
            locks[b] -= 1
            if not locks[b] and b not in arriving:
                busy[b] = False
                moves += 1
                since[b] = moves
        self._moves = moves

    def is_locked(self, b: int) -> bool:
        """Whether a block may not leave."""
        return bool(self._locks[b])

    def exists(self, b: int) -> bool:
        """Whether a block's value is in some memory, or on its way."""
        if self._cells.here[b] or b in self.arriving or b in self.departing:
            return True
        return any(b in there for _, there in self._away)

    def existing(self) -> set[int]:
        """The blocks whose value is in some memory, or on its way."""
        here = np.flatnonzero(self.view.here).tolist()
        return {*here, *self.arriving, *self.departing}.union(*self.view.away.values())

    def source(self, b: int) -> str | None:
        """The memory that has a block's value, the nearest one of several."""
        for memory in self.view.places:
            if b in self.view.away[memory]:
                return memory
        return None

    # --- room -------------------------------------------------------------------------------------------------

    def take(self, blocks: Sequence[int], kernel: int | None, *, again: bool = False) -> None:
        """Acquires device memory for blocks, all at once; the compute stream waits for it.

        kernel: for which, None where they come back; again: whether it runs again. Raises `OutOfMemoryError`, which
        names it, where nothing more is given up.
        """
        view = self.view
        need = 0
        for b in blocks:
            need += self._sizes[b]
        while view.free + view.leaving < need:
            before = view.free + view.leaving
            self._short(need - before)
            if view.free + view.leaving > before:
                continue
            if not self.arriving:
                raise self.out_of_memory(self._who(blocks, kernel, again=again), need)
            # What is on its way here can leave once it has come.
            self.wait_for(min(self.arriving, key=lambda b: self.arriving[b][1]))
        if self._departed:
            for b in blocks:
                if b in self._departed:
                    self.order(b)
        self.compute.acquire(blocks)
        while view.free < need:
            self._pass_until(self._flights[0][0])
        view.free -= need

    def _who(self, blocks: Sequence[int], kernel: int | None, *, again: bool) -> str:
        graph = self.view.graph
        if kernel is None:
            return f"block {graph.blocks[blocks[0]].id}, which comes back,"
        what = graph.kernels[kernel]
        return f"kernel {what.id} ({what.op}){', which runs again,' if again else ''}"

    def give_up(self, blocks: Sequence[int]) -> None:
        """Releases the device memory of blocks now; with it go their values there."""
        if self._arrived:
            for b in blocks:
                if b in self._arrived:
                    self._settle(b)
        self.compute.release(blocks)
        here, left, sizes, view = self._cells.here, self._left_to, self._sizes, self.view
        for b in blocks:
            here[b] = False
            left(b)
            view.free += sizes[b]

    def scratch(self, b: int) -> None:
        """Releases device memory that held no value."""
        self.compute.release((b,))
        self.view.free += self._sizes[b]

    def free(self, blocks: Sequence[int]) -> None:
        """Releases blocks everywhere: nothing needs them any more."""
        if self.arriving or self.departing:
            for b in blocks:
                self.wait_for(b)
                self.wait_until_left(b)
        here = self._cells.here
        if present := [b for b in blocks if here[b]]:
            self.give_up(present)
        self.forget_copies(blocks)

    def forget_copies(self, blocks: Iterable[int]) -> None:
        """Gives up copies in other memories: the block changes, or nothing needs it any more. Homes stay acquired."""
        away = self._away
        for b in blocks:
            for memory, there in away:
                if b in there:
                    self._forget_copy(b, memory)

    def _forget_copy(self, b: int, memory: str) -> None:
        self.view.away[memory].discard(b)
        self.order(b)
        if self.view.homes.get(b) != memory:
            self.compute.release((b,), memory)
            self._grow(memory, b, 1)

    def go_home(self, b: int, home: str) -> None:
        """Brings the home of a block up to date, from device memory if need be, and gives up its other memory."""
        if b not in self.view.away[home]:
            self.forget_copies([b])
            self.evict(b, home)
            return
        if self._cells.here[b]:
            self.give_up([b])
        for memory in (each for each, there in self.view.away.items() if each != home and b in there):
            self._forget_copy(b, memory)

    def order(self, b: int) -> None:
        """Lets the compute stream come after a copy of a block that has ended."""
        if b in self._departed:
            self.compute.wait(self._departed.pop(b))

    def _settle(self, b: int) -> None:
        """Lets the compute stream come after the copy back of a block."""
        self.compute.wait(self._arrived.pop(b))

    def _grow(self, memory: str, b: int, sign: int) -> None:
        """Adds the bytes of a block to the room that is left in a memory, or takes them."""
        room = self.view.room[memory]
        if room is not None:
            self.view.room[memory] = room + sign * self.view.bytes_in(memory, b)

    # --- copies -----------------------------------------------------------------------------------------------

    def evict(self, b: int, to: str) -> None:
        """Copies a block to another memory, unless its value is there, and releases its device memory then.

        A block that is to go through the host, and whose value is there, stays there.
        """
        way = self._way_to(to)
        for memory in way[1:]:
            if b in self.view.away[memory]:
                self.give_up([b])
                return
        if b in self._arrived:
            self._settle(b)
        if self.view.homes.get(b) != to:
            self._grow(to, b, -1)
        self._cells.here[b] = False
        self._left_to(b)
        self.view.leaving += self._sizes[b]
        self.departing[b], _ = self._move(b, way)

    def fetch(self, b: int) -> None:
        """Copies a block back to device memory."""
        source = self.source(b)
        assert source is not None, "callers check that"
        self.take([b], None)
        self._cells.busy[b] = True
        self.arriving[b] = self._move(b, self._way_to(source)[::-1])

    def _way_to(self, memory: str) -> tuple[str, ...]:
        if memory not in self._ways:
            self._ways[memory] = self.view.node.way_to(memory)
        return self._ways[memory]

    def _move(self, b: int, way: Sequence[str]) -> tuple[int, int]:
        """Copies a block on a way from or to the device; returns event and time of the end."""
        if len(way) == 2:
            return self._hop(b, way[0], way[1], (self._signal(),), self.view.now_ns)
        view, need = self.view, self.view.bytes_in(HOST, b)
        left, left_ns = self._staging.take(need, view.now_ns)
        before = (self._signal(),) if left is None else (self._signal(), left)
        ready = max(view.now_ns, left_ns)
        self._passing.add(b)
        for src, dst in pairwise(way):
            reached, ready = self._hop(b, src, dst, before, ready)
            before = (reached,)
        # A block leaves the host when it has gone on.
        self._staging.leaves(need, reached, ready)
        return reached, ready

    def _hop(self, b: int, src: str, dst: str, before: Sequence[int], ready_ns: int) -> tuple[int, int]:
        """Copies a block over a link after these events; returns event and time of the end."""
        code, reached = self._code_of(src, dst), self._event()
        for event in before:
            code.wait(event)
        if dst != DEVICE and self.view.homes.get(b) != dst:
            code.acquire((b,), dst)
        code.copy(b, src, dst)
        if src == DEVICE or (b in self._passing and src == HOST):
            code.release((b,), src)
        code.signal(reached)
        return reached, self._fly(b, src, dst, ready_ns)

    def _code_of(self, src: str, dst: str) -> CodeWriter:
        """What writes the stream of a direction of a link."""
        if (src, dst) not in self._codes:
            self._codes[src, dst] = self.code[_stream(src, dst)]
        return self._codes[src, dst]

    def wait_for(self, b: int) -> None:
        """The compute stream waits until a block has arrived, if it has been on its way."""
        if b in self.arriving:
            self._pass_until(self.arriving[b][1])
        if b in self._arrived:
            self._settle(b)

    def wait_until_left(self, b: int) -> None:
        """The compute stream waits until a copy of a block to another memory has ended, if one is under way."""
        if b in self.departing:
            while b in self.departing:
                self._pass_until(self._flights[0][0])
            self.order(b)

    def finish(self) -> None:
        """The compute stream waits for all others."""
        for stream in [each for each in self.code if each != COMPUTE]:
            done = self._event()
            self.code[stream].signal(done)
            self.compute.wait(done)
        while self._flights:
            self._pass_until(self._flights[0][0])

    # --- the clock --------------------------------------------------------------------------------------------

    def advance(self, duration: int) -> None:
        """Lets a kernel run; copies end meanwhile."""
        ends = self.view.now_ns + duration
        if self._flights and self._flights[0][0] <= ends:
            self._pass_until(ends)
        else:
            self.view.now_ns = ends

    def _pass_until(self, time: int) -> None:
        while self._flights and self._flights[0][0] <= time:
            ends, _, flight = heapq.heappop(self._flights)
            self.view.now_ns = max(self.view.now_ns, ends)
            self._lands(flight)
        self.view.now_ns = max(self.view.now_ns, time)

    def _fly(self, b: int, src: str, dst: str, ready_ns: int) -> int:
        """Issues a copy that may begin at a time; returns when it ends."""
        ends = self.lanes.copy(src, dst, self.view.graph.copy_sizes[b], ready_ns)
        flight = Flight(b, src, dst, ends)
        self._moves += 1
        heapq.heappush(self._flights, (ends, self._moves, flight))
        self.view.flights.append(flight)
        return ends

    def _lands(self, flight: Flight) -> None:
        b, view = flight.block, self.view
        view.flights.remove(flight)
        self.ended.append(flight)
        if flight.src == DEVICE:
            view.leaving -= self._sizes[b]
            view.free += self._sizes[b]
        if flight.dst == HOST and b in self._passing:
            return
        self._passing.discard(b)
        if flight.dst == DEVICE:
            self._arrived[b] = self.arriving.pop(b)[0]
            self._cells.busy[b] = self.is_locked(b)
            self.arrive((b,))
        else:
            view.away[flight.dst].add(b)
            self._departed[b] = self.departing.pop(b)

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
        held = [(int(b), "") for b in view.here.nonzero()[0]]
        held += [(b, " (arriving)") for b in self.arriving]
        held += [(flight.block, " (leaving)") for flight in view.flights if flight.src == DEVICE]
        holders = sorted(((f"{graph.blocks[b].id}{how}", graph.sizes[b]) for b, how in held), key=lambda each: -each[1])
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
