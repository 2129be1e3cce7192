"""What compressed memory makes of a graph: smaller blocks, and kernels that also use the link to the buddy memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simgpu.graph.taskgraph import TaskGraph
    from simgpu.graph.transforms import Transform


class Demand(NamedTuple):
    """What a kernel asks of memory.

    memory_ns: how long its traffic takes device memory without compression, compressed_ns: with it, both beside
    nothing else. read, written: bytes that pass the link from and to the buddy memory; link_ns: how long they take
    there alone.
    """

    memory_ns: int
    compressed_ns: int
    read: int
    written: int
    link_ns: int

    def device_ns(self, duration: int) -> int:
        """Time on the device of a kernel that takes `duration` without compression, both in nanoseconds.

        The part of it that its traffic accounts for changes as the traffic does; the rest is computation and stays.
        Where a recording tells of more traffic than this memory moves in that time, all of it changes.

        >>> Demand(memory_ns=40, compressed_ns=30, read=0, written=0, link_ns=0).device_ns(100)
        90
        >>> Demand(memory_ns=40, compressed_ns=30, read=0, written=0, link_ns=0).device_ns(20)
        15
        """
        share = min(duration, self.memory_ns)
        if share == 0:
            return duration
        return duration - share - (-self.compressed_ns * share // self.memory_ns)


#: Parts that `CompressedMemory.hidden` counts in.
MILLION = 10**6

#: Of a kernel that touches no compressed block.
NO_DEMAND = Demand(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class CompressedMemory:
    """What a graph's `durations` and `sizes` were made from; they are those of kernels that have the link alone.

    plain: the same tasks without compression. how: the transform that compressed them. demands: of each kernel;
    device_ns: its time on the device, without the link. carved: bytes of the buddy memory that belong to each block,
    overflow: bytes of its value that lie there, overflowing: how many of its entries do not fit their target. Blocks
    and kernels that other transforms have appended since are not compressed and have no row. hidden: in millionths of
    its time on the device, the part at its end beside which a kernel's bytes pass the link. visits, misses: of the
    metadata cache, in an iteration.
    """

    plain: TaskGraph
    how: Transform
    demands: tuple[Demand, ...]
    device_ns: tuple[int, ...]
    targets: tuple[int, ...]
    carved: tuple[int, ...]
    overflow: tuple[int, ...]
    overflowing: tuple[int, ...]
    hidden: int
    visits: int = 0
    misses: int = 0

    def head_ns(self, k: int) -> int:
        """When, after its start, kernel k's bytes begin to pass the link."""
        return self.device_ns[k] - self.device_ns[k] * self.hidden // MILLION

    def alone_ns(self, k: int) -> int:
        """How long kernel k takes with the link to itself: until both its work on the device and its bytes are done."""
        link = self.demands[k].link_ns
        return max(self.device_ns[k], self.head_ns(k) + link) if link else self.device_ns[k]

    def taking(self, k: int, duration: int) -> tuple[CompressedMemory, int]:
        """With kernel k taking another time without compression; and its time with it, the link alone for itself."""
        device = self.demands[k].device_ns(duration)
        changed = replace(self, device_ns=(*self.device_ns[:k], device, *self.device_ns[k + 1 :]))
        return changed, changed.alone_ns(k)

    def without(self, b: int) -> CompressedMemory:
        """With block b, if it was compressed, stored as it is."""
        blocks = range(len(self.targets))
        kernels = range(len(self.demands))
        return self.of(kernels, [len(self.targets) if other == b else other for other in blocks])

    def of(self, kernels: Sequence[int | None], blocks: Sequence[int]) -> CompressedMemory:
        """The facts of other numbers: those that each kernel and block had here, None for a new kernel."""
        count = len(self.targets)
        known = [b if b < count else None for b in blocks]
        return replace(
            self,
            demands=tuple(NO_DEMAND if k is None else self.demands[k] for k in kernels),
            device_ns=tuple(0 if k is None else self.device_ns[k] for k in kernels),
            targets=tuple(128 if b is None else self.targets[b] for b in known),
            carved=tuple(0 if b is None else self.carved[b] for b in known),
            overflow=tuple(0 if b is None else self.overflow[b] for b in known),
            overflowing=tuple(0 if b is None else self.overflowing[b] for b in known),
        )

    @property
    def uses_link(self) -> bool:
        """Whether any kernel reads or writes buddy memory."""
        return any(demand.read or demand.written for demand in self.demands)


@dataclass(frozen=True, slots=True)
class Uncompressed:
    """Allocate nothing as compressed, whatever the node could do: see `uncompressed`."""

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph without compression."""
        return uncompressed(graph)


def uncompressed(graph: TaskGraph) -> TaskGraph:
    """The same tasks with blocks of their own size, by the same numbers.

    >>> from simgpu.graph.taskgraph import TaskGraph
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> uncompressed(graph) is graph
    True
    """
    if graph.compressed is None:
        return graph
    plain = graph.compressed.plain
    return plain if plain.exchanged == graph.exchanged else replace(plain, exchanged=graph.exchanged)


def carved_by(graph: TaskGraph, blocks: Iterable[int]) -> int:
    """Bytes of buddy memory that belong to these blocks; none to what is no part of the compressed memory.

    >>> from simgpu.graph.taskgraph import TaskGraph
    >>> from simgpu.trace.chain import chain
    >>> carved_by(TaskGraph.of(chain([5], [7], [100])), [0])
    0
    """
    carved = () if graph.compressed is None else graph.compressed.carved
    return sum(carved[b] for b in blocks if b < len(carved))
