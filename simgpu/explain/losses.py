"""Attributes every lost nanosecond of an iteration to a tensor, an engine, a decision and a reason.

If no compute stream works, the time is attributed to the span at the end of the chain of waits, and to the tensor that
it moves. If the chain ends in a wait for memory, it is attributed to the work of the stream that will release memory.
Streams execute in order, so the n-th work span of a stream belongs to its n-th instruction that takes time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simgpu.analysis.breakdown import Instants, Owner, attributed
from simgpu.graph.replicate import Replicate
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import DEVICE, WORK, Await, Decode, Encode, Instruction, Launch, Program, Signal
from simgpu.program.paging import Remote
from simgpu.simulation.result import Result
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import OWN_ENGINES, StreamId, engine_text
from simgpu.trace.model import Block, BlockKind

#: The decision behind a codec's time; True for codecs on the host.
_CODEC_DECISIONS = {
    (SpanKind.ENCODE, False): "encode before offload",
    (SpanKind.DECODE, False): "decode after prefetch",
    (SpanKind.ENCODE, True): "encode on the host after offload",
    (SpanKind.DECODE, True): "decode on the host before prefetch",
}
_CODECS = (SpanKind.ENCODE, SpanKind.DECODE)
#: What a kernel does, by the role of its stream.
_RUNS = {"host": "runs on the host", "collectives": "exchange between GPUs"}
_STALLED = (Owner.COPY, Owner.MEMORY, Owner.HOST, Owner.LAUNCH, Owner.COLLECTIVE, Owner.OTHER)
#: Of all waits for launches together: there is one for almost every kernel of a step that waits for the host.
_LAUNCHES = "launches by the host", "its thread launches one operator after another"


class Cause(NamedTuple):
    """The cause of lost time.

    tensor: block id; a kernel's id if no block is known; empty if there is neither.
    engine: the stream that was busy with it.
    decision: the action of the program, and the kernel during which it was issued.
    reason: why compute waits for it.
    """

    tensor: str
    engine: str
    decision: str
    reason: str


@dataclass(frozen=True, slots=True)
class Loss:
    """Time lost to one cause in one iteration.

    owner: as in the breakdown. copy_engine: for `Owner.COPY` the engine that compute waited for, else empty.
    ns: lost nanoseconds.
    waits: number of waits.
    tensor_bytes: size of the tensor in device memory, 0 if there is no tensor.
    what: kind and layer of the tensor.
    layer: of the tensor.
    kernel: the kernel that waited longest, empty if none waited.
    """

    cause: Cause
    owner: Owner
    ns: int
    waits: int
    tensor_bytes: int
    what: str
    layer: str
    kernel: str
    copy_engine: str = ""

    @property
    def stalled(self) -> bool:
        """Whether compute was stalled; otherwise it recomputed or ran a codec."""
        return self.owner in _STALLED


def losses(result: Result, iteration: int = -1) -> tuple[Loss, ...]:
    """The losses of an iteration (the last one by default) on GPU 0, largest first.

    Lost is all time except first runs of kernels. The losses of each owner add up to its time in the breakdown: stalls,
    recomputation, codecs.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.simulation.run import simulate
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> lost = losses(simulate(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, "vdnn"))
    >>> [(loss.ns, loss.cause.tensor, loss.cause.engine, loss.cause.decision) for loss in lost[:2]]
    [(13, 'x2', 'd2h', 'offload during F2 of L2'), (5, 'x1', 'd2h', 'offload during F1 of L1')]
    """
    instants = attributed(result.timeline, iteration)
    causes = _Causes(result, Places(result), instants)
    sums: dict[tuple[Cause, Owner, int], _Sum] = {}
    for at in np.flatnonzero(instants.owner != Owner.COMPUTE).tolist():
        key = causes.cause(at), Owner(int(instants.owner[at])), int(instants.engine[at])
        sums.setdefault(key, _Sum()).add(int(instants.lengths[at]), int(instants.waiting[at]), causes.waiter(at))
    unsorted = (causes.loss(*key, total) for key, total in sums.items())
    return tuple(sorted(unsorted, key=lambda loss: (-loss.ns, loss.cause)))


class _Sum:
    """The sum of a loss. kernels: nanoseconds waited by each kernel."""

    def __init__(self) -> None:
        self.ns = 0
        self.waits: set[int] = set()
        self.kernels: dict[str, int] = {}

    def add(self, ns: int, wait: int, kernel: str) -> None:
        self.ns += ns
        self.waits.add(wait)
        self.kernels[kernel] = self.kernels.get(kernel, 0) + ns


class _Causes:
    """Describes the causes of an iteration's intervals."""

    def __init__(self, result: Result, places: Places, instants: Instants) -> None:
        self.graph = result.graph
        self.timeline = result.timeline
        self.places = places
        self.instants = instants
        self.blocks = {block.id: number for number, block in enumerate(result.graph.blocks)}

    def cause(self, at: int) -> Cause:
        """The cause of an interval without compute."""
        row, wait = int(self.instants.row[at]), int(self.instants.waiting[at])
        if row < 0:
            return Cause("", "", "idle", "")
        if self.instants.owner[at] == Owner.LAUNCH:
            return Cause("", self.timeline.streams[int(self.timeline.stream[row])], *_LAUNCHES)
        reason = self._reason(row, wait) if wait >= 0 else ""
        row = self._releasing(row, at)
        engine = self.timeline.streams[int(self.timeline.stream[row])]
        kind = SpanKind(int(self.timeline.kind[row]))
        if kind is SpanKind.COPY:
            return Cause(self._name(row), engine, self._copy_decision(row), reason)
        if kind in _CODECS:
            return Cause(
                self._encoded_block(row), engine, _CODEC_DECISIONS[kind, StreamId.of(engine).role == "host"], reason
            )
        if kind is SpanKind.RECOMPUTE:
            return Cause(
                self._recomputed(row), engine, f"recompute for {self._kernel(self.places.next_launch(row))}", reason
            )
        if kind is SpanKind.COMPUTE:
            return Cause(self._name(row), engine, _RUNS.get(StreamId.of(engine).role, "runs"), reason)
        if self.places.program.residency is not None:
            return Cause(self._name(row), engine, "page faults", reason)
        label = kind.label(self._resource(row))
        return Cause(self._name(row), engine, label.removeprefix("stall_").replace("_", " "), reason)

    def waiter(self, at: int) -> str:
        """The kernel that an interval delayed."""
        wait = int(self.instants.waiting[at])
        return self._kernel(self._delayed(wait)) if wait >= 0 else ""

    def loss(self, cause: Cause, owner: Owner, engine: int, total: _Sum) -> Loss:
        """What all waits of one cause lost. engine: a position in the instants' engines, -1 for none."""
        kernel = max(total.kernels, key=lambda name: (total.kernels[name], name))
        number, copied_by = self.blocks.get(cause.tensor), self.instants.engines[engine] if engine >= 0 else ""
        if number is None:
            return Loss(cause, owner, total.ns, len(total.waits), 0, "", "", kernel, copied_by)
        size, text = self.graph.sizes[number], block_text(self.graph, number)
        layer = _plain(self.graph, number).layer or ""
        return Loss(cause, owner, total.ns, len(total.waits), size, text, layer, kernel, copied_by)

    # --- texts ----------------------------------------------------------------------------------------------

    def _releasing(self, row: int, at: int) -> int:
        """For a wait for memory, the current work of the stream that will release memory, if known; else `row`."""
        if self.timeline.kind[row] != SpanKind.STALL_MEMORY:
            return row
        releaser = int(self.timeline.cause[row])
        work = int(self.instants.rows[releaser, at]) if releaser >= 0 else -1
        return work if work >= 0 and self.timeline.kind[work] < SpanKind.STALL_EVENT else row

    def _copy_decision(self, row: int) -> str:
        engine = self._resource(row)
        out = engine == OWN_ENGINES[0]
        residency = self.places.program.residency
        if isinstance(residency, Remote):
            return "writes to host memory" if out else "reads from host memory"
        if residency is not None:
            ahead = StreamId.of(self.timeline.streams[int(self.timeline.stream[row])]) in self.places.program.streams
            return f"pages {'evicted' if out else 'fetched'}{' ahead' if ahead else ''}"
        kernel = self.places.kernel_during(row)
        issued = "" if kernel is None else f" during {self._kernel(kernel)}"
        if self.places.exchanged(row):
            return f"gradient exchange, {engine_text(engine)}{issued}"
        if kernel is None or engine not in OWN_ENGINES:
            return f"{engine_text(engine)} copy{issued}"
        return f"{'offload' if out else 'prefetch'}{issued}"

    def _encoded_block(self, row: int) -> str:
        instruction = self.places.instruction(row)
        return self.graph.blocks[instruction.block].id if isinstance(instruction, Encode | Decode) else self._name(row)

    def _recomputed(self, row: int) -> str:
        """The block for which a kernel is recomputed: the largest one that it produces."""
        instruction = self.places.instruction(row)
        if not isinstance(instruction, Launch):
            return self._name(row)
        makes = instruction.makes or self.graph.writes[instruction.kernel]
        largest = max(makes, key=lambda b: (self.graph.sizes[b], -b), default=None)
        return self._name(row) if largest is None else self.graph.blocks[largest].id

    def _reason(self, row: int, wait: int) -> str:
        """The reason why the next kernel could not run."""
        kernel = self._delayed(wait)
        name, kind = self._kernel(kernel), SpanKind(int(self.timeline.kind[row]))
        if self.places.program.residency is not None:
            return f"{name} accesses it"
        if kind is SpanKind.STALL_MEMORY and self._resource(row) != DEVICE:
            return f"{self._resource(row)} memory is full"
        if kind is SpanKind.STALL_MEMORY:
            return f"{name if row == wait else 'the prefetch'} waits for device memory"
        number = int(self.timeline.name[row]) - len(self.graph.kernels)
        if kernel is None:
            return "the iteration ends with it"
        if number >= 0 and number in self._touched(kernel):
            return f"{name} uses it"
        return f"{name} waits for {'this copy' if kind is SpanKind.COPY else 'it'}"

    def _touched(self, kernel: int) -> set[int]:
        """Blocks that a kernel reads or writes, and their encoded forms."""
        touched = {*self.graph.reads[kernel], *self.graph.writes[kernel]}
        return touched | {form for form, encoded in self.graph.encoded.items() if encoded.block in touched}

    def _delayed(self, wait: int) -> int | None:
        """The kernel that a compute stream runs next after a wait."""
        row = self.places.work_after(wait)
        if row is None:
            return None
        if SpanKind(int(self.timeline.kind[row])) in (SpanKind.COMPUTE, SpanKind.RECOMPUTE):
            return int(self.timeline.name[row])
        return self.places.next_launch(row)

    def _resource(self, row: int) -> str:
        number = int(self.timeline.resource[row])
        return self.timeline.resources[number] if number >= 0 else ""

    def _name(self, row: int) -> str:
        number = int(self.timeline.name[row])
        return self.timeline.names[number] if number >= 0 else ""

    def _kernel(self, number: int | None) -> str:
        """A kernel's id, with its layer if the id does not contain it."""
        if number is None:
            return "the end"
        kernel = self.graph.kernels[number]
        return f"{kernel.id} of {kernel.layer}" if kernel.layer and kernel.layer not in kernel.id else kernel.id


