"""What the exchange of gradients adds to a program that several GPUs run: places, and instructions for each GPU.

Lives here: `Additions`, what both ways of exchanging have in common, and the naive one, `gather`. Does not live here:
moDNN's (`simgpu.program.exchange_host`), or copying a program to all GPUs (`simgpu.program.replication`).

`gather` (moDNN, section 6.1): when the last sub-batch is done, GPU 0 fetches the gradients of the other GPUs by way of
the host into memory that it takes for them, adds them to its own, runs the optimizer and sends the new weights to all
others. It goes weight by weight, as far as streams allow: a gradient is added up while the next one is on its way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial

from simgpu.errors import InputError
from simgpu.graph.replicate import Replicas
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DATA,
    H2D,
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Instruction,
    Launch,
    Program,
    Release,
    Signal,
    Space,
)
from simgpu.program.predicted import Place
from simgpu.timeline.streams import StreamId

#: The host's cores that add up gradients, apart from the stream on which a GPU's codecs run.
ACCUMULATION = StreamId(0, "host", 1)

#: Instructions for a GPU.
Added = Callable[[int], list[Instruction]]


@dataclass
class Additions:
    """Code that is added to that of each GPU, and the host's own.

    first_event: the first number of an event that is free. inserted[place]: what stands before an instruction, in
    order. host[segment]: code of the stream `ACCUMULATION`.
    """

    program: Program
    parts: Replicas
    first_event: int
    inserted: defaultdict[Place, list[Added]] = field(default_factory=lambda: defaultdict(list))
    host: defaultdict[int, list[Instruction]] = field(default_factory=lambda: defaultdict(list))
    _events: dict[tuple[object, ...], int] = field(default_factory=dict)

    def event(self, *what: object) -> int:
        """The number of an event by what it stands for, a new one when it is first asked for."""
        return self._events.setdefault(what, self.first_event + len(self._events))

    def signals(self, *what: object) -> Added:
        """A signal of an event that each GPU has."""
        return lambda gpu: [Signal(self.event(*what, gpu))]

    @property
    def gpus(self) -> range:
        """Numbers of the GPUs."""
        return range(len(self.parts.kernels))

    def gradient(self, u: int, gpu: int) -> int:
        """The block that holds the gradient of weight u on a GPU."""
        return _known(self.parts.blocks[gpu][self.parts.updates[u].gradient])

    @property
    def out(self) -> StreamId:
        """The stream of GPU 0 by which blocks leave."""
        return DATA if DATA in self.program.streams else D2H

    @property
    def back(self) -> StreamId:
        """The stream of GPU 0 by which blocks come."""
        return DATA if DATA in self.program.streams else H2D

    @property
    def last(self) -> int:
        """The last segment."""
        return len(self.program.segments) - 1

    def at_end(self, stream: StreamId, add: Added) -> None:
        """Add to the end of a stream's iteration."""
        self.inserted[self.end(self.last, stream)].append(add)

    def end(self, segment: int, stream: StreamId) -> Place:
        """The end of a stream's part of a segment."""
        return Place(segment, stream, len(self.program.segments[segment].streams.get(stream, ())))

    def after(self, place: Place, add: Added) -> None:
        """Add behind an instruction."""
        self.inserted[place._replace(position=place.position + 1)].append(add)

    def launches(self, kernels: Iterable[int]) -> dict[StreamId, Place]:
        """Where each stream launches the last of these kernels."""
        places = sorted(place for k in kernels for place in self._launches[k])
        return {place.stream: place for place in places}

    @cached_property
    def _launches(self) -> defaultdict[int, list[Place]]:
        found: defaultdict[int, list[Place]] = defaultdict(list)
        for index, segment in enumerate(self.program.segments):
            for stream, code in segment.streams.items():
                for position, instruction in enumerate(code):
                    if isinstance(instruction, Launch):
                        found[instruction.kernel].append(Place(index, stream, position))
        return found

    def finish(self, received: Callable[[int], list[Instruction]]) -> None:
        """End the iteration on all GPUs together: when all weights are back, and their gradients' memory is too.

        received: what a GPU's compute stream waits for.
        """

        def end(gpu: int) -> list[Instruction]:
            kept = tuple(self.gradient(u, gpu) for u in self.put_off)
            others = [Await(self.event("ended", other)) for other in self.gpus if other != gpu]
            given = [Release(kept)] if kept else []
            return [*received(gpu), Signal(self.event("ended", gpu)), *others, *given]

        self.at_end(COMPUTE, end)

    # --- gradients' memory ----------------------------------------------------------------------------------

    @cached_property
    def since(self) -> int:
        """The segment in which the last sub-batch ends."""
        return max(place.segment for place in self.launches(range(self.parts.end)).values())

    @cached_property
    def put_off(self) -> list[int]:
        """Weights whose gradients the program would give the memory of back from the last sub-batch on.

        That is put off until they have been exchanged, to the iteration's end.
        """
        released = {
            b
            for segment in self.program.segments[self.since :]
            for code in segment.streams.values()
            for instruction in code
            if isinstance(instruction, Release) and instruction.space is Space.DEVICE
            for b in instruction.blocks
        }
        return [u for u, update in enumerate(self.parts.updates) if update.gradient in released]


