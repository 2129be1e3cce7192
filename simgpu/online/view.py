"""What a policy sees when it decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import NEVER, TaskGraph
from simgpu.hardware.spec import HOST, NodeSpec
from simgpu.memory.pool import aligned

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Flight(NamedTuple):
    """A copy of a block from one memory to another, and when it ends (ns)."""

    block: int
    src: str
    dst: str
    ends_ns: int


@dataclass
class View:
    """The iteration as far as it has run. Arrays have one entry for each block.

    now_ns: the clock. kernel: the next kernel of the trace. free: bytes of device memory that nothing holds; leaving:
    bytes that copies under way give back. sizes: bytes of device memory, padding counted. last_use_ns: when a kernel
    that used the block began, or when it was made. costs_ns: the time of the kernels that make it. here: which blocks
    have their value in device memory. busy: which of them may not leave now, because a kernel or a copy is about to use
    them. since: a number that grows each time when a block becomes free to leave. can_drop: which blocks can be
    recomputed whenever a kernel needs them. away: by memory, the blocks whose values are there. room: by memory, the
    bytes that are free there, None without a limit. alignments: of the memories. flights: copies under way.
    staging: bytes of host memory for copies that pass it on their way to or from another memory, None without a limit.
    homes: the memories of persistent blocks that are not in device memory when an iteration begins; they keep it there.
    sees_future: whether next uses may be asked for.
    """

    graph: TaskGraph
    node: NodeSpec
    budget: int
    sizes: Ints
    costs_ns: Ints
    can_drop: Bools
    here: Bools
    busy: Bools
    last_use_ns: Ints
    since: Ints
    now_ns: int = 0
    kernel: int = 0
    free: int = 0
    leaving: int = 0
    away: dict[str, set[int]] = field(default_factory=dict)
    room: dict[str, int | None] = field(default_factory=dict)
    alignments: dict[str, int] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    staging: int | None = None
    homes: dict[int, str] = field(default_factory=dict)
    sees_future: bool = False

    def candidates(self) -> Ints:
        """The blocks that may leave device memory now, in the order in which they became free to."""
        blocks = np.flatnonzero(self.here & ~self.busy)
        return blocks[np.argsort(self.since[blocks], kind="stable")]

    @cached_property
    def places(self) -> tuple[str, ...]:
        """The memories to which blocks can go: the host, others linked to the device, then those behind the host."""
        return (*self.node.next_to_device, *self.node.behind_host)

    def place_for(self, block: int) -> str | None:
        """The first of `places` that has the block's value, else the first that has room for it; None without one."""
        has_value = (memory for memory in self.places if block in self.away[memory])
        return next(has_value, next((memory for memory in self.places if self.has_room(memory, block)), None))

    def has_room(self, memory: str, block: int) -> bool:
        """Whether a memory has a block's value, or room for it; one behind the host needs room there on the way."""
        if block in self.away[memory] or self.homes.get(block) == memory:
            return True
        passes = memory not in self.node.behind_host or self._fits(self.staging, HOST, block)
        return passes and self._fits(self.room[memory], memory, block)

    def _fits(self, room: int | None, memory: str, block: int) -> bool:
        return room is None or room >= self.bytes_in(memory, block)

    def bytes_in(self, memory: str, block: int) -> int:
        """What a block takes in another memory, padding counted."""
        return aligned(self.graph.copy_sizes[block], self.alignments[memory])

    def next_use(self, block: int) -> int:
        """The next kernel of the trace that uses a block, `NEVER` if none does.

        Raises `ProgramError` for a policy that does not declare that it knows the future.
        """
        if not self.sees_future:
            raise ProgramError("the policy asks for a next use, and is not declared clairvoyant")
        following = self.graph.next_use(block, self.kernel - 1)
        return NEVER if following is None else following