def block_text(graph: TaskGraph, number: int) -> str:
    """Kind and layer of a block; for an encoded or saved form, those of the original block.

    >>> from simgpu.trace.chain import chain
    >>> block_text(TaskGraph.of(chain([5], [7], [100])), 0)
    'input of L1'
    """
    block = _plain(graph, number)
    text = " of ".join(filter(None, (block.kind.value.replace("_", " "), block.layer)))
    if number not in graph.encoded:
        return text
    _, *costs = graph.encoded[number]
    return f"encoded {text}" if any(costs) else f"saved {text}"


def _plain(graph: TaskGraph, number: int) -> Block:
    """A block; for an encoded form, the original block."""
    return graph.blocks[graph.encoded[number].block if number in graph.encoded else number]


def overhead_parts(result: Result, results: tuple[Loss, ...]) -> Iterator[tuple[str, int]]:
    """Parts of the time over the ideal iteration, nanoseconds: stalls, waits for launches, recomputation, codecs, and
    kernel times that differ from the recorded ones (negative if sub-batches or other algorithms make them shorter).

    Waits for launches are counted over those of the ideal iteration, so they are negative where other waits hide them.
    """
    launches = sum(loss.ns for loss in results if loss.owner is Owner.LAUNCH)
    yield "stalled", sum(loss.ns for loss in results if loss.stalled) - launches
    if result.node.host.launch_ns:
        yield "waiting for launches", launches - result.ideal_launch_ns
    yield "recomputing", sum(loss.ns for loss in results if loss.owner is Owner.RECOMPUTE)
    yield "codecs", sum(loss.ns for loss in results if loss.owner is Owner.CODEC)
    yield "other kernel times", result.metrics.breakdown.compute - (result.ideal_ns - result.ideal_launch_ns)