def gather(more: Additions) -> None:
    """Add the naive exchange."""
    parts = more.parts
    helpers = more.gpus[1:]
    done = more.launches(range(parts.end))
    for stream, place in done.items():
        more.after(place, more.signals("done", stream))

    def ready(gpu: int) -> list[Instruction]:
        return [Await(more.event("done", stream, gpu)) for stream in done]

    order = _sum_up(more)

    def send(gpu: int) -> list[Instruction]:
        code: list[Instruction] = ready(gpu) if gpu else []
        for u in order if gpu else ():
            block = more.gradient(u, gpu)
            code += [Acquire((block,), Space.HOST), CopyOut(block), Signal(more.event("sent", u, gpu))]
        return code

    def fetch(gpu: int) -> list[Instruction]:
        # GPU 0 takes memory for what it fetches only when its own sub-batch is done and leaves room.
        code: list[Instruction] = [] if gpu else ready(0)
        for u in () if gpu else order:
            for other in helpers:
                block = more.gradient(u, other)
                code += [Await(more.event("sent", u, other)), Acquire((block,)), CopyIn(block)]
                code += [Release((block,), Space.HOST), Signal(more.event("fetched", u, other))]
        return code

    more.at_end(more.out, send)
    more.at_end(more.back, fetch)
    _spread(more)


def _sum_up(more: Additions) -> list[int]:
    """GPU 0 adds up each gradient where it is needed first, and signals each new weight; the weights in that order."""
    parts = more.parts
    readers: dict[int, list[int]] = {}
    order: list[int] = []
    waiting = list(range(len(parts.updates)))
    recorded = {number: k for k, number in enumerate(parts.kernels[0]) if number is not None and k >= parts.end}
    for number, k in sorted(recorded.items()):
        read = frozenset(parts.graph.reads[number])
        readers[k] = [u for u in waiting if more.gradient(u, 0) in read]
        waiting = [u for u in waiting if u not in readers[k]]
        order += readers[k]
    for k, first in readers.items():
        place = next(iter(more.launches([k]).values()))
        more.inserted[place].append(partial(_adding, more, first))
    made = {u: recorded[number] for u, number in enumerate(parts.updating) if number in recorded}
    for u, k in made.items():
        place = next(iter(more.launches([k]).values()))
        more.after(place, partial(_updated, more, u))

    def without_optimizer(gpu: int) -> list[Instruction]:
        code: list[Instruction] = []
        for u in range(len(parts.updates)) if gpu == 0 else ():
            if u in waiting:
                code += _adding(more, [u], gpu)
            if u not in made:
                code += [Launch(parts.updating[u]), Signal(more.event("updated", u))]
        return code

    more.at_end(COMPUTE, without_optimizer)
    return order + waiting


def _updated(more: Additions, u: int, gpu: int) -> list[Instruction]:
    """GPU 0 has a new weight."""
    return [] if gpu else [Signal(more.event("updated", u))]


def _adding(more: Additions, updates: Iterable[int], gpu: int) -> list[Instruction]:
    """GPU 0 adds the gradients of the others to its own."""
    code: list[Instruction] = []
    for u in updates if gpu == 0 else ():
        for other, kernel in zip(more.gpus[1:], more.parts.added[u], strict=True):
            code += [Await(more.event("fetched", u, other)), Launch(kernel), Release((more.gradient(u, other),))]
    return code


def _spread(more: Additions) -> None:
    """The new weights go from GPU 0 to all others."""
    updates = more.parts.updates
    order = sorted(range(len(updates)), key=lambda u: more.parts.updating[u])

    def send(gpu: int) -> list[Instruction]:
        code: list[Instruction] = []
        for u in () if gpu else order:
            weight = updates[u].weight
            code += [Await(more.event("updated", u)), Acquire((weight,), Space.HOST), CopyOut(weight)]
            code.append(Signal(more.event("there", u)))
        return code

    def receive(gpu: int) -> list[Instruction]:
        code: list[Instruction] = []
        for u in order if gpu else ():
            code += [Await(more.event("there", u)), CopyIn(updates[u].weight), Signal(more.event("back", u, gpu))]
        return code

    more.at_end(more.out, send)
    more.at_end(more.back, receive)
    for u in order:
        more.host[more.last] += [Await(more.event("back", u, gpu)) for gpu in more.gpus[1:]]
        more.host[more.last].append(Release((updates[u].weight,), Space.HOST))
    more.host[more.last].append(Signal(more.event("over")))
    more.finish(lambda gpu: [] if gpu else [Await(more.event("over"))])


def refuse_moving(program: Program, parts: Replicas) -> None:
    """Raise `InputError` where a policy itself moves what is exchanged."""
    names = {b: parts.graph.blocks[b].id for update in parts.updates for b in (update.weight, update.gradient)}
    moved = {
        instruction.block
        for segment in program.segments
        for code in segment.streams.values()
        for instruction in code
        if isinstance(instruction, CopyOut | CopyIn | Encode | Decode)
    }
    away = [b for b in names if b in moved] + [u.weight for u in parts.updates if u.weight not in program.resident]
    if away:
        what = f"the program moves '{names[away[0]]}' between GPU and host itself, so that it cannot be exchanged"
        raise InputError.single("", "gpus", what, "run the policy on one GPU, or one that leaves weights on the GPU")


def _known(block: int | None) -> int:
    assert block is not None, "every GPU has its gradients"
    return block
