"""Lower a placement to a program.

With a layer barrier (vDNN), a layer step ends when its kernels and the copies issued with them have ended; without one,
`simgpu.program.asynchronous` writes kernels and copies that wait only for what they need.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from simgpu.errors import InputError, ProgramError
from simgpu.garbage import no_collection
from simgpu.graph.layers import LayerStep
from simgpu.graph.taskgraph import BEFORE, TaskGraph
from simgpu.program.asynchronous import Asynchronous, Kernels
from simgpu.program.code import CodeWriter
from simgpu.program.faults import a_type, bool_fault, number_fault, several, shown
from simgpu.program.instructions import COMPUTE, HOST_CORES, Program, Segment
from simgpu.program.lifetimes import first_round, last_round, lifetimes, open_lifetimes
from simgpu.program.placement import Placement, Recompute, Swap
from simgpu.program.streams import StreamOrder, order_streams
from simgpu.program.swaps import SwapWriter
from simgpu.timeline.streams import StreamId


@no_collection()
def lower(graph: TaskGraph, placement: Placement, *, recorded_lifetimes: bool = False) -> Program:
    """The program of a placement.

    A block's memory is acquired just before the kernel that first writes it and released after its last use or, with
    `recorded_lifetimes`, where the recorded framework freed it (a note reports missing recorded lifetimes). Persistent
    blocks that are released within the iteration are initialized again at the start of the round that uses them; other
    surviving blocks are released at its end. Each round of the graph becomes a segment.

    Raises `ProgramError` for a placement with fields that are not plain numbers of the graph's kernels and blocks, for
    a swap outside its gap, for a block that cannot be recomputed, and for swaps or recomputations on a trace with
    several compute streams; `InputError` where last uses are needed and the trace lacks the reads of its kernels.

    >>> from simgpu.program.text import listing
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> program = lower(graph, Placement((Swap(graph.block("x2"), after=1, before=4, fetch_with=3),)))
    >>> "copy x2 from device to host" in listing(program, graph)
    True
    """
    if not recorded_lifetimes:
        require_reads(graph)
    check_placement(graph, placement)
    _check(graph, placement)
    return _Lowering(graph, placement, recorded_lifetimes).program()


def require_reads(graph: TaskGraph) -> None:
    """Raises `InputError` for a trace without the reads of its kernels."""
    if not graph.trace.records_reads:
        what = "the recording does not state what kernels read, so policies cannot use the uses of a block"
        remedy = "run the policies none or ideal, or import it with its execution trace"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "kernels.reads", what, remedy)


def _check(graph: TaskGraph, placement: Placement) -> None:
    if (placement.swaps or placement.recomputes) and len(graph.compute_streams) > 1:
        raise ProgramError("blocks are moved on traces with one compute stream only; this one has several")
    if placement.recomputes and placement.layer_barrier:
        raise ProgramError("recomputation is only supported without a layer barrier")
    position: Sequence[int] = graph.layers.step_of if placement.layer_barrier else range(len(graph.kernels))
    for swap in placement.swaps:
        name = graph.blocks[swap.block].id
        _check_gap(graph, swap, f"swap of {name}")
        if swap.form is not None and (swap.form not in graph.encoded or graph.encoded[swap.form].block != swap.block):
            raise ProgramError(f"swap of {name}: block {swap.form} is no encoded form of it")
        late = position[swap.before] if placement.layer_barrier else position[swap.before] + 1
        if not position[swap.after] < position[swap.fetch_with] < late:
            raise ProgramError(f"swap of {name}: its copy back is issued outside the gap it fills")
        if placement.layer_barrier and _written_in_step(graph, swap):
            raise ProgramError(f"swap of {name}: it is still being written in the layer step it would leave with")
        if swap.out_with is not None:
            _check_early_copy(graph, swap, layer_barrier=placement.layer_barrier)
    for each in placement.recomputes:
        _check_gap(graph, each, f"recomputation of {graph.blocks[each.block].id}")
    _check_together(graph, placement)


def _check_together(graph: TaskGraph, placement: Placement) -> None:
    """One decision for each gap, and no copy to the host before the block has returned from an earlier gap."""
    decided: set[tuple[int, int]] = set()
    back: defaultdict[int, list[int]] = defaultdict(list)
    every: tuple[Swap | Recompute, ...] = (*placement.swaps, *placement.recomputes)
    for each in every:
        if (each.block, each.after) in decided:
            what = f"block {graph.blocks[each.block].id} is swapped or recomputed twice after kernel {each.after}"
            raise ProgramError(what)
        decided.add((each.block, each.after))
        back[each.block].append(each.before)
    for swap in placement.swaps:
        early = swap.out_with
        if early is not None and any(early <= kernel <= swap.after for kernel in back[swap.block]):
            what = "its copy out is issued before it has returned from an earlier gap"
            raise ProgramError(f"swap of {graph.blocks[swap.block].id}: {what}")


def _check_gap(graph: TaskGraph, each: Swap | Recompute, what: str) -> None:
    if each.after not in graph.uses[each.block] or graph.next_use(each.block, each.after) != each.before:
        raise ProgramError(f"{what}: kernels {each.after} and {each.before} are not consecutive uses of it")


def _check_early_copy(graph: TaskGraph, swap: Swap, *, layer_barrier: bool) -> None:
    assert swap.out_with is not None, "the caller checks"
    name = graph.blocks[swap.block].id
    if layer_barrier or swap.encoded_by_gpu:
        raise ProgramError(f"swap of {name}: only a plain copy without a layer barrier can be issued with a kernel")
    written = max((k for k in graph.uses[swap.block] if k <= swap.after and swap.block in graph.writes[k]), default=-1)
    written = max(written, graph.births[swap.block] or 0) if graph.blocks[swap.block].host_write else written
    if not written < swap.out_with <= swap.after:
        raise ProgramError(f"swap of {name}: its copy out is issued before it is complete, or after its last use")


def _written_in_step(graph: TaskGraph, swap: Swap) -> bool:
    """Whether a kernel or the host writes the block after the begin of its step."""
    step = graph.layers.steps[graph.layers.step_of[swap.after]]
    birth = graph.births[swap.block]
    born = birth is not None and birth >= step.first
    return born or any(swap.block in graph.writes[k] for k in range(step.first, swap.after + 1))


@dataclass
class _Lowering:
    graph: TaskGraph
    placement: Placement
    recorded_lifetimes: bool
    writer: SwapWriter = field(default_factory=SwapWriter)

    @property
    def code(self) -> dict[StreamId, CodeWriter]:
        return self.writer.code

    def program(self) -> Program:
        """All kernels in order, then the end."""
        graph = self.graph
        releases = graph.recorded_releases if self.recorded_lifetimes else graph.needed_releases
        births, deaths, survivors, reinitialized = lifetimes(graph, releases)
        order = order_streams(graph, deaths)
        placement = self.placement
        writer: Kernels
        if not placement.swaps and not placement.recomputes:
            writer = Kernels(graph, births, deaths, order, self.writer)
        elif placement.layer_barrier:
            writer = LayerSteps(graph, placement, births, deaths, order, self.writer)
        else:
            writer = Asynchronous(graph, placement, births, deaths, order, self.writer)
        segments = []
        for part in graph.rounds:
            self._begin([b for b in reinitialized if first_round(graph, b) == part], order)
            for k in range(part.first, part.stop):
                writer.kernel(k)
            self._end([b for b in survivors if last_round(graph, b) == part], order)
            segments.append(self._segment(part.repeat))
        notes = open_lifetimes(graph) if self.recorded_lifetimes else ()
        again = set(reinitialized)
        resident = tuple(b for b, birth in enumerate(graph.births) if birth == BEFORE and b not in again)
        return Program(tuple(segments), resident=resident, notes=notes)

    def _segment(self, repeat: int) -> Segment:
        """The instructions written since the last segment."""
        streams = sorted(self.code, key=lambda stream: stream.rank)
        return Segment({stream: self.code.pop(stream).code() for stream in streams}, repeat)

    def _begin(self, reinitialized: list[int], order: StreamOrder) -> None:
        if reinitialized:
            self.code[COMPUTE].acquire(reinitialized)
            self.code[COMPUTE].initialize(reinitialized)
        if order.others:
            start = self._event(order.events)
            self.code[COMPUTE].signal(start)
            for stream in order.others:
                self.code[stream].wait(start)

    def _end(self, survivors: list[int], order: StreamOrder) -> None:
        helpers = (*order.others, HOST_CORES) if HOST_CORES in self.code else order.others
        for stream in helpers:
            event = self._event(order.events)
            self.code[stream].signal(event)
            self.code[COMPUTE].wait(event)
        if survivors:
            self.code[COMPUTE].release(survivors)

    def _event(self, minimum: int = 0) -> int:
        self.writer.events = max(self.writer.events, minimum)
        return self.writer.event()

    # --- kernels --------------------------------------------------------------------------------------------


class _InSteps:
    """Swaps by a layer step of each, in their order: two lists, where a list for each step would take much memory."""

    def __init__(self, swaps: Sequence[Swap], steps: Sequence[int]) -> None:
        order = sorted(range(len(swaps)), key=steps.__getitem__)
        self.swaps, self.steps = [swaps[n] for n in order], [steps[n] for n in order]

    def step(self, step: int) -> Sequence[Swap]:
        """Those of a layer step."""
        begin = bisect_left(self.steps, step)
        return self.swaps[begin : bisect_right(self.steps, step, begin)]


class LayerSteps(Kernels):
    """Writes kernels in layer steps that end when their kernels and the copies issued with them have ended."""

    def __init__(
        self,
        graph: TaskGraph,
        placement: Placement,
        births: Sequence[Sequence[int]],
        deaths: Sequence[Sequence[int]],
        order: StreamOrder,
        writer: SwapWriter,
    ) -> None:
        super().__init__(graph, births, deaths, order, writer)
        self.steps, self.step_of = graph.layers.steps, graph.layers.step_of
        swaps = sorted(placement.swaps, key=lambda s: (s.before, s.after, s.block))
        self.copied_out_in = _InSteps(swaps, [self.step_of[swap.after] for swap in swaps])
        self.fetched_in = _InSteps(swaps, [self.step_of[swap.fetch_with] for swap in swaps])
        self.encoded_after: defaultdict[int, list[int]] = defaultdict(list)
        encoded = [swap for swap in swaps if swap.encoded_by_gpu]
        self.decoded_in = _InSteps(encoded, [self.step_of[swap.before] for swap in encoded])
        for swap in encoded:
            self.encoded_after[swap.after].append(swap.block)

    def _step(self, k: int) -> LayerStep:
        return self.steps[self.step_of[k]]

    def kernel(self, k: int) -> None:
        """Kernel k: copies begin with its step's first kernel, and the step ends with the last copy.

        Before the step's first kernel, the GPU decodes the blocks that the step needs and encodes those it offloads.
        """
        code, step = self.begin(k), self.steps[self.step_of[k]]
        if k == step.first:
            self._begin_step(self.step_of[k])
        self.launch(code, k, self.births[k])
        encoded = self.encoded_after.get(k)
        if released := [*self.deaths[k], *encoded] if encoded else self.deaths[k]:
            code.release(released)
        if k + 1 == step.stop:
            self._end_step(code, self.step_of[k])

    def _end_step(self, code: CodeWriter, step: int) -> None:
        """Wait for the copies of a layer step."""
        for swap in self.copied_out_in.step(step):
            code.wait(self.writer.ended_out(swap))
            if not swap.encoded_by_gpu:
                code.release((swap.block,))
        for swap in self.fetched_in.step(step):
            code.wait(self.writer.ended_in(swap))

    def _begin_step(self, step: int) -> None:
        """Issue the copies of a layer step, at once or after the GPU has encoded the blocks."""
        for swap in self.decoded_in.step(step):
            self.writer.decode(swap)
        outs, ins = self.copied_out_in.step(step), self.fetched_in.step(step)
        if not outs and not ins:
            return
        code = self.writer.code[COMPUTE]
        begun = self.writer.event()
        code.signal(begun)
        for swap in outs:
            if not swap.encoded_by_gpu:
                self.writer.copy_d2h(swap, begun, release=False)
        for swap in ins:
            self.writer.copy_h2d(swap, (begun,))
        for swap in outs:
            if swap.encoded_by_gpu:
                self.writer.encode(swap)
                encoded = self.writer.event()
                code.signal(encoded)
                self.writer.copy_d2h(swap, encoded, release=True)


_KERNELS = {Swap: ("after", "before", "fetch_with"), Recompute: ("after", "before")}


def check_placement(graph: TaskGraph, placement: Placement) -> None:
    """Raises `ProgramError` with every field of another type (a NumPy integer for an int, a name for a number), and
    every kernel and block that the graph does not have.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> check_placement(graph, Placement((Swap("x1", after=0, before=4, fetch_with=1),)))
    Traceback (most recent call last):
    simgpu.errors.ProgramError: the placement has 2 mistakes:
    swaps[0]: block 'x1' is a str, not an int: graph.block('x1') gives the number of a block
    swaps[0]: before 4 is out of range: the graph has 2 kernels, from 0
    """
    if type(placement) is not Placement:
        raise ProgramError(f"{shown(placement)} is {a_type(placement)}, not a Placement")
    if faults := list(_faults(graph, placement)):
        raise ProgramError(several("placement", faults))


def _faults(graph: TaskGraph, placement: Placement) -> Iterator[str]:
    kinds: tuple[tuple[str, type[Swap] | type[Recompute], Any], ...] = (
        ("swaps", Swap, placement.swaps),
        ("recomputes", Recompute, placement.recomputes),
    )
    for name, kind, every in kinds:
        if type(every) is not tuple:
            yield f"{name} is {a_type(every)}, not a tuple"
            continue
        for index, each in enumerate(every):
            if type(each) is not kind:
                yield f"{name}[{index}] is {a_type(each)}, not a {kind.__name__}"
            else:
                yield from (f"{name}[{index}]: {fault}" for fault in _faults_of(graph, each) if fault)
    if fault := bool_fault("layer_barrier", placement.layer_barrier):
        yield fault


def _faults_of(graph: TaskGraph, each: Swap | Recompute) -> Iterator[str]:
    kernels, blocks = len(graph.kernels), len(graph.blocks)
    yield number_fault("block", each.block, blocks, "blocks")
    for name in _KERNELS[type(each)]:
        yield number_fault(name, getattr(each, name), kernels, "kernels")
    if isinstance(each, Swap):
        yield "" if each.out_with is None else number_fault("out_with", each.out_with, kernels, "kernels")
        yield "" if each.form is None else number_fault("form", each.form, blocks, "blocks")
        yield bool_fault("on_host", each.on_host)
        yield bool_fault("drain", each.drain)
