"""What a policy sees when it decides."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import NEVER, TaskGraph
from simgpu.hardware.spec import DEVICE, HOST, NodeSpec
from simgpu.memory.pool import aligned
from simgpu.online.recomputation import Recomputation

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Flight(NamedTuple):
    """A copy of a block from one memory to another, and when it ends (ns)."""

    block: int
    src: str
    dst: str
    ends_ns: int


class Cells:
    """What changes with each kernel, of each block. Python reads and writes single entries of these several times as
    fast as those of NumPy's arrays, which a `View` has of the same memory."""

    def __init__(self, count: int) -> None:
        self.here, self.busy = bytearray(count), bytearray(count)
        self.last_use_ns, self.since = array("q", bytes(8 * count)), array("q", bytes(8 * count))


@dataclass
class View:
    """The iteration as far as it has run. Arrays have one entry for each block.

    now_ns: the clock. kernel: the next kernel of the trace. free: bytes of device memory that nothing holds; leaving:
    bytes that copies under way give back. sizes: bytes of device memory, padding counted. last_use_ns: when a kernel
    that used the block began, or when it was made. here: which blocks have their value in device memory. busy: which
    of them may not leave now, because a kernel or a copy is about to use them. since: a number that grows each time
    when a block becomes free to leave. away: by memory, the blocks whose values are there. room: by memory, the bytes
    that are free there, None without a limit. flights: copies under way.
    staging: bytes of host memory for copies that pass it on their way to or from another memory, None without a limit.
    homes: the memories of persistent blocks that are not in device memory when an iteration begins; they keep it there.
    sees_future: whether next uses may be asked for. resident: blocks that are never free to leave.
    """

    graph: TaskGraph
    node: NodeSpec
    budget: int
    cells: Cells
    now_ns: int = 0
    kernel: int = 0
    free: int = 0
    leaving: int = 0
    away: dict[str, set[int]] = field(default_factory=dict)
    room: dict[str, int | None] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    staging: int | None = None
    homes: dict[int, str] = field(default_factory=dict)
    sees_future: bool = False
    resident: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls, graph: TaskGraph, node: NodeSpec, budget: int, *, sees_future: bool, resident: Collection[int] = ()
    ) -> View:
        """Before the iteration begins: nothing is anywhere."""
        others = [memory for memory in node.memories if memory.name != DEVICE]
        return cls(
            graph,
            node,
            budget,
            Cells(len(graph.sizes)),
            free=budget,
            away={memory.name: set() for memory in others},
            room={memory.name: memory.capacity for memory in others},
            sees_future=sees_future,
            resident=frozenset(resident),
        )

    def __post_init__(self) -> None:
        cells = self.cells
        self.here: Bools = np.frombuffer(cells.here, dtype=np.bool_)
        self.busy: Bools = np.frombuffer(cells.busy, dtype=np.bool_)
        self.last_use_ns: Ints = np.frombuffer(cells.last_use_ns, dtype=np.int64)
        self.since: Ints = np.frombuffer(cells.since, dtype=np.int64)
        self.sizes: Ints = -(-self.graph.columns.sizes // self.node.gpu.alignment) * self.node.gpu.alignment

    @cached_property
    def costs_ns(self) -> Ints:
        """For each block, the time of the kernels that make it."""
        return Recomputation.of(self.graph).costs_ns

    @cached_property
    def can_drop(self) -> Bools:
        """Which blocks can be recomputed whenever a kernel needs them, and may leave."""
        can_drop = Recomputation.of(self.graph).can_drop.copy()
        can_drop[[*self.resident]] = False
        return can_drop

    def candidates(self) -> Ints:
        """The blocks that may leave device memory now, in the order in which they became free to."""
        blocks = np.flatnonzero(self.here > self.busy)
        return blocks[self.since[blocks].argsort()]  # no two of them became so at once

    @cached_property
    def places(self) -> tuple[str, ...]:
        """The memories to which blocks can go: the host, others linked to the device, then those behind the host."""
        return (*self.node.next_to_device, *self._behind_host)

    @cached_property
    def _behind_host(self) -> tuple[str, ...]:
        return self.node.behind_host

    @cached_property
    def _alignments(self) -> dict[str, int]:
        return {memory.name: memory.alignment for memory in self.node.memories}

    def place_for(self, block: int) -> str | None:
        """The first of `places` that has the block's value, else the first that has room for it; None without one."""
        for memory in self.places:
            if block in self.away[memory]:
                return memory
        for memory in self.places:
            if self.has_room(memory, block):
                return memory
        return None

    def has_room(self, memory: str, block: int) -> bool:
        """Whether a memory has a block's value, or room for it; one behind the host needs room there on the way."""
        if block in self.away[memory] or self.homes.get(block) == memory:
            return True
        passes = memory not in self._behind_host or self._fits(self.staging, HOST, block)
        return passes and self._fits(self.room[memory], memory, block)

    def _fits(self, room: int | None, memory: str, block: int) -> bool:
        return room is None or room >= self.bytes_in(memory, block)

    def bytes_in(self, memory: str, block: int) -> int:
        """What a block takes in another memory, padding counted."""
        return aligned(self.graph.copy_sizes[block], self._alignments[memory])

    def next_use(self, block: int) -> int:
        """The next kernel of the trace that uses a block, `NEVER` if none does.

        Raises `ProgramError` for a policy that does not declare that it knows the future.
        """
        return int(self.next_uses(np.array([block]))[0])

    def next_uses(self, blocks: Ints) -> Ints:
        """`next_use` of each of these blocks."""
        if not self.sees_future:
            raise ProgramError("the policy asks for a next use, and is not declared clairvoyant")
        uses = _Uses.of(self.graph)
        at = np.searchsorted(uses.order, blocks * len(self.graph.kernels) + self.kernel)
        return np.where(at < uses.ends[blocks], uses.kernels[at], NEVER)


class _Uses(NamedTuple):
    """All uses of all blocks, block after block. kernels: with one more at the end; order: ascending numbers, block
    times kernels plus kernel; ends: by block, where those of the next one begin."""

    kernels: Ints
    order: Ints
    ends: Ints

    @classmethod
    def of(cls, graph: TaskGraph) -> _Uses:
        known: _Uses | None = graph.kept.get(("uses in order",))
        if known is None:
            counts = np.array([len(uses) for uses in graph.uses], dtype=np.int64)
            kernels = np.fromiter(chain.from_iterable((*graph.uses, (NEVER,))), dtype=np.int64, count=counts.sum() + 1)
            order = np.repeat(np.arange(len(counts)) * len(graph.kernels), counts) + kernels[:-1]
            known = graph.kept["uses in order",] = cls(kernels, order, counts.cumsum())
        return known
