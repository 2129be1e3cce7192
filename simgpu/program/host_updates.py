"""A program whose optimizer updates weights on the host: gradients go to the host, new weights come back.

`updating_on_host` changes a program that was written for the optimizer on the GPU. Streams of their own carry the
copies and the updates, so the copies of the program itself stay as they are; both share the engines of the link. What
may overlap:

* ``none``: after backward all gradients are copied, all weights updated, then all copied back, and compute waits.
* ``gradients``: each gradient is copied when backward has computed it; then as ``none``.
* ``step``: after backward, copies out, updates and copies back of different weights overlap.
* ``backward``: gradients are copied and weights updated as backward computes them. One stream copies in both
  directions, so the first weight comes back when the last gradient has left.

In all of them no weight comes back before backward has ended; the next iteration begins when all are back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from simgpu.errors import InputError
from simgpu.graph.host_updates import HostUpdates, UpdateOnHost, host_updates
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.program.instructions import (
    COMPUTE,
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    InitialContents,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.replication import events_of
from simgpu.program.text import Place
from simgpu.timeline.streams import StreamId

Overlap = Literal["none", "gradients", "step", "backward"]

#: The streams of the copies and of the host's updates; a policy's own have the number 0.
OUT, BACK, BOTH, UPDATES = (StreamId(0, role, 1) for role in ("d2h", "h2d", "data", "host"))


def updating_on_host(
    program: Program, graph: TaskGraph, how: UpdateOnHost, overlap: Overlap, *, free_gradients: bool
) -> Program:
    """The program with the updates of these weights on the host.

    graph: the one the program was written for, without its transforms. free_gradients: whether a gradient's device
    memory is released when it has been copied, not when the iteration ends. Raises `InputError` for a program that
    moves weights, gradients or optimizer state itself, that has addresses, or that acquires no memory.

    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.program.text import listing
    >>> from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
    >>> backward = Kernel("B", "op", Phase.BACKWARD, 10, ("w",), ("w.grad",))
    >>> step = Kernel("step", "sgd", Phase.OPTIMIZER, 1, ("w", "w.grad"), ("w",))
    >>> info = TraceInfo("one layer", 1, "gpu", "float32", Origin.MODELLED, "by hand")
    >>> blocks = (Block("w", 100, BlockKind.WEIGHT, persistent=True), Block("w.grad", 100, BlockKind.WEIGHT_GRADIENT))
    >>> graph = TaskGraph.of(Trace(info, (backward, step), blocks))
    >>> how = UpdateOnHost((0,), bandwidth=10**9)
    >>> hosted = updating_on_host(lower(graph, Placement()), graph, how, "step", free_gradients=True)
    >>> print(listing(hosted, graph))
    resident: w
    in host memory: w
    segment 0, once
      compute
        acquire w.grad
        launch B
        signal 0
        await 3
      d2h1
        await 0
        acquire host w.grad
        copy w.grad from device to host
        release w.grad
        signal 1
      h2d1
        await 2
        await 0
        copy w from host to device
        signal 3
      host1
        await 1
        launch update:w
        release host w.grad
        signal 2
    """
    parts = host_updates(transformed(graph, program.transforms), how)
    check_leaves_updates(program, graph, parts)
    return HostUpdateWriter(program, parts, overlap, free_gradients).program_with(how)


def check_leaves_updates(program: Program, graph: TaskGraph, parts: HostUpdates) -> None:
    """Raises `InputError` for a program that moves what the host updates, that has addresses, or acquires no memory."""
    if program.residency is not None or program.pool == "addressed":
        what = "its blocks have addresses" if program.pool == "addressed" else "its blocks are not its own to move"
        raise InputError.single("", "parameters.inside", what, "choose a policy that acquires memory, such as none")
    owned = {b for u in parts.updates for b in (u.weight, u.gradient, *u.state)}
    code = (i for segment in program.segments for code in segment.streams.values() for i in code)
    moved = {i.block for i in code if isinstance(i, Copy) and i.into is None} & owned
    moved |= {b for u in parts.updates for b in (u.weight, *u.state) if b not in program.resident}
    if moved:
        name = graph.blocks[min(moved)].id if min(moved) < len(graph.blocks) else f"block {min(moved)}"
        what = f"its program moves '{name}' itself, so the host cannot update it too"
        raise InputError.single("", "parameters.inside", what, "choose a policy that leaves weights on the GPU")


class HostUpdateWriter:
    """Writes the program. ready[u]: the kernel of backward that uses the gradient of update u last."""

    def __init__(self, program: Program, parts: HostUpdates, overlap: Overlap, free_gradients: bool) -> None:
        self.program, self.parts, self.overlap = program, parts, overlap
        self.free = free_gradients
        self.events = events_of(program)
        self.numbers: dict[tuple[object, ...], int] = {}
        uses = parts.graph.uses
        self.ready = [max(k for k in uses[update.gradient] if k < parts.end) for update in parts.updates]
        self.early = overlap in ("gradients", "backward")
        order = range(len(parts.updates))
        self.order = sorted(order, key=lambda u: self.ready[u]) if self.early else list(order)
        self.ready_after: defaultdict[int, list[int]] = defaultdict(list)
        for u in self.order:
            self.ready_after[self.ready[u]].append(u)
        self.gradients = {update.gradient for update in parts.updates}
        self.released: set[int] = set()
        self.end_of_backward = max(
            Place(index, COMPUTE, position)
            for index, segment in enumerate(program.segments)
            for position, instruction in enumerate(segment.streams.get(COMPUTE, ()))
            if isinstance(instruction, Launch) and instruction.kernel < parts.end
        )

    def program_with(self, how: UpdateOnHost) -> Program:
        """The changed program."""
        program = self.program
        last = len(program.segments) - 1
        segments = [
            {stream: list(self._code(index, stream, code)) for stream, code in segment.streams.items()}
            for index, segment in enumerate(program.segments)
        ]
        compute = segments[last].setdefault(COMPUTE, [])
        for stream, code in self._of_updates(compute).items():
            segments[last][stream] = code
        compute += self._closing()
        ordered = (dict(sorted(each.items(), key=lambda item: item[0].rank)) for each in segments)
        return replace(
            program,
            segments=tuple(
                Segment({stream: tuple(code) for stream, code in streams.items()}, segment.repeat)
                for streams, segment in zip(ordered, program.segments, strict=True)
            ),
            resident=self._resident(),
            transforms=(*program.transforms, how),
            other_contents=(*program.other_contents, InitialContents(HOST, self._home())),
        )

    def _resident(self) -> tuple[int, ...]:
        """The blocks on the GPU when an iteration begins."""
        return self._left(self.program.resident)

    def _home(self) -> tuple[int, ...]:
        """The blocks in the host's memory then."""
        return tuple(b for update in self.parts.updates for b in (update.weight, *update.state))

    def _event(self, *what: object) -> int:
        """The number of an event by its meaning."""
        return self.numbers.setdefault(what, self.events + len(self.numbers))

    # --- the program's own instructions -------------------------------------------------------------------------

    def _code(self, index: int, stream: StreamId, code: Sequence[Instruction]) -> Iterator[Instruction]:
        """A stream of the program, without what is not on the GPU any more, and with signals for the new streams."""
        for position, instruction in enumerate(code):
            yield from self._own(instruction)
            if isinstance(instruction, Launch) and not instruction.recompute and self.early:
                yield from (Signal(self._event("computed", u)) for u in self.ready_after[instruction.kernel])
            if Place(index, stream, position) == self.end_of_backward:
                yield Signal(self._event("backward"))

    def _own(self, instruction: Instruction) -> Iterator[Instruction]:
        match instruction:
            case Launch(kernel, recompute, makes):
                if (number := self.parts.kernels[kernel]) is not None:
                    yield Launch(number, recompute, makes)
            case Acquire(blocks, memory) | Initialize(blocks, memory) | Release(blocks, memory):
                left = self._left(blocks)
                if isinstance(instruction, Release) and memory == DEVICE:
                    self.released.update(self.gradients.intersection(left))
                    left = tuple(b for b in left if b not in self.gradients)
                if left:
                    yield type(instruction)(left, memory)
            case _:
                yield instruction

    def _left(self, blocks: Iterable[int]) -> tuple[int, ...]:
        return tuple(b for b in blocks if b not in self.parts.gone)

    # --- copies and updates -------------------------------------------------------------------------------------

    def _of_updates(self, compute: list[Instruction]) -> dict[StreamId, list[Instruction]]:
        """The streams of copies and updates; without overlap, compute does the copies."""
        together = self.overlap in ("none", "gradients")
        out = [instruction for u in self.order for instruction in self._send(u)]
        updates = [instruction for u in self.order for instruction in self._update(u, together)]
        if together:
            updates = [Await(self._event("sent", self.order[-1])), *updates, Signal(self._event("updated"))]
        back = [instruction for u in self.order for instruction in self._fetch(u, together)]
        if together:
            back = [Await(self._event("updated")), *back]
        if self.overlap == "backward":
            return {BOTH: [*out, Await(self._event("backward")), *back, Signal(self._event("back"))], UPDATES: updates}
        if self.overlap == "step":
            out = [Await(self._event("backward")), *out]
            back = [back[0], Await(self._event("backward")), *back[1:], Signal(self._event("back"))]
            return {OUT: out, BACK: back, UPDATES: updates}
        streams = {UPDATES: updates}
        if self.overlap == "none":
            compute[self._after_backward(compute) :] = [*out, *compute[self._after_backward(compute) :]]
        else:
            streams[OUT] = out
        compute += back
        return streams

    def _after_backward(self, compute: Sequence[Instruction]) -> int:
        """The position in the last segment's compute stream where backward has ended."""
        signal = Signal(self._event("backward"))
        return compute.index(signal) + 1 if signal in compute else 0

    def _send(self, u: int) -> Iterator[Instruction]:
        gradient = self.parts.updates[u].gradient
        if self.early:
            yield Await(self._event("computed", u))
        yield Acquire((gradient,), HOST)
        yield Copy(gradient, DEVICE, HOST)
        if self.free and gradient in self.released:
            yield Release((gradient,))
        yield Signal(self._event("sent", u))

    def _update(self, u: int, together: bool) -> Iterator[Instruction]:
        if not together:
            yield Await(self._event("sent", u))
        yield Launch(self.parts.updating[u])
        yield Release((self.parts.updates[u].gradient,), HOST)
        if not together:
            yield Signal(self._event("updated", u))

    def _fetch(self, u: int, together: bool) -> Iterator[Instruction]:
        if not together:
            yield Await(self._event("updated", u))
        yield Copy(self.parts.updates[u].weight, HOST, DEVICE)

    def _closing(self) -> Iterator[Instruction]:
        """The end of compute: all weights are back, and the gradients are dropped."""
        if ("back",) in self.numbers:
            yield Await(self._event("back"))
        if not self.free and self.released:
            yield Release(tuple(sorted(self.released)))
