"""How much overflows from kernel to kernel of an iteration while targets stay (Buddy Compression, figure 8).

Lives here: `overflow_over`. Does not live here: snapshots of memory that was really dumped (`simgpu.buddy.profile`).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from simgpu.codecs.entries import ENTRY_BYTES
from simgpu.graph.taskgraph import TaskGraph

#: Parts of equal time of which each has a snapshot (section 3.1).
PARTS = 10


def overflow_over(graph: TaskGraph, parts: int = PARTS) -> tuple[float, ...]:
    """Share of the entries in live blocks that overflow, at a kernel boundary of each of so many equal parts of time.

    A block is live from the kernel that makes it to the one after which the framework let go of it. Empty for a graph
    without compressed memory.

    >>> from simgpu.trace.chain import chain
    >>> overflow_over(TaskGraph.of(chain([5], [7], [100])))
    ()
    """
    memory = graph.compressed
    if memory is None or not graph.kernels:
        return ()
    ends = list(accumulate(graph.durations))
    # The boundary that follows the middle of each part.
    boundaries = [
        min(bisect_right(ends, ends[-1] * (2 * part + 1) // (2 * parts)), len(ends) - 1) for part in range(parts)
    ]
    return tuple(_share(graph, memory.overflowing, k) for k in boundaries)


def _share(graph: TaskGraph, overflowing: tuple[int, ...], k: int) -> float:
    """Of what is live when kernel k has ended."""
    entries = over = 0
    for b, found in enumerate(overflowing):
        birth, release = graph.births[b], graph.recorded_releases[b]
        if birth is not None and birth <= k and (release is None or release > k):
            entries += -(-graph.blocks[b].bytes // ENTRY_BYTES)
            over += found
    return over / entries if entries else 0.0