_EXCHANGED = (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT)


class InstructionPlace(NamedTuple):
    """The position of an instruction: segment, stream, and index in the stream's code."""

    segment: int
    stream: StreamId
    at: int


class Places:
    """Maps the spans of a run to the program's instructions."""

    def __init__(self, result: Result) -> None:
        self.program: Program = result.program
        self.timeline: Timeline = result.timeline
        self.graph = result.graph
        self._signals = {
            instruction.event: InstructionPlace(index, stream, position)
            for index, segment in enumerate(self.program.segments)
            for stream, code in segment.streams.items()
            for position, instruction in enumerate(code)
            if isinstance(instruction, Signal)
        }

    @cached_property
    def _place_of(self) -> dict[int, InstructionPlace]:
        """Positions by row of the timeline, without streams outside the program, such as those of page migrations."""
        results: dict[int, InstructionPlace] = {}
        work = self.timeline.kind < SpanKind.STALL_EVENT
        iterations = len(self.timeline.iteration_ends_ns)
        for number, name in enumerate(self.timeline.streams):
            rows = np.flatnonzero(work & (self.timeline.stream == number)).tolist()
            places = list(self._works(StreamId.of(name))) * iterations
            if len(places) == len(rows):
                results.update(zip(rows, places, strict=True))
        return results

    def _works(self, stream: StreamId) -> Iterable[InstructionPlace]:
        """The instructions of one iteration of a stream that take time, in order."""
        for index, segment in enumerate(self.program.segments):
            code = segment.streams.get(stream, ())
            takes_time = (at for at, instruction in enumerate(code) if isinstance(instruction, WORK))
            timed = [InstructionPlace(index, stream, at) for at in takes_time]
            for _ in range(segment.repeat):
                yield from timed

    def code(self, place: InstructionPlace) -> Sequence[Instruction]:
        """All instructions of the stream in the segment of a position."""
        return self.program.segments[place.segment].streams[place.stream]

    def instruction(self, row: int) -> Instruction | None:
        """The instruction of a work span; None for copies outside the program."""
        place = self._place_of.get(row)
        return None if place is None else self.code(place)[place.at]

    def kernel_during(self, row: int) -> int | None:
        """The kernel during which a copy was issued: the first that a compute stream launches after the copy's signal.

        None if no compute stream signals the copy, or no launch follows. A copy without its own wait is issued with the
        previous copy of its stream; a copy that follows decoding on the host, with the decoding.
        """
        place = self._place_of.get(row)
        return None if place is None else self._issuing(place)

    def _issuing(self, place: InstructionPlace) -> int | None:
        awaited: list[int] = []
        for instruction in reversed(self.code(place)[: place.at]):
            if isinstance(instruction, Await):
                awaited.append(instruction.event)
            elif awaited and isinstance(instruction, WORK):
                break
        kernels = map(self._launched_from, awaited)
        return next((kernel for kernel in kernels if kernel is not None), None)

    def exchanged(self, row: int) -> bool:
        """Whether a copy is part of the exchange of gradients and weights between GPUs."""
        number = int(self.timeline.name[row]) - len(self.graph.kernels)
        return self._data_parallel and self.graph.blocks[number].kind in _EXCHANGED

    @cached_property
    def _data_parallel(self) -> bool:
        return any(isinstance(transform, Replicate) for transform in self.program.transforms)

    def _launched_from(self, event: int) -> int | None:
        signal = self._signals.get(event)
        if signal is None:
            return None
        code = self.code(signal)
        if signal.stream.role == "compute":
            return _first_launch(code[signal.at :])
        at = next((at for at in reversed(range(signal.at)) if isinstance(code[at], WORK)), None)
        if at is not None and isinstance(code[at], Decode):
            return self._issuing(signal._replace(at=at))
        return None

    def next_launch(self, row: int) -> int | None:
        """The next kernel after a work span that is not a recomputation; None if none follows."""
        place = self._place_of.get(row)
        if place is None:
            return None
        rest = self.code(place)[place.at + 1 :]
        first_runs = (x for x in rest if not (isinstance(x, Launch) and x.recompute))
        return _first_launch(first_runs)

    @cached_property
    def _work_on(self) -> dict[int, tuple[list[int], list[int]]]:
        """Rows and start times of the work of each stream."""
        work = self.timeline.kind < SpanKind.STALL_EVENT
        rows_of = {n: np.flatnonzero(work & (self.timeline.stream == n)) for n in range(len(self.timeline.streams))}
        return {n: (rows.tolist(), self.timeline.start_ns[rows].tolist()) for n, rows in rows_of.items()}

    def work_after(self, wait: int) -> int | None:
        """The row of a stream's next work after one of its waits; None if nothing follows."""
        rows, starts = self._work_on[int(self.timeline.stream[wait])]
        at = bisect_left(starts, int(self.timeline.end_ns[wait]))
        return rows[at] if at < len(rows) else None


def _first_launch(code: Iterable[Instruction]) -> int | None:
    return next((instruction.kernel for instruction in code if isinstance(instruction, Launch)), None)
