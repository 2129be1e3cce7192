"""How many live memory-entries overflow during an iteration with constant targets (Buddy Compression, figure 8)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from simgpu.compression.codecs.entries import ENTRY_BYTES
from simgpu.graph.taskgraph import TaskGraph

#: Number of equal parts of the iteration, each with one snapshot (section 3.1).
PARTS = 10


@dataclass(frozen=True, slots=True)
class OccupancySample:
    """Live blocks at a kernel boundary: total bytes, bytes in device memory, entries, and overflowing entries."""

    bytes: int
    device: int
    entries: int
    overflowing: int

    @property
    def overflow(self) -> float:
        """Share of the entries that do not fit their targets.

        >>> OccupancySample(bytes=512, device=256, entries=4, overflowing=1).overflow
        0.25
        """
        return self.overflowing / self.entries if self.entries else 0.0


def moments_of(graph: TaskGraph, parts: int = PARTS) -> tuple[OccupancySample, ...]:
    """The live blocks at one kernel boundary in each of `parts` equal parts of the iteration's time.

    A block is live from the kernel that writes it to the kernel after which the framework released it. graph: for one
    GPU. A repeated kernel counts with the time of all its repetitions. Empty for a graph without compressed memory.

    >>> from simgpu.trace.chain import chain
    >>> moments_of(TaskGraph.of(chain([5], [7], [100])))
    ()
    """
    memory = graph.compressed
    if memory is None or not graph.kernels:
        return ()
    order = [k for part in graph.rounds for _ in range(part.repeat) for k in range(part.first, part.stop)]
    ends = list(accumulate(graph.durations[k] for k in order))
    # The kernel boundary after the middle of each part.
    boundaries = [
        min(bisect_right(ends, ends[-1] * (2 * part + 1) // (2 * parts)), len(ends) - 1) for part in range(parts)
    ]
    return tuple(_at(graph, memory.overflowing, order[place]) for place in boundaries)


def _at(graph: TaskGraph, overflowing: tuple[int, ...], k: int) -> OccupancySample:
    """The live blocks at the end of kernel k."""
    live = [
        b
        for b in range(len(overflowing))
        if (birth := graph.births[b]) is not None
        and birth <= k
        and ((release := graph.recorded_releases[b]) is None or release > k)
    ]
    return OccupancySample(
        bytes=sum(graph.blocks[b].bytes for b in live),
        device=sum(graph.sizes[b] for b in live),
        entries=sum(-(-graph.blocks[b].bytes // ENTRY_BYTES) for b in live),
        overflowing=sum(overflowing[b] for b in live),
    )
