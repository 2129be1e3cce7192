"""A program as columns of numbers, for those who run or examine it as arrays."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.code import Code, DoubtfulError, Ints, SmallInts, coded
from simgpu.program.instructions import Instruction, Program
from simgpu.program.opcodes import (
    ACQUIRE,
    AWAIT,
    COPY,
    COPY_AS,
    DECODE,
    ENCODE,
    END,
    INITIALIZE,
    LAUNCH,
    RELAUNCH,
    RELEASE,
    SIGNAL,
)
from simgpu.timeline.streams import StreamId

#: What a stream's code may contain.
_CODES = {AWAIT, RELEASE, SIGNAL, ACQUIRE, LAUNCH, COPY, RELAUNCH, ENCODE, DECODE, INITIALIZE}


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

    rows: SmallInts
    first: Ints
    repeats: Ints
    blocks: SmallInts
    memories: tuple[str, ...]
    events: SmallInts
    offsets: dict[int, tuple[int, ...]]

    def streams_of(self, rows: Ints) -> Ints:
        """The streams of some rows."""
        return np.searchsorted(self.first[:, 0], rows, side="right") - 1

    def segments_of(self, rows: Ints) -> Ints:
        """The segments of some rows."""
        return (np.searchsorted(self.first.ravel(), rows, side="right") - 1) % len(self.repeats)

    @property
    def signals(self) -> Ints:
        """For each event the row that signals it."""
        rows = np.flatnonzero(self.rows[:, 0] == SIGNAL)
        signals = np.empty_like(rows)
        signals[self.rows[rows, 1]] = rows
        return signals

    @property
    def signalled(self) -> dict[int, int]:
        """By event, as the program calls it, the segment that signals it."""
        return dict(zip(self.events.tolist(), self.segments_of(self.signals).tolist(), strict=True))

    @property
    def launched(self) -> list[set[int]]:
        """For each segment the kernels that it launches, recomputations not counted."""
        rows = np.flatnonzero(self.rows[:, 0] == LAUNCH)
        kernels, segments = self.rows[rows, 1], self.segments_of(rows)
        return [set(kernels[segments == segment].tolist()) for segment in range(len(self.repeats))]


class ColumnWriter:
    """Writes the columns of a program, and looks at all numbers on the way.

    It accepts only what is certainly right, and raises `DoubtfulError` for the rest, which `simgpu.program.check` then
    examines. It checks whole columns: types and ranges, each way of a copy and each form of a block once.

    memories: the names of memories by number; more of `known` are added as the program names them. can_copy: whether a
    program may copy from one memory to another; None if it may move no block.
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

    def columns(self, program: Program) -> Columns:
        """The columns of a program whose segments, streams and sizes are checked."""
        streams, segments = program.streams, program.segments
        empty = coded(())
        codes = [self._code(segment.streams.get(stream, empty)) for stream in streams for segment in segments]
        self._must(bool(codes))
        self._check_streams(streams, codes, len(segments))
        lengths = np.array([len(code) + 1 for code in codes], dtype=np.int64)
        first = np.cumsum(lengths) - lengths
        part = np.repeat(np.arange(len(codes), dtype=np.int32), lengths)
        end = np.array([[END, 0, 0, 0]], dtype=np.int32)
        rows = np.concatenate([each for code in codes for each in (code.rows, end)])
        blocks = np.concatenate([code.blocks for code in codes])
        self._requests(rows, blocks, codes, part)
        self._forms(rows, codes, part)
        self._copies(rows, codes, part)
        self._check_kernels(rows)
        events = self._events(rows)
        offsets = {
            int(begin) + at: given
            for begin, code in zip(first.tolist(), codes, strict=True)
            for at, given in code.offsets.items()
        }
        repeats = np.array([segment.repeat for segment in segments], dtype=np.int64)
        shape = (-1, len(segments))
        return Columns(rows, first.reshape(shape), repeats, blocks, tuple(self.memories), events, offsets)

    def _code(self, given: Sequence[Instruction]) -> Code:
        """The numbers of a stream's instructions; of the right types and shapes."""
        code = given if type(given) is Code else coded(given)
        names = (*code.memories, *chain.from_iterable(code.ways))
        self._must(all(type(name) is str for name in names) and all(len(way) == 2 for way in code.ways))
        for array, shape in ((code.rows, (len(code), 4)), (code.blocks, (len(code.blocks),))):
            self._must(type(array) is np.ndarray and array.dtype == np.int32 and array.shape == shape)
        self._must(code.rows[:, 0].min(initial=0) >= 0)
        self._must(set(np.flatnonzero(np.bincount(code.rows[:, 0])).tolist()) <= _CODES)
        for row, offsets in code.offsets.items():
            self._must(type(row) is int and 0 <= row < len(code))
            self._must(type(offsets) is tuple and set(map(type, offsets)) <= {int} and min(offsets, default=0) >= 0)
            kind, _, begin, end = code.rows[row].tolist()
            self._must(kind == ACQUIRE and end - begin == len(offsets))
        return code

    def _check_streams(self, streams: tuple[StreamId, ...], codes: list[Code], segments: int) -> None:
        """Kernels run on compute streams, and on the host's and those of collectives only if some do."""
        launching = {
            stream.role
            for at, stream in enumerate(streams)
            for code in codes[at * segments : (at + 1) * segments]
            if len(code) and code.rows[:, 0].max() >= LAUNCH and _is(code.rows, LAUNCH, RELAUNCH).any()
        }
        self._must(not launching or ("compute" in launching and launching <= {"compute", "host", "collectives"}))

    def _requests(self, rows: SmallInts, blocks: SmallInts, codes: list[Code], part: SmallInts) -> None:
        """Their memories, and where their blocks are among those of all parts."""
        counts = np.array([len(code.blocks) for code in codes], dtype=np.int64)
        with_memory = np.flatnonzero(_is(rows, ACQUIRE, RELEASE, INITIALIZE))
        listing = np.concatenate([with_memory, np.flatnonzero(rows[:, 0] == RELAUNCH)])
        of, begin, end = part[listing], rows[listing, 2], rows[listing, 3]
        self._must(bool((begin >= 0).all() and (begin <= end).all() and (end <= counts[of]).all()))
        before = (np.cumsum(counts) - counts)[of]
        rows[listing, 2], rows[listing, 3] = begin + before, end + before
        rows[with_memory, 1] = self._numbers(rows[with_memory, 1], codes, part[with_memory])
        self._must_be_in(blocks, len(self.graph.blocks))

    def _numbers(self, memories: SmallInts, codes: list[Code], part: SmallInts) -> SmallInts:
        """The program's numbers of memories that the parts' codes number each in their way."""
        names = [code.memories for code in codes]
        own = tuple(self.memories)
        sizes = np.array([len(each) for each in names], dtype=np.int64)
        self._must(bool((memories >= 0).all() and (memories < sizes[part]).all()))
        if all(each == own[: len(each)] for each in names):
            return memories
        begins = np.cumsum(sizes) - sizes
        table = np.array([self._number(name) for each in names for name in each], dtype=np.int32)
        numbers: SmallInts = table[begins[part] + memories]
        return numbers

    def _forms(self, rows: SmallInts, codes: list[Code], part: SmallInts) -> None:
        """Encoded and decoded blocks."""
        codecs = np.flatnonzero(_is(rows, ENCODE, DECODE))
        if not len(codecs):
            return
        self._must(self.can_copy is not None)
        self._check_forms(rows[codecs, 1], rows[codecs, 2])
        memories = self._numbers(rows[codecs, 3], codes, part[codecs])
        rows[codecs, 1:] = np.stack([rows[codecs, 2], memories, np.zeros_like(memories)], axis=1)

    def _copies(self, rows: SmallInts, codes: list[Code], part: SmallInts) -> None:
        """Copied blocks, with the memories from which and to which they go."""
        copies = np.flatnonzero(rows[:, 0] == COPY)
        if not len(copies):
            return
        self._must(self.can_copy is not None)
        counts = np.array([len(code.ways) for code in codes], dtype=np.int64)
        way, into = rows[copies, 2], rows[copies, 3]
        self._must(bool((way >= 0).all() and (way < counts[part[copies]]).all() and (into >= -1).all()))
        known: dict[tuple[str, str], tuple[int, int]] = {}
        ways = [known.get(each) or self._way(each, known) for code in codes for each in code.ways]
        rows[copies, 2:] = np.array(ways, dtype=np.int32)[(np.cumsum(counts) - counts)[part[copies]] + way]
        self._must_be_in(rows[copies, 1], len(self.graph.blocks))
        changed = copies[into >= 0]
        if len(changed):
            self._check_forms(rows[changed, 1], into[into >= 0])
            rows[changed, 0], rows[changed, 1] = COPY_AS, into[into >= 0]

    def _way(self, way: tuple[str, str], known: dict[tuple[str, str], tuple[int, int]]) -> tuple[int, int]:
        src, dst = way
        known[way] = self._number(src), self._number(dst)
        self._must(src != dst and self.can_copy is not None and self.can_copy(src, dst))
        return known[way]

    def _check_forms(self, blocks: SmallInts, forms: SmallInts) -> None:
        """Each must be an encoded form of its block."""
        encoded = self.graph.encoded
        for block, form in set(zip(blocks.tolist(), forms.tolist(), strict=True)):
            self._must(form in encoded and encoded[form].block == block)

    def _check_kernels(self, rows: SmallInts) -> None:
        self._must_be_in(rows[_is(rows, LAUNCH, RELAUNCH), 1], len(self.graph.kernels))

    def _events(self, rows: SmallInts) -> SmallInts:
        """Number the events from 0; each is signalled at one place, and may be awaited at many."""
        signals, waits = np.flatnonzero(rows[:, 0] == SIGNAL), np.flatnonzero(rows[:, 0] == AWAIT)
        events = np.sort(rows[signals, 1])
        self._must(bool((events[1:] != events[:-1]).all() and (rows[waits, 2] >= 0).all()))
        rows[signals, 1] = np.searchsorted(events, rows[signals, 1])
        number = np.searchsorted(events, rows[waits, 1])
        self._must(bool((number < len(events)).all() and (events[number] == rows[waits, 1]).all()))
        rows[waits, 1] = number
        return events

    def _must(self, certain: bool) -> None:
        if not certain:
            raise DoubtfulError

    def _must_be_in(self, numbers: SmallInts, end: int) -> None:
        self._must(not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < end))

    def _number(self, memory: str) -> int:
        """The number of a memory."""
        number = self.memories.get(memory)
        if number is None:
            self._must(memory in self.known)
            number = self.memories[memory] = len(self.memories)
        return number


def _is(rows: SmallInts, *codes: int) -> NDArray[np.bool_]:
    """Which rows have one of these codes."""
    kinds = rows[:, 0]
    which: NDArray[np.bool_] = kinds == codes[0]
    for code in codes[1:]:
        which |= kinds == code
    return which
