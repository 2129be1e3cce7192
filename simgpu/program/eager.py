"""Programs of a framework that runs one operator after another on one stream, with copies and waits in between.

The compute stream acquires all device memory, as a framework's host thread does when it allocates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from simgpu.graph.taskgraph import BEFORE, Round, TaskGraph, Transform
from simgpu.program.code import CodeWriter
from simgpu.program.instructions import COMPUTE, D2H, DEVICE, H2D, HOST, Program, Segment
from simgpu.program.lifetimes import first_round, last_round, lifetimes, open_lifetimes
from simgpu.timeline.streams import StreamId


class Eager:
    """Writes a program operator by operator: `run` a kernel, then write what follows it, then `release_ended`.

    releases[b]: the kernel after whose end block b is released, None for never. Further lifetimes of a block, such as
    after a recomputation or a fetch, are begun with `acquire` and ended with `release_after`. Each round of the graph
    becomes a segment; `release_ended` with its last kernel begins the next one.

    >>> from simgpu.program.text import listing
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> writer = Eager(graph, graph.needed_releases)
    >>> for k in range(2):
    ...     writer.run(k)
    ...     writer.release_ended(k)
    >>> print(listing(writer.program(), graph))
    resident: x1
    segment 0, once
      compute
        acquire x2
        launch F1
        acquire g1
        launch B1
        release x2 g1
    """

    def __init__(self, graph: TaskGraph, releases: Sequence[int | None]) -> None:
        self.graph = graph
        self.births, self.deaths, self.survivors, self.reinitialized = lifetimes(graph, releases)
        self.code: defaultdict[StreamId, CodeWriter] = defaultdict(CodeWriter)
        self.segments: list[Segment] = []
        self.events = 0
        self._begin()

    @property
    def compute(self) -> CodeWriter:
        """The compute stream of the present round."""
        return self.code[COMPUTE]

    @property
    def _round(self) -> Round:
        return self.graph.rounds[len(self.segments)]

    def _begin(self) -> None:
        """Begin a round with the inputs that the host initializes for it."""
        if initialized := [b for b in self.reinitialized if first_round(self.graph, b) == self._round]:
            self.compute.acquire(initialized)
            self.compute.initialize(initialized)

    def _end(self) -> None:
        """End a round with the release of the blocks that survive to its end."""
        self.release(b for b in self.survivors if last_round(self.graph, b) == self._round)
        streams = {stream: self.code[stream].code() for stream in sorted(self.code, key=lambda stream: stream.rank)}
        self.code.clear()
        self.segments.append(Segment(streams, self._round.repeat))

    def run(self, k: int) -> None:
        """Kernel k, with memory for the blocks whose lifetime begins with it."""
        self.acquire(self.births[k])
        if initialized := [b for b in self.births[k] if b in self.graph.written_by_host]:
            self.compute.initialize(initialized)
        self.compute.launch(k)

    def recompute(self, k: int, makes: tuple[int, ...], takes: Iterable[int]) -> None:
        """Run kernel k again to write the blocks `makes`, after acquiring memory for `takes`."""
        self.acquire(takes)
        self.compute.relaunch(k, makes)

    def release_after(self, b: int, k: int) -> None:
        """Release block b after kernel k, which has not run yet."""
        self.deaths[k] = (*self.deaths[k], b)

    def not_after(self, k: int, blocks: Iterable[int]) -> None:
        """Do not release these blocks after kernel k, but where the caller writes it."""
        others = set(blocks)
        self.deaths[k] = tuple(b for b in self.deaths[k] if b not in others)

    def release_ended(self, k: int) -> None:
        """Release the blocks that end with kernel k, and end its round with the last kernel."""
        self.release(self.deaths[k])
        if k + 1 == self._round.stop and self._round is not self.graph.rounds[-1]:
            self._end()
            self._begin()

    def acquire(self, blocks: Iterable[int]) -> None:
        """Acquire device memory for these blocks."""
        if listed := tuple(blocks):
            self.compute.acquire(listed)

    def release(self, blocks: Iterable[int], memory: str = DEVICE) -> None:
        """Release the memory of these blocks."""
        if listed := tuple(blocks):
            self.compute.release(listed, memory)

    def signal(self, stream: StreamId = COMPUTE) -> int:
        """A new event, which a stream signals at this point."""
        self.events += 1
        self.code[stream].signal(self.events - 1)
        return self.events - 1

    def wait(self, event: int, stream: StreamId = COMPUTE) -> None:
        """Let a stream wait for an event."""
        self.code[stream].wait(event)

    def copy_d2h(self, b: int, form: int, after: int) -> int:
        """Copy a block to the host as `form` after the event `after`; returns the event of the copy's end."""
        self.wait(after, D2H)
        self.code[D2H].acquire((form,), HOST)
        self.code[D2H].copy(b, DEVICE, HOST, form)
        return self.signal(D2H)

    def copy_h2d(self, form: int, after: int) -> int:
        """Copy a form into its acquired device memory after the event `after`, and release it on the host.

        Returns the event of the copy's end.
        """
        self.wait(after, H2D)
        self.code[H2D].copy(form, HOST, DEVICE)
        self.code[H2D].release((form,), HOST)
        return self.signal(H2D)

    def program(self, transforms: tuple[Transform, ...] = (), notes: tuple[str, ...] = ()) -> Program:
        """The written iteration. transforms: those that created the forms of blocks in the graph."""
        if len(self.segments) < len(self.graph.rounds):
            self._end()
        again = set(self.reinitialized)
        resident = tuple(b for b, birth in enumerate(self.graph.births) if birth == BEFORE and b not in again)
        notes = (*open_lifetimes(self.graph), *notes)
        return Program(tuple(self.segments), resident=resident, transforms=transforms, notes=notes)
