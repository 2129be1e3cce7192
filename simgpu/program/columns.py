"""A program as columns of numbers, for those who run or examine it as arrays."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import (
    INSTRUCTIONS,
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

Ints = NDArray[np.int64]
_KINDS = set(INSTRUCTIONS)

#: The first column: what a row is. The order of the first eight is that within an instant, the last of them together.
PASS, AWAIT, END, RELEASE, SIGNAL, ACQUIRE, LAUNCH, COPY, RELAUNCH, COPY_AS, ENCODE, DECODE, INITIALIZE = range(13)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A program's instructions, four numbers each: the code and up to three operands.

    LAUNCH kernel. RELAUNCH kernel, and where the blocks that it is to make begin and end in `blocks`. COPY block,
    source, target. COPY_AS the same with the encoded form of a block that becomes of it in the target. ENCODE, DECODE
    encoded form, memory. ACQUIRE, RELEASE, INITIALIZE memory, and where its blocks begin and end in `blocks`. SIGNAL
    event. AWAIT event, lag. END nothing: each stream's part of a segment ends with one. Events are numbered from 0,
    memories are positions in `memories`.

    first[stream, segment]: the row where that part begins. repeats[segment]. events: what the program calls them.
    offsets: those of requests that give any, by row.

    >>> from simgpu.program.check import check_program
    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> columns = check_program(lower(graph, Placement()), graph).columns
    >>> columns.rows[:2].tolist(), columns.blocks.tolist()
    ([[5, 0, 0, 1], [6, 0, 0, 0]], [1, 2, 1, 2])
    """

    rows: Ints
    first: Ints
    repeats: Ints
    blocks: Ints
    memories: tuple[str, ...]
    events: tuple[int, ...]
    offsets: dict[int, tuple[int, ...]]

    @property
    def streams_of_rows(self) -> Ints:
        """The stream of each row."""
        return np.repeat(np.arange(len(self.first)), np.diff([*self.first[:, 0], len(self.rows)]))

    @property
    def segments_of_rows(self) -> Ints:
        """The segment of each row."""
        segments = np.tile(np.arange(len(self.repeats)), len(self.first))
        return np.repeat(segments, np.diff([*self.first.ravel(), len(self.rows)]))


class DoubtfulError(Exception):
    """Something in a program is not as simple as columns need it."""


