"""The program of a swap plan: the decisions of `simgpu.planning.slots` as instructions of three streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from simgpu.graph.reordered import Reordered
from simgpu.graph.taskgraph import BEFORE
from simgpu.planning.slot_planner import Planned, SlotPlanner
from simgpu.planning.slots import (
    AFTER,
    AFTER_LEFT,
    BEGUN_AT,
    BIRTH,
    COPY_IN,
    COPY_OUT,
    DROP,
    IN_NS,
    KIND,
    OF,
    OUT_NS,
    POSITION,
)
from simgpu.program.code import CodeWriter
from simgpu.program.instructions import COMPUTE, D2H, DEVICE, H2D, HOST, InitialContents, Program, Segment
from simgpu.timeline.streams import StreamId


def program_of(planner: SlotPlanner, order: Sequence[int], planned: Planned) -> Program:
    """The program that runs the kernels in this order and makes the copies of its plan.

    A kernel waits until the copies out have ended that free the slots of its results, and a copy back until its slot is
    free, so that no request ever waits in a pool that counts bytes: the classes alone limit the memory.
    """
    writer = _Writer(planner, order, planned)
    writer.write()
    streams = {stream: writer.code[stream].code() for stream in sorted(writer.code, key=lambda stream: stream.rank)}
    moved = tuple(order) != tuple(range(len(order)))
    return Program(
        (Segment(streams),),
        resident=writer.resident,
        transforms=(Reordered(tuple(order)),) if moved else (),
        other_contents=(InitialContents(HOST, planned.away),) if planned.away else (),
    )


@dataclass
class _Writer:
    """Kernels are written by their position in the order, which is their number in the program.

    An event of a stream is known by its number there: the copy's place in the stream, or the kernels that have ended.
    events: its number in the program; awaited: by waiting and other stream, the last one that it waited for; places: of
    the copies out, in the order in which they were decided; here: the blocks on the device at the end of the iteration;
    on_host: those whose values are on the host.
    """

    planner: SlotPlanner
    order: Sequence[int]
    planned: Planned
    code: defaultdict[StreamId, CodeWriter] = field(default_factory=lambda: defaultdict(CodeWriter))
    events: dict[tuple[StreamId, int], int] = field(default_factory=dict)
    awaited: dict[tuple[StreamId, StreamId], int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    here: set[int] = field(default_factory=set)
    on_host: set[int] = field(default_factory=set)

    @property
    def resident(self) -> tuple[int, ...]:
        """The persistent blocks whose home is the device."""
        births, away = self.planner.graph.births, set(self.planned.away)
        return tuple(b for b, stays in enumerate(self.planner.stays) if stays and births[b] == BEFORE and b not in away)

    def write(self) -> None:
        """All streams, with the compute stream last: it signals what the others wait for."""
        records = self.planned.records.tolist()
        drops: defaultdict[int, list[int]] = defaultdict(list)
        waits: defaultdict[int, list[tuple[StreamId, int]]] = defaultdict(list)
        left: defaultdict[int, list[int]] = defaultdict(list)
        outs, ins = self._begun(COPY_OUT, OUT_NS), self._begun(COPY_IN, IN_NS)
        place_of = {row: place for place, row in enumerate(outs)}
        self.places = {number: place_of[row] for number, row in enumerate(sorted(outs))}
        for place, row in enumerate(outs):
            self._copy_out(records[row][OF], records[row][AFTER], place)
        for place, row in enumerate(ins):
            self._copy_in(records[row][OF], records[row][AFTER], records[row][AFTER_LEFT], place)
            waits[records[row][POSITION]].append((H2D, place))
        self.here.update(self.resident)
        for kind, b, at, after, *_ in records:
            if kind in (COPY_IN, BIRTH):
                self.here.add(b)
            else:
                self.here.discard(b)
            if kind == COPY_OUT:
                left[at].append(b)
            elif kind == DROP:
                drops[after].append(b)
            elif kind == BIRTH and after < 0:
                waits[at].append((D2H, self.places[-1 - after]))
        if outs:
            waits[len(self.order)].append((D2H, len(outs) - 1))
        self._kernels(drops, waits, left)

    def _begun(self, kind: int, column: int) -> list[int]:
        """The records of copies of a kind in the order in which they begin; of those at once, the shortest first.

        column: of their times.
        """
        rows, times = self.planned.records.tolist(), self.planner.tables.blocks[:, column].tolist()
        those = [number for number, row in enumerate(rows) if row[KIND] == kind]
        return sorted(those, key=lambda number: (rows[number][BEGUN_AT], times[rows[number][OF]], number))

    def _copy_out(self, b: int, after: int, place: int) -> None:
        """A copy out, after so many kernels."""
        self._wait(D2H, COMPUTE, after)
        code = self.code[D2H]
        code.acquire((b,), HOST)
        code.copy(b, DEVICE, HOST)
        code.release((b,))
        self._signal(D2H, place)

    def _copy_in(self, b: int, after: int, after_left: int, place: int) -> None:
        """A copy in, after two events as `simgpu.planning.slots` numbers them."""
        # The begin comes before every other event.
        for event in sorted({after, after_left} - {0} or {0}):
            if event < 0:
                self._wait(H2D, D2H, self.places[-1 - event])
            else:
                self._wait(H2D, COMPUTE, event)
        code = self.code[H2D]
        code.acquire((b,))
        code.copy(b, HOST, DEVICE)
        self._signal(H2D, place)

    def _kernels(
        self,
        drops: dict[int, list[int]],
        waits: dict[int, list[tuple[StreamId, int]]],
        left: dict[int, list[int]],
    ) -> None:
        """The compute stream. drops: what is released after so many kernels, since the host has it; waits: what a
        kernel waits for; left: what has been copied out when it runs."""
        planner, graph, code = self.planner, self.planner.graph, self.code[COMPUTE]
        last = {b: at for at, k in enumerate(self.order) for b in planner.used[k]}
        alive = {b for b, birth in enumerate(graph.births) if birth == BEFORE}
        self.on_host.update(self.planned.away)
        if initialized := [b for b in sorted(alive) if not planner.stays[b]]:
            code.acquire(initialized)
            code.initialize(initialized)
        self._signal_if_awaited(0)
        for at, k in enumerate(self.order):
            self._wait_for_all(waits[at])
            self.on_host.update(left[at])
            used = planner.used[k]
            if born := [b for b in used if b not in alive]:
                code.acquire(born)
                alive.update(born)
                if initialized := [b for b in born if b in graph.written_by_host]:
                    code.initialize(initialized)
            code.launch(at)
            dead = [b for b in used if last[b] == at and not planner.stays[b]]
            self._release([*dead, *drops[at + 1]])
            self._release_on_host([*dead, *graph.writes[k]])
            self._signal_if_awaited(at + 1)
        self._wait_for_all(waits[len(self.order)])
        self.on_host.update(left[len(self.order)])
        home = {*self.resident, *self.planned.away}
        kept = [b for b in range(len(graph.sizes)) if planner.stays[b] and b in alive]
        empty = [b for b in kept if not graph.sizes[b]]
        self._release([b for b in kept if b not in home and (b in self.here or b in empty)])
        self._release_on_host([b for b in kept if b not in self.planned.away])

    def _wait_for_all(self, events: list[tuple[StreamId, int]]) -> None:
        for stream, number in events:
            self._wait(COMPUTE, stream, number)

    def _release(self, blocks: list[int]) -> None:
        if blocks:
            self.code[COMPUTE].release(blocks)

    def _release_on_host(self, blocks: list[int]) -> None:
        """Release what the host has of blocks that have changed, or are no longer needed there."""
        if there := [b for b in dict.fromkeys(blocks) if b in self.on_host]:
            self.code[COMPUTE].release(there, HOST)
            self.on_host.difference_update(there)

    def _wait(self, stream: StreamId, other: StreamId, number: int) -> None:
        """Let a stream wait for an event of another one, unless it has waited for a later one."""
        if number > self.awaited.get((stream, other), -1):
            self.awaited[stream, other] = number
            self.code[stream].wait(self._event(other, number))

    def _signal(self, stream: StreamId, number: int) -> None:
        self.code[stream].signal(self._event(stream, number))

    def _signal_if_awaited(self, number: int) -> None:
        if (COMPUTE, number) in self.events:
            self._signal(COMPUTE, number)

    def _event(self, stream: StreamId, number: int) -> int:
        return self.events.setdefault((stream, number), len(self.events))
