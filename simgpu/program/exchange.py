"""Instructions that several GPUs add to one GPU's program to exchange gradients, and the exchange `gather`.

`gather` is appended to the iteration as a sequence of steps (moDNN, sections 6.1 and 7.5): all other GPUs send their
gradients to host memory; GPU 0 adds them to its own; it runs the optimizer; it sends the new weights to host memory;
all others fetch them. Copies of one step share links and switches.

The paper does not say whether GPU 0 fetches all gradients before it adds the first. Here it fetches one, adds it and
releases its memory before it fetches the next. Without overlap that takes the same time, and it needs the least memory
of all orders: that of the largest gradient in addition to the policy's program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simgpu.errors import InputError
from simgpu.graph.replicate import Replicas
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DATA,
    DEVICE,
    H2D,
    HOST,
    WORK,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.text import Place
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import StreamId

#: The stream of the host's cores that add up gradients; the codecs of a GPU run on another host stream.
ACCUMULATION = StreamId(0, "host", 1)

#: Instructions for a GPU.
Added = Callable[[int], list[Instruction]]


@dataclass
class Additions:
    """Code that is added to the program of each GPU, and the host's own.

    first_event: the first free event number. inserted[place]: code before an instruction, in order. host[segment]: code
    of the stream `ACCUMULATION`.
    """

    program: Program
    parts: Replicas
    first_event: int
    inserted: defaultdict[Place, list[Added]] = field(default_factory=lambda: defaultdict(list))
    host: defaultdict[int, list[Instruction]] = field(default_factory=lambda: defaultdict(list))
    _events: dict[tuple[object, ...], int] = field(default_factory=dict)

    def event(self, *what: object) -> int:
        """The number of an event by its meaning; the first call creates it."""
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
        """GPU 0's device-to-host stream."""
        return DATA if DATA in self.program.streams else D2H

    @property
    def back(self) -> StreamId:
        """GPU 0's host-to-device stream."""
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
        """The position of the last launch of these kernels on each stream."""
        places = sorted(place for k in kernels for place in self._launches[k])
        return {place.stream: place for place in places}

    @cached_property
    def _launches(self) -> defaultdict[int, list[Place]]:
        launches: defaultdict[int, list[Place]] = defaultdict(list)
        for index, segment in enumerate(self.program.segments):
            for stream, code in segment.streams.items():
                for position, instruction in enumerate(code):
                    if isinstance(instruction, Launch):
                        launches[instruction.kernel].append(Place(index, stream, position))
        return launches

    def compute_ends(self, add: Added) -> None:
        """Add to the end of compute, before the releases at the iteration's end."""
        self.inserted[Place(self.last, COMPUTE, closing(self.program, self.parts))].append(add)

    def finish(self, received: Callable[[int], list[Instruction]]) -> None:
        """End the iteration on all GPUs together, when all weights are fetched.

        received: the waits of a GPU's compute stream.
        """

        def end(gpu: int) -> list[Instruction]:
            others = [Await(self.event("ended", other)) for other in self.gpus if other != gpu]
            return [*received(gpu), Signal(self.event("ended", gpu)), *others]

        self.compute_ends(end)

    def behind(self, place: Place, launches: Iterable[Place]) -> Place:
        """The place, or the first one after it that is behind everything that these launches wait for.

        Predicted times alone do not order instructions that take no time.
        """
        needs = (self._needs[launch.stream, launch.position] for launch in launches if launch.segment == self.since)
        minimum = max((need.get(place.stream, 0) for need in needs), default=0)
        return place._replace(position=max(place.position, minimum))

    @cached_property
    def _needs(self) -> dict[tuple[StreamId, int], dict[StreamId, int]]:
        return needs_of(self.program.segments[self.since])

    # --- the end of backward --------------------------------------------------------------------------------

    @cached_property
    def since(self) -> int:
        """The segment in which the last sub-batch ends."""
        return max(place.segment for place in self.launches(range(self.parts.end)).values())

    def after_backward(self, stream: StreamId) -> Place:
        """The place where a compute stream has ended forward and backward and released their memory."""
        if self.since < self.last:
            return Place(self.since + 1, stream, 0)
        code = self.program.segments[self.last].streams.get(stream, ())
        stop = closing(self.program, self.parts) if stream == COMPUTE else len(code)
        backward = (at for at, i in enumerate(code) if isinstance(i, Launch) and i.kernel < self.parts.end)
        position = 1 + max(backward, default=-1)
        while position < stop and isinstance(code[position], Release | Signal):
            position += 1
        return Place(self.last, stream, position)


