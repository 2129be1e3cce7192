"""Order between kernels on several compute streams: which kernel waits for which, and when memory may go.

Lives here: the events that a trace with several compute streams needs. On one stream there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import COMPUTE
from simgpu.timeline.streams import StreamId


def compute_stream(number: int) -> StreamId:
    """The compute stream with that number in the trace."""
    return StreamId(0, "compute", number)


@dataclass
class StreamOrder:
    """Events between compute streams.

    before[k], after[k]: events that kernel k's stream awaits before its launch, and before releasing what dies with
    it. signals[k]: event signalled when kernel k has ended. others: compute streams besides the first.
    events: how many event numbers are taken.
    """

    before: list[list[int]]
    after: list[list[int]]
    signals: dict[int, int] = field(default_factory=dict)
    others: tuple[StreamId, ...] = ()

    @property
    def events(self) -> int:
        return len(self.signals)

    def event_of(self, k: int) -> int:
        return self.signals.setdefault(k, len(self.signals))


def order_streams(graph: TaskGraph, deaths: list[list[int]]) -> StreamOrder:
    """The events that keep true dependencies, and every use of a block before its release, across streams."""
    count = len(graph.kernels)
    order = StreamOrder([[] for _ in range(count)], [[] for _ in range(count)])
    names = [compute_stream(number) for number in graph.compute_streams]
    order.others = tuple(name for name in names if name != COMPUTE)
    if not order.others:
        return order
    seen: dict[tuple[int, int], int] = {}

    def wait(k: int, others: set[int], into: list[int]) -> None:
        """Make kernel k's stream wait for the latest of these kernels on each other stream, once."""
        latest: dict[int, int] = {}
        for other in others:
            stream = graph.streams[other]
            if stream != graph.streams[k]:
                latest[stream] = max(latest.get(stream, -1), other)
        for stream, other in sorted(latest.items()):
            if seen.get((graph.streams[k], stream), -1) < other:
                seen[graph.streams[k], stream] = other
                into.append(order.event_of(other))

    for k in range(count):
        wait(k, set(graph.predecessors[k]), order.before[k])
        wait(k, {use for b in deaths[k] for use in graph.uses[b] if use < k}, order.after[k])
    return order