class ColumnWriter:
    """Writes the columns of a program, as an `Effects` of its instructions, and looks at all fields on the way.

    It accepts only what is certainly right, and raises `DoubtfulError` for the rest, which `simgpu.program.check` then
    examines. So it checks in bulk what it can: types and ranges of whole columns, each way of a copy once.

    memories: the names of memories by number; more of `known` are added as the program names them. can_copy: whether a
    program may copy from one memory to another; None if it may move no block. signalled: by event, the segment that
    signals it.
    """

    def __init__(
        self,
        graph: TaskGraph,
        memories: Iterable[str],
        known: Container[str],
        can_copy: Callable[[str, str], bool] | None,
    ) -> None:
        self.graph = graph
        self.memories = {name: number for number, name in enumerate(memories)}
        self.known = known
        self.can_copy = can_copy
        self.rows: list[int] = []
        self.blocks: list[int] = []
        self.offsets: dict[int, tuple[int, ...]] = {}
        self.events: dict[int, int] = {}
        self.ways: dict[tuple[str, str], tuple[int, int]] = {}
        self.signalled: dict[int, int] = {}
        self.segment = 0

    def columns(self, program: Program) -> Columns:
        """The columns of a program whose segments, streams and sizes are checked."""
        first, launched = [], set()
        for stream in program.streams:
            for self.segment, segment in enumerate(program.segments):
                code = segment.streams.get(stream, ())
                kinds = set(map(type, code))
                if not kinds <= _KINDS:
                    raise DoubtfulError
                if Launch in kinds:
                    launched.add(stream.role)
                first.append(len(self.rows) // 4)
                for instruction in code:
                    instruction.apply(self)
                self.rows += (END, 0, 0, 0)
        self._must(not launched or ("compute" in launched and launched <= {"compute", "host"}))
        self._must(len(self.events) == len(self.signalled))
        # Codes and the last operands are the writer's own.
        for given in (self.rows[1::4], self.rows[2::4], self.blocks):
            self._must(set(map(type, given)) <= {int})
        rows = _numbers(self.rows).reshape(-1, 4)
        blocks = _numbers(self.blocks)
        self._check_ranges(rows, blocks)
        shape = (-1, len(program.segments))
        repeats = np.array([segment.repeat for segment in program.segments], dtype=np.int64)
        begins = np.array(first, dtype=np.int64).reshape(shape)
        return Columns(rows, begins, repeats, blocks, tuple(self.memories), tuple(self.events), self.offsets)

    def runs(self, launch: Launch) -> None:
        """A kernel."""
        if launch.recompute is False and launch.makes == ():
            self.rows += (LAUNCH, launch.kernel, 0, 0)
            return
        self._must(launch.recompute is True and type(launch.makes) is tuple)
        begin = len(self.blocks)
        self.blocks += launch.makes
        self.rows += (RELAUNCH, launch.kernel, begin, len(self.blocks))

    def moves(self, work: Copy | Encode | Decode, source: Location, target: Location) -> None:
        """A copy or a codec."""
        self._must(self.can_copy is not None)
        if isinstance(work, Copy):
            form = work.into
            self.rows += (COPY if form is None else COPY_AS, target.block, *self._way(work.src, work.dst))
        else:
            code, form = (ENCODE, work.into) if isinstance(work, Encode) else (DECODE, work.source)
            self.rows += (code, form, self._number(work.memory), 0)
        if form is not None:
            encoded = self.graph.encoded.get(form)
            certain = type(work.block) is int and type(form) is int
            self._must(certain and encoded is not None and encoded.block == work.block)

    def acquires(self, acquire: Acquire) -> None:
        """A request for memory."""
        offsets = acquire.offsets
        if offsets is not None:
            self._must(type(offsets) is tuple and len(offsets) == len(acquire.blocks))
            self._must(set(map(type, offsets)) <= {int} and min(offsets, default=0) >= 0)
            self.offsets[len(self.rows) // 4] = offsets
        self._with_blocks(ACQUIRE, acquire)

    def releases(self, release: Release) -> None:
        """The end of a request."""
        self._with_blocks(RELEASE, release)

    def initializes(self, initialize: Initialize) -> None:
        """Initial values."""
        self._with_blocks(INITIALIZE, initialize)

    def signals(self, signal: Signal) -> None:
        """An event, which has no second signal."""
        event = signal.event
        if type(event) is not int or event in self.signalled:
            raise DoubtfulError
        self.signalled[event] = self.segment
        self.rows += (SIGNAL, self.events.setdefault(event, len(self.events)), 0, 0)

    def awaits(self, wait: Await) -> None:
        """A wait for an event."""
        event = wait.event
        if type(event) is not int:
            raise DoubtfulError
        self.rows += (AWAIT, self.events.setdefault(event, len(self.events)), wait.lag, 0)

    def _with_blocks(self, code: int, request: Acquire | Release | Initialize) -> None:
        blocks, memory, begin = request.blocks, request.memory, len(self.blocks)
        number = self.memories.get(memory) if type(memory) is str else None
        if type(blocks) is not tuple:
            raise DoubtfulError
        self.blocks += blocks
        self.rows += (code, self._number(memory) if number is None else number, begin, begin + len(blocks))

    def _must(self, certain: bool) -> None:
        if not certain:
            raise DoubtfulError

    def _number(self, memory: str) -> int:
        """The number of a memory."""
        number = self.memories.get(memory)
        if number is None or type(memory) is not str:
            self._must(type(memory) is str and memory in self.known)
            number = self.memories[memory] = len(self.memories)
        return number

    def _way(self, src: str, dst: str) -> tuple[int, int]:
        """The numbers of the memories from and to which a copy goes."""
        way = self.ways.get((src, dst))
        if way is None or type(src) is not str or type(dst) is not str:
            way = self.ways[src, dst] = self._number(src), self._number(dst)
            self._must(src != dst and self.can_copy is not None and self.can_copy(src, dst))
        return way

    def _check_ranges(self, rows: Ints, blocks: Ints) -> None:
        kinds, numbers = rows[:, 0], rows[:, 1]
        kernels, count = len(self.graph.kernels), len(self.graph.blocks)
        launched = numbers[(kinds == LAUNCH) | (kinds == RELAUNCH)]
        copied = numbers[(kinds == COPY) | ((kinds > RELAUNCH) & (kinds < INITIALIZE))]
        for column, end in ((launched, kernels), (copied, count), (blocks, count)):
            self._must(not len(column) or (column.min() >= 0 and column.max() < end))
        self._must(rows[kinds == AWAIT, 2].min(initial=0) >= 0)


def _numbers(values: list[int]) -> Ints:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise DoubtfulError from None
