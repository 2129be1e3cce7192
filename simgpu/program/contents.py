"""The contents of one memory while a program is verified, and the rules of access by streams."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.timeline.streams import StreamId


class Contents:
    """Per block: the stamp of its last acquire or release, its value with a stamp, and its last accesses.

    A stamp is a stream (`_by`) and its clock (`_at`); stream -1 stands for the beginning. clock: the latest clock of
    every other stream that the accessing stream has synchronized with.
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
        """Make these persistent blocks resident from the beginning, with their values."""
        for b in blocks:
            if self.resident[b]:
                raise ProgramError(f"block {self._name(b)} is resident twice at the start")
            if not self.graph.blocks[b].persistent:
                raise ProgramError(f"block {self._name(b)} is not persistent but resident at the start")
            self.resident[b] = True
            self.value[b] = 0

    def check_allocated(self, b: int, me: int, clock: list[int]) -> None:
        """Check that the block has memory, and that the stream is ordered after its acquire."""
        if not self.resident[b]:
            raise ProgramError(f"block {self._name(b)} holds no {self.name} memory")
        by = self.acquired_by[b]
        if by != me and by >= 0 and self.acquired_at[b] > clock[by]:
            raise ProgramError(f"block {self._name(b)} may not hold {self.name} memory yet")

    def check_unused(self, b: int, me: int, clock: list[int], what: str) -> None:
        """Check that no other stream may still be using the block."""
        for stream, touched in enumerate(self.touched):
            if stream != me and touched[b] > clock[stream]:
                other = self.streams[stream]
                raise ProgramError(f"block {self._name(b)} is {what} while {other} may still be using it")

    def read(self, b: int, me: int, clock: list[int]) -> int:
        """The value of a block; the stream must be ordered after the write. The write was ordered after the acquire."""
        value = self.value[b]
        if value < 0:
            self.check_allocated(b, me, clock)
            raise ProgramError(f"block {self._name(b)} holds no value in {self.name} memory")
        by = self.ready_by[b]
        if by != me and by >= 0 and self.ready_at[b] > clock[by]:
            raise ProgramError(f"block {self._name(b)} may not hold its value in {self.name} memory yet")
        return value

    def set(self, b: int, value: int, me: int, clock: list[int]) -> None:
        """Set the value of a block."""
        self.value[b] = value
        self.ready_by[b] = me
        self.ready_at[b] = self.touched[me][b] = clock[me]

    def acquire(self, blocks: Sequence[int], me: int, clock: list[int]) -> None:
        """Acquire memory for these blocks, which must have none; they have no value yet."""
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
        """Release the memory of these blocks, which must be unused."""
        for b in blocks:
            self.check_allocated(b, me, clock)
            self.check_unused(b, me, clock, "released")
            self.resident[b] = False
            self.value[b] = -1
            self.released_by[b], self.released_at[b] = me, clock[me]


class OnDemand(Contents):
    """A memory with blocks on demand: a block is allocated at its first access, never by the program.

    migrated: per stream, when it last migrated each block ahead of need.
    """

    def __init__(self, name: str, graph: TaskGraph, streams: Sequence[StreamId]) -> None:
        super().__init__(name, graph, streams)
        self.migrated = [[-1] * len(graph.sizes) for _ in streams]

    def check_allocated(self, b: int, me: int, clock: list[int]) -> None:
        """The block has a place from now on, if it had none; the stream must be ordered after its last release."""
        by = self.released_by[b]
        if by != me and by >= 0 and self.released_at[b] > clock[by]:
            raise ProgramError(f"block {self._name(b)} may still hold {self.name} memory")
        self.resident[b] = True

    def migrate(self, b: int, me: int, clock: list[int]) -> None:
        """Migrate a block ahead of need: a hint, of which only its releases must know."""
        self.check_allocated(b, me, clock)
        self.migrated[me][b] = clock[me]

    def acquire(self, blocks: Sequence[int], me: int, clock: list[int]) -> None:
        """Refused."""
        raise ProgramError(
            f"block {self._name(blocks[0])} is on demand, a program must not acquire {self.name} memory for it"
        )

    def release(self, blocks: Sequence[int], me: int, clock: list[int]) -> None:
        """Release these blocks, which must be unused."""
        for b in blocks:
            if not self.resident[b]:
                raise ProgramError(f"block {self._name(b)} holds no {self.name} memory")
            for stream, migrated in enumerate(self.migrated):
                if stream != me and migrated[b] > clock[stream]:
                    other = self.streams[stream]
                    raise ProgramError(f"block {self._name(b)} is released while {other} may still be migrating it")
        super().release(blocks, me, clock)