def gather(more: Additions, trial: Predicted) -> None:
    """Add the naive exchange. trial: a trial run of the program on one GPU."""
    done = more.launches(range(more.parts.end))
    for stream, place in done.items():
        more.after(place, more.signals("done", stream))
    computed = max(trial.end(place) for place in done.values())

    def computed_by(gpu: int) -> list[Instruction]:
        return [Await(more.event("done", stream, gpu)) for stream in done]

    def send(gpu: int) -> list[Instruction]:
        code = computed_by(gpu)
        for u in range(len(more.parts.updates)):
            block = more.gradient(u, gpu)
            code += [Acquire((block,), HOST), Copy(block, DEVICE, HOST)]
        return [*code, Signal(more.event("sent", gpu))] if gpu else []

    for stream, add in ((more.out, send), (more.back, _of_gpu_0([*computed_by(0), *_fetched(more)]))):
        if more.since < more.last:
            place = Place(more.since + 1, stream, 0)
        else:
            place = more.behind(trial.place(more.since, stream, computed), done.values())
        more.inserted[place].append(add)
    _add_up(more)
    _spread(more, _updated(more))


def _of_gpu_0(code: list[Instruction]) -> Added:
    return lambda gpu: [] if gpu else code


def _sums(more: Additions) -> list[tuple[int, int]]:
    """Weights and GPUs in the order in which GPU 0 adds up their gradients."""
    return [(u, gpu) for u in range(len(more.parts.updates)) for gpu in more.gpus[1:]]


def _fetched(more: Additions) -> list[Instruction]:
    """GPU 0 fetches a gradient when the one before has been added up."""
    code: list[Instruction] = [Await(more.event("sent", gpu)) for gpu in more.gpus[1:]]
    before: tuple[int, int] | None = None
    for u, gpu in _sums(more):
        block = more.gradient(u, gpu)
        code += [Await(more.event("added", *before))] if before else []
        code += [
            Acquire((block,)),
            Copy(block, HOST, DEVICE),
            Release((block,), HOST),
            Signal(more.event("fetched", u, gpu)),
        ]
        before = (u, gpu)
    return code


def _add_up(more: Additions) -> None:
    """Add: GPU 0 adds up all gradients before its optimizer acquires memory."""
    parts = more.parts
    code: list[Instruction] = []
    for u, gpu in _sums(more):
        code += [Await(more.event("fetched", u, gpu)), Launch(parts.added[u][gpu - 1])]
        code += [Release((more.gradient(u, gpu),)), Signal(more.event("added", u, gpu))]
    more.inserted[more.after_backward(COMPUTE)].append(_of_gpu_0(code))
    for stream in more.launches(range(parts.end, len(parts.kernels[0]))):
        if stream != COMPUTE:
            last = Await(more.event("added", *_sums(more)[-1]))
            more.inserted[more.after_backward(stream)].append(_of_gpu_0([last]))


def _updated(more: Additions) -> list[Instruction]:
    """The waits for the end of GPU 0's weight updates, with or without a recorded optimizer."""
    parts = more.parts
    recorded = {number: k for k, number in enumerate(parts.kernels[0]) if number is not None and k >= parts.end}
    streams = more.launches(recorded[kernel] for kernel in parts.updating if kernel in recorded)
    for stream, place in streams.items():
        more.after(place, _of_gpu_0([Signal(more.event("updated", stream))]))
    waits: list[Instruction] = [Await(more.event("updated", stream)) for stream in streams]
    plain = [Launch(kernel) for kernel in parts.updating if kernel not in recorded]
    if plain:
        more.compute_ends(_of_gpu_0([*plain, Signal(more.event("descended"))]))
        waits.append(Await(more.event("descended")))
    return waits


