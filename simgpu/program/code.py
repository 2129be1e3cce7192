"""The instructions of one stream as an array of numbers, which reads like a tuple of instructions, and its writer.

A plan of a large trace has millions of instructions. As numbers they take a sixth of the memory and half the time to
write, and the check of a program, `verify` and the compiled machine work on the numbers. Whoever looks at an
instruction gets the instruction.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from simgpu.program.instructions import (
    DEVICE,
    HOST,
    INSTRUCTIONS,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    Initialize,
    Instruction,
    Launch,
    Location,
    Release,
    Signal,
)
from simgpu.program.opcodes import (
    ACQUIRE,
    AWAIT,
    COPY,
    DECODE,
    ENCODE,
    INITIALIZE,
    LAUNCH,
    RELAUNCH,
    RELEASE,
    SIGNAL,
)

Ints = NDArray[np.int64]
#: The numbers of programs, which have millions of them: kernels, blocks, events, counts.
SmallInts = NDArray[np.int32]

_KINDS = set(INSTRUCTIONS)

#: Rows that a writer holds as Python numbers before it adds them to an array.
_PART = 2**16


class Code(Sequence[Instruction]):
    """The instructions of a stream in a segment, in order; equal to a tuple of the same instructions.

    rows: four numbers for each, the code (`simgpu.program.opcodes`) and three operands. LAUNCH kernel. RELAUNCH kernel,
    and where the blocks that it is to make begin and end in `blocks`. COPY block, position in `ways`, and the form of
    the block in the target or -1. ENCODE, DECODE block, form, memory. ACQUIRE, RELEASE, INITIALIZE memory, and where
    its blocks begin and end in `blocks`. SIGNAL event. AWAIT event, lag. A memory is a position in `memories`.
    offsets: those of requests that give any, by row.

    >>> writer = CodeWriter()
    >>> writer.acquire((3,))
    >>> writer.launch(0)
    >>> writer.code()
    (Acquire(blocks=(3,), memory='device', offsets=None), Launch(kernel=0, recompute=False, makes=()))
    >>> writer.code().rows.tolist()
    [[5, 0, 0, 1], [6, 0, 0, 0]]
    """

    __slots__ = ("_read", "blocks", "memories", "offsets", "rows", "ways")

    def __init__(
        self,
        rows: SmallInts,
        blocks: SmallInts,
        memories: tuple[str, ...] = (DEVICE, HOST),
        ways: tuple[tuple[str, str], ...] = (),
        offsets: dict[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.rows, self.blocks = rows, blocks
        for each in (rows, blocks):
            each.setflags(write=False)  # programs that passed their checks stay as they are
        self.memories, self.ways, self.offsets = memories, ways, offsets or {}
        self._read: tuple[Instruction, ...] | None = None

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions as objects, which are made when they are first asked for."""
        if self._read is None:
            self._read = tuple(self._decoded(0, len(self.rows)))
        return self._read

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Instruction: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Instruction, ...]: ...
    def __getitem__(self, index: int | slice) -> Instruction | tuple[Instruction, ...]:
        return self.instructions[index]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __add__(self, other: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return (*self, *other)

    def __radd__(self, other: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return (*other, *self)

    def __mul__(self, times: int) -> tuple[Instruction, ...]:
        return self.instructions * times

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Code) and self.ways == other.ways and self.memories == other.memories:
            same = np.array_equal(self.rows, other.rows) and np.array_equal(self.blocks, other.blocks)
            return same and self.offsets == other.offsets
        return isinstance(other, Code | tuple) and self.instructions == tuple(other)

    def __hash__(self) -> int:
        return hash(self.instructions)

    def __repr__(self) -> str:
        return repr(self.instructions)

    def _decoded(self, begin: int, end: int) -> Iterator[Instruction]:
        memories, ways, offsets, blocks = self.memories, self.ways, self.offsets, self.blocks.tolist()
        for at, (code, first, second, third) in enumerate(self.rows[begin:end].tolist(), begin):
            if code == LAUNCH:
                yield Launch(first)
            elif code == AWAIT:
                yield Await(first, second)
            elif code == SIGNAL:
                yield Signal(first)
            elif code == ACQUIRE:
                yield Acquire(tuple(blocks[second:third]), memories[first], offsets.get(at))
            elif code == RELEASE:
                yield Release(tuple(blocks[second:third]), memories[first])
            elif code == COPY:
                src, dst = ways[second]
                yield Copy(first, src, dst, None if third < 0 else third)
            elif code == RELAUNCH:
                yield Launch(first, True, tuple(blocks[second:third]))
            elif code == INITIALIZE:
                yield Initialize(tuple(blocks[second:third]), memories[first])
            elif code == ENCODE:
                yield Encode(first, second, memories[third])
            elif code == DECODE:
                yield Decode(first, second, memories[third])
            else:
                raise ValueError(f"{code} stands for no instruction")


class Numbers(dict[Any, int]):
    """Numbers names in the order in which they are first looked up."""

    def __missing__(self, name: object) -> int:
        self[name] = number = len(self)
        return number


class CodeWriter:
    """Writes the instructions of a stream, one method for each kind. Numbers are plain ints below 32 bits, which the
    caller knows or checks afterwards; `code` raises `OverflowError` for larger ones."""

    def __init__(self, memories: Iterable[str] = (DEVICE, HOST)) -> None:
        # What was written last, and what was written before it, which grows in place.
        self._rows: list[int] = []
        self._blocks: list[int] = []
        self._all_rows, self._all_blocks = array("i"), array("i")
        #: How many blocks it has listed.
        self._listed = 0
        self.memories: dict[str, int] = Numbers((name, number) for number, name in enumerate(memories))
        self.ways: dict[tuple[str, str], int] = Numbers()
        self.offsets: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return (len(self._all_rows) + len(self._rows)) // 4

    def launch(self, kernel: int) -> None:
        """A kernel's first run."""
        if len(self._rows) > 4 * _PART:
            self._flush()
        self._rows += (LAUNCH, kernel, 0, 0)

    def relaunch(self, kernel: int, makes: Sequence[int]) -> None:
        """A kernel runs again to restore the blocks `makes`; if empty, all that it can restore."""
        self._rows += (RELAUNCH, kernel, *self._listed_at(makes))

    def copy(self, block: int, src: str, dst: str, into: int | None = None) -> None:
        """See `Copy`."""
        self._rows += (COPY, block, self.ways[src, dst], -1 if into is None else into)

    def acquire(self, blocks: Sequence[int], memory: str = DEVICE, offsets: tuple[int, ...] | None = None) -> None:
        """See `Acquire`."""
        if offsets is not None:
            self.offsets[len(self)] = offsets
        # Written out here and in `release`, because most instructions are these.
        first = self._listed
        self._listed = end = first + len(blocks)
        self._blocks += blocks
        self._rows += (ACQUIRE, self.memories[memory], first, end)

    def release(self, blocks: Sequence[int], memory: str = DEVICE) -> None:
        """See `Release`."""
        first = self._listed
        self._listed = end = first + len(blocks)
        self._blocks += blocks
        self._rows += (RELEASE, self.memories[memory], first, end)

    def initialize(self, blocks: Sequence[int], memory: str = DEVICE) -> None:
        """See `Initialize`."""
        self._rows += (INITIALIZE, self.memories[memory], *self._listed_at(blocks))

    def encode(self, block: int, into: int, memory: str = DEVICE) -> None:
        """See `Encode`."""
        self._rows += (ENCODE, block, into, self.memories[memory])

    def decode(self, block: int, source: int, memory: str = DEVICE) -> None:
        """See `Decode`."""
        self._rows += (DECODE, block, source, self.memories[memory])

    def signal(self, event: int) -> None:
        """See `Signal`."""
        if len(self._rows) > 4 * _PART:
            self._flush()
        self._rows += (SIGNAL, event, 0, 0)

    def wait(self, event: int, lag: int = 0) -> None:
        """See `Await`."""
        self._rows += (AWAIT, event, lag, 0)

    def code(self) -> Code:
        """What was written, without a copy: nothing more can be written then."""
        self._flush()
        rows, blocks = (np.frombuffer(each, dtype=np.int32) for each in (self._all_rows, self._all_blocks))
        return Code(rows.reshape(-1, 4), blocks, tuple(self.memories), tuple(self.ways), self.offsets)

    def _listed_at(self, blocks: Sequence[int]) -> tuple[int, int]:
        """List blocks; where they begin and end."""
        first = self._listed
        self._listed = end = first + len(blocks)
        self._blocks += blocks
        return first, end

    def _flush(self) -> None:
        """Add what was written last to the arrays, which take less memory."""
        self._all_rows.fromlist(self._rows)
        self._all_blocks.fromlist(self._blocks)
        self._rows.clear()
        self._blocks.clear()


class DoubtfulError(Exception):
    """Something in a program is not as simple as its numbers need it."""


def coded(instructions: Sequence[Any]) -> Code:
    """Instructions as `Code`, if they are certainly instructions with plain fields; else raises `DoubtfulError`, or
    whatever an object without such fields raises.

    >>> coded((Launch(2), Signal(0))).rows.tolist()
    [[6, 2, 0, 0], [4, 0, 0, 0]]
    """
    if not set(map(type, instructions)) <= _KINDS:
        raise DoubtfulError
    writer = _PlainWriter()
    for instruction in instructions:
        instruction.apply(writer)
    return writer.code()


class _PlainWriter(CodeWriter):
    """Writes instructions as an `Effects` of them, and accepts only plain fields."""

    def runs(self, launch: Launch) -> None:
        """A kernel."""
        if launch.recompute is False and launch.makes == ():
            self.launch(launch.kernel)
            return
        self._must(launch.recompute is True and type(launch.makes) is tuple)
        self.relaunch(launch.kernel, launch.makes)

    def moves(self, work: Copy | Encode | Decode, source: Location, target: Location) -> None:
        """A copy or a codec."""
        if isinstance(work, Copy):
            self._must(work.into is None or (type(work.into) is int and work.into >= 0))
            self._must(type(work.src) is str and type(work.dst) is str)
            self.copy(work.block, work.src, work.dst, work.into)
            return
        self._must(type(work.memory) is str)
        if isinstance(work, Encode):
            self.encode(work.block, work.into, work.memory)
        else:
            self.decode(work.block, work.source, work.memory)

    def acquires(self, acquire: Acquire) -> None:
        """A request for memory."""
        offsets = acquire.offsets
        self._must(offsets is None or type(offsets) is tuple)
        self._must(type(acquire.blocks) is tuple and type(acquire.memory) is str)
        self.acquire(acquire.blocks, acquire.memory, offsets)

    def releases(self, release: Release) -> None:
        """The end of a request."""
        self._must(type(release.blocks) is tuple and type(release.memory) is str)
        self.release(release.blocks, release.memory)

    def initializes(self, initialize: Initialize) -> None:
        """Initial values."""
        self._must(type(initialize.blocks) is tuple and type(initialize.memory) is str)
        self.initialize(initialize.blocks, initialize.memory)

    def signals(self, signal: Signal) -> None:
        """An event."""
        self.signal(signal.event)

    def awaits(self, wait: Await) -> None:
        """A wait for an event."""
        self.wait(wait.event, wait.lag)

    def _must(self, plain: bool) -> None:
        if not plain:
            raise DoubtfulError

    def _flush(self) -> None:
        self._must(set(map(type, self._rows)) <= {int} and set(map(type, self._blocks)) <= {int})
        try:
            super()._flush()
        except OverflowError:
            raise DoubtfulError from None
