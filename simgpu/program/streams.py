"""Order between kernels on several compute streams: which kernel waits for which, and when memory is released."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from simgpu.graph.taskgraph import BEFORE, TaskGraph
from simgpu.program.instructions import COMPUTE
from simgpu.timeline.streams import StreamId


@cache
def compute_stream(number: int) -> StreamId:
    """The compute stream with that number in the trace."""
    return StreamId(0, "compute", number)


@dataclass
class StreamOrder:
    """Events between compute streams.

    before[k]: events that kernel k's stream awaits before its launch. shared[k]: blocks that end with kernel k but were
    used on other streams too, with the events after which they are unused; the host stream releases them in the trace's
    order, so that no compute stream waits for another only to release memory.
    signals[k]: event signalled when kernel k has ended. others: all compute streams except the first.
    """

    before: Sequence[Sequence[int]]
    shared: Sequence[tuple[tuple[int, ...], Sequence[int]]]
    signals: dict[int, int] = field(default_factory=dict)
    others: tuple[StreamId, ...] = ()

    @property
    def events(self) -> int:
        """How many event numbers are in use."""
        return len(self.signals)

    def event_of(self, k: int) -> int:
        """The event of kernel k's end, created at the first call."""
        return self.signals.setdefault(k, len(self.signals))


def order_streams(graph: TaskGraph, deaths: Sequence[Sequence[int]]) -> StreamOrder:
    """The events that order true dependencies across streams, and every use of a block before its release."""
    count = len(graph.kernels)
    names = [compute_stream(number) for number in graph.compute_streams]
    others = tuple(name for name in names if name != COMPUTE)
    if not others:
        return StreamOrder([()] * count, [((), ())] * count)
    before: list[Sequence[int]] = [()] * count
    shared_after: list[tuple[tuple[int, ...], Sequence[int]]] = [((), ())] * count
    order = StreamOrder(before, shared_after, others=others)
    awaited: dict[tuple[int, int], int] = {}

    def wait(waiter: int, kernels: Iterable[int]) -> list[int]:
        """Events of the latest of these kernels on each stream that the waiter has not awaited yet."""
        latest: dict[int, int] = {}
        for k in kernels:
            latest[graph.streams[k]] = max(latest.get(graph.streams[k], -1), k)
        pending = [
            k for stream, k in sorted(latest.items()) if stream != waiter and awaited.get((waiter, stream), -1) < k
        ]
        for k in pending:
            awaited[waiter, graph.streams[k]] = k
        return [order.event_of(k) for k in pending]

    host = -1
    births = [BEFORE if birth is None else birth for birth in graph.births]
    for k in range(count):
        before[k] = wait(graph.streams[k], graph.predecessors[k])
        users = {b: {u for u in (*graph.uses[b], births[b]) if 0 <= u <= k} | {k} for b in deaths[k]}
        shared = tuple(b for b in deaths[k] if {graph.streams[u] for u in users[b]} != {graph.streams[k]})
        shared_after[k] = shared, wait(host, (u for b in shared for u in users[b]))
    return order