def _spread(more: Additions, updated: list[Instruction]) -> None:
    """Add: GPU 0 offloads all new weights, then all others fetch them."""
    weights = [update.weight for update in more.parts.updates]
    out = [instruction for b in weights for instruction in (Acquire((b,), HOST), Copy(b, DEVICE, HOST))]
    more.at_end(more.out, _of_gpu_0([*updated, *out, Signal(more.event("there"))]))

    def receive(gpu: int) -> list[Instruction]:
        if gpu == 0:
            return []
        return [Await(more.event("there")), *(Copy(b, HOST, DEVICE) for b in weights), Signal(more.event("back", gpu))]

    more.at_end(more.back, receive)
    more.host[more.last] += [Await(more.event("back", gpu)) for gpu in more.gpus[1:]]
    more.host[more.last] += [Release(tuple(weights), HOST), Signal(more.event("over"))]
    more.finish(lambda gpu: [] if gpu else [Await(more.event("over"))])


def closing(program: Program, parts: Replicas) -> int:
    """The position in the last segment's compute stream where the final releases of gradients begin."""
    code = program.segments[-1].streams.get(COMPUTE, ())
    at = len(code)
    while at and isinstance(code[at - 1], Release):
        at -= 1
    while at < len(code) and not _releases_gradient(code[at], parts):
        at += 1
    return at


def _releases_gradient(instruction: Instruction, parts: Replicas) -> bool:
    if not isinstance(instruction, Release) or instruction.memory != DEVICE:
        return False
    return any(update.gradient in instruction.blocks for update in parts.updates)


def check_not_moved(program: Program, parts: Replicas) -> None:
    """Raise `InputError` where the policy's program moves weights or gradients, or releases a gradient early."""
    names = {b: parts.graph.blocks[b].id for update in parts.updates for b in (update.weight, update.gradient)}
    end = Place(len(program.segments) - 1, COMPUTE, closing(program, parts))
    places = [
        (Place(index, stream, position), instruction)
        for index, segment in enumerate(program.segments)
        for stream, code in segment.streams.items()
        for position, instruction in enumerate(code)
    ]
    copied = {i.block for _, i in places if isinstance(i, Copy | Encode | Decode)}
    offloaded = [b for b in names if b in copied]
    offloaded += [u.weight for u in parts.updates if u.weight not in program.resident]
    if offloaded:
        what = f"the program moves '{names[offloaded[0]]}' between GPU and host itself, so it cannot be exchanged"
        raise InputError.single("", "gpus", what, "run the policy on one GPU, or one that leaves weights on the GPU")
    early = [i for place, i in places if place[:2] != end[:2] or place < end]
    releases = [i for i in early if isinstance(i, Release) and _releases_gradient(i, parts)]
    released = [b for i in releases for b in i.blocks if b in names]
    if released:
        what = f"the program releases '{names[released[0]]}' before it is exchanged"
        raise InputError.single("", "gpus", what, "run the policy on one GPU, or one that keeps gradients to the end")


def _known(block: int | None) -> int:
    assert block is not None, "every GPU has its gradients"
    return block


