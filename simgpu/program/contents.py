"""What is known of one memory while a program is walked, and the rules by which streams may touch what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.timeline.streams import StreamId


class Contents:
    """Per block: who took or gave back its memory, which value it holds since when, and who touched it last.

    A stamp is a stream (`_by`) and its clock (`_at`); stream -1 stands for the beginning. clock: what the stream that
    asks has heard of every other.
    """

    def __init__(self, name: str, graph: TaskGraph, streams: Sequence[StreamId]) -> None:
        self.name = name
        self.graph = graph
        self.streams = streams
        blocks = len(graph.sizes)
        self.resident = [False] * blocks
        self.value = [-1] * blocks
        self.acquired_by, self.acquired_at = [-1] * blocks, [-1] * blocks
        self.ready_by, self.ready_at = [-1] * blocks, [-1] * blocks
        self.released_by, self.released_at = [-1] * blocks, [-1] * blocks
        self.touched = [[-1] * blocks for _ in streams]

    def _name(self, b: int) -> str:
        return self.graph.blocks[b].id

    def initialize_resident(self, blocks: Sequence[int]) -> None:
        """These persistent blocks are there from the beginning, with their values."""
        for b in blocks:
            if self.resident[b]:
                raise ProgramError(f"block {self._name(b)} is resident twice at the start")
            if not self.graph.blocks[b].persistent:
                raise ProgramError(f"block {self._name(b)} is not persistent but resident at the start")
            self.resident[b] = True
            self.value[b] = 0

    def check_held(self, b: int, me: int, clock: list[int]) -> None:
        """The block holds memory, and this stream knows it."""
        if not self.resident[b]:
            raise ProgramError(f"block {self._name(b)} holds no {self.name} memory")
        by = self.acquired_by[b]
        if by != me and by >= 0 and self.acquired_at[b] > clock[by]:
            raise ProgramError(f"block {self._name(b)} may not hold {self.name} memory yet")

    def check_unused(self, b: int, me: int, clock: list[int], what: str) -> None:
        """Nobody else may still be touching the block."""
        for stream, touched in enumerate(self.touched):
            if stream != me and touched[b] > clock[stream]:
                other = self.streams[stream]
                raise ProgramError(f"block {self._name(b)} is {what} while {other} may still be using it")

    def read(self, b: int, me: int, clock: list[int]) -> int:
        """The value a block holds, if this stream knows that it is there. Whoever set it knew of the memory."""
        value = self.value[b]
        if value < 0:
            self.check_held(b, me, clock)
            raise ProgramError(f"block {self._name(b)} holds no value in {self.name} memory")
        by = self.ready_by[b]
        if by != me and by >= 0 and self.ready_at[b] > clock[by]:
            raise ProgramError(f"block {self._name(b)} may not hold its value in {self.name} memory yet")
        return value

    def set(self, b: int, value: int, me: int, clock: list[int]) -> None:
        """The block holds a value from now on."""
        self.value[b] = value
        self.ready_by[b] = me
        self.ready_at[b] = self.touched[me][b] = clock[me]

    def acquire(self, blocks: Sequence[int], me: int, clock: list[int]) -> None:
        """Memory is taken for these blocks, which hold none and no value."""
        for b in blocks:
            if self.resident[b]:
                raise ProgramError(f"block {self._name(b)} already holds {self.name} memory")
            by = self.released_by[b]
            if by != me and by >= 0 and self.released_at[b] > clock[by]:
                raise ProgramError(f"block {self._name(b)} may still hold {self.name} memory")
            self.resident[b] = True
            self.value[b] = -1
            self.acquired_by[b], self.acquired_at[b] = me, clock[me]

    def release(self, blocks: Sequence[int], me: int, clock: list[int]) -> None:
        """Memory of these blocks is given back, which nobody may be using."""
        for b in blocks:
            self.check_held(b, me, clock)
            self.check_unused(b, me, clock, "released")
            self.resident[b] = False
            self.value[b] = -1
            self.released_by[b], self.released_at[b] = me, clock[me]


class OnDemand(Contents):
    """A memory whose blocks are on demand: a block has a place from its first touch on, no program takes it."""

    def check_held(self, b: int, me: int, clock: list[int]) -> None:
        """The block has a place from now on, if it had none."""
        if not self.resident[b]:
            super().acquire((b,), me, clock)
        super().check_held(b, me, clock)

    def acquire(self, blocks: Sequence[int], me: int, clock: list[int]) -> None:
        """Refused."""
        raise ProgramError(f"block {self._name(blocks[0])} is on demand, nothing takes {self.name} memory for it")

    def release(self, blocks: Sequence[int], me: int, clock: list[int]) -> None:
        """The places of these blocks are given up, which nobody may be using."""
        for b in blocks:
            if not self.resident[b]:
                raise ProgramError(f"block {self._name(b)} holds no {self.name} memory")
        super().release(blocks, me, clock)