def needs_of(segment: Segment) -> dict[tuple[StreamId, int], dict[StreamId, int]]:
    """For each launch, by its stream and position, the number of instructions of each stream that precede it.

    Awaits of earlier repetitions and of other segments' events do not count.

    >>> from simgpu.program.instructions import COMPUTE, DEVICE, H2D, HOST, Copy
    >>> copies = [Copy(block, HOST, DEVICE) for block in (7, 8)]
    >>> code = {COMPUTE: (Launch(0), Await(0), Launch(1)), H2D: (copies[0], Signal(0), copies[1])}
    >>> needs = needs_of(Segment(code))
    >>> needs[COMPUTE, 0][H2D], needs[COMPUTE, 2][H2D]
    (0, 2)
    """
    own = {i.event for code in segment.streams.values() for i in code if isinstance(i, Signal)}
    reached = {stream: dict.fromkeys(segment.streams, 0) for stream in segment.streams}
    signalled: dict[int, dict[StreamId, int]] = {}
    needs: dict[tuple[StreamId, int], dict[StreamId, int]] = {}
    moving = True
    while moving:
        moving = False
        for stream, code in segment.streams.items():
            here = reached[stream]
            for position in range(here[stream], len(code)):
                instruction = code[position]
                if isinstance(instruction, Await) and instruction.lag == 0 and instruction.event in own:
                    if instruction.event not in signalled:
                        break
                    for other, count in signalled[instruction.event].items():
                        here[other] = max(here[other], count)
                elif isinstance(instruction, Launch):
                    needs[stream, position] = dict(here)
                here[stream] = position + 1
                moving = True
                if isinstance(instruction, Signal):
                    signalled[instruction.event] = dict(here)
    return needs


_BEFORE_WORK = (Await, Acquire, Initialize)


class Predicted:
    """Times of the last repetition of every segment in the last iteration of a trial.

    timeline: of `program`. split_segment: the segment whose last repetition is a separate segment in the program of the
    queries (`simgpu.program.replication`), None where both are the same.
    """

    def __init__(self, program: Program, timeline: Timeline, split_segment: int | None) -> None:
        self.program = program
        self.timeline = timeline
        self.split_segment = split_segment
        self.times: dict[StreamId, list[tuple[int, int]]] = {}

    def end(self, place: Place) -> int:
        """When the work at a place ended, ns."""
        code = self._code(place.segment, place.stream)
        number = sum(isinstance(instruction, WORK) for instruction in code[: place.position])
        return self._works(place.segment, place.stream)[number][1]

    def place(self, segment: int, stream: StreamId, time: int) -> Place:
        """Where a stream is at a time: before what it does for its first work that begins then or later."""
        code, number = self._code(segment, stream), 0
        works = self._works(segment, stream)
        for position, instruction in enumerate(code):
            if isinstance(instruction, WORK):
                if works[number][0] >= time:
                    while position and isinstance(code[position - 1], _BEFORE_WORK):
                        position -= 1
                    return Place(segment, stream, position)
                number += 1
        return Place(segment, stream, len(code))

    def _original(self, segment: int) -> int:
        return segment - 1 if self.split_segment is not None and segment > self.split_segment else segment

    def _code(self, segment: int, stream: StreamId) -> Sequence[object]:
        segments = self.program.segments
        index = self._original(segment)
        # A segment that only the exchange uses stands behind those of the program.
        return segments[index].streams.get(stream, ()) if index < len(segments) else ()

    def _works(self, segment: int, stream: StreamId) -> list[tuple[int, int]]:
        """Start and end of the works of a stream in the last repetition of a segment."""
        counts = [
            sum(isinstance(instruction, WORK) for instruction in each.streams.get(stream, ()))
            for each in self.program.segments
        ]
        index = self._original(segment)
        if index >= len(counts):
            return []
        after = sum(
            count * each.repeat
            for count, each in zip(counts[index + 1 :], self.program.segments[index + 1 :], strict=True)
        )
        times = self._times(stream)
        stop = len(times) - after
        return times[stop - counts[index] : stop]

    def _times(self, stream: StreamId) -> list[tuple[int, int]]:
        """Start and end of all works of a stream in the last iteration, in order."""
        if stream not in self.times:
            timeline, name = self.timeline, str(stream)
            number = timeline.streams.index(name) if name in timeline.streams else -1
            last = len(timeline.iteration_ends_ns) - 1
            mine = (timeline.stream == number) & (timeline.kind < SpanKind.STALL_EVENT) & (timeline.iteration == last)
            pairs = zip(timeline.start_ns[mine].tolist(), timeline.end_ns[mine].tolist(), strict=True)
            self.times[stream] = list(pairs)
        return self.times[stream]
