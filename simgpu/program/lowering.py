"""From a placement to a program: one lowering for every policy that decides by placement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from simgpu.errors import InputError, ProgramError
from simgpu.graph.taskgraph import BEFORE, Round, TaskGraph
from simgpu.program.asynchronous import Asynchronous
from simgpu.program.instructions import (
    COMPUTE,
    HOST,
    Acquire,
    Await,
    Instruction,
    Program,
    Provide,
    Release,
    Segment,
    Signal,
)
from simgpu.program.layer_steps import LayerSteps
from simgpu.program.lifetimes import lifetimes, open_lifetimes
from simgpu.program.placement import Placement, Recompute, Swap
from simgpu.program.placement_check import check_placement
from simgpu.program.streams import StreamOrder, order_streams
from simgpu.program.travel import Travel
from simgpu.timeline.streams import StreamId


def lower(graph: TaskGraph, placement: Placement, *, recorded_lifetimes: bool = False) -> Program:
    """The program that carries out a placement.

    A block takes memory just before the kernel that first writes it and gives it back after its last use, or, with
    `recorded_lifetimes`, where the recorded framework let go of it (a note says where that was not recorded).
    Persistent blocks that are let go in mid-iteration are provided anew at the start of the round that uses them; what
    else survives is released at its end. Each round of the graph becomes a segment.

    Raises `ProgramError` for a placement with fields that are not plain numbers of the graph's kernels and blocks, for
    a swap outside its gap, for a block that cannot be made again, and for either on a trace with several compute
    streams; `InputError` where last uses are asked for and the recording does not tell what kernels read.

    >>> from simgpu.program.text import listing
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> program = lower(graph, Placement((Swap(graph.block("x2"), after=1, before=4, fetch_with=3),)))
    >>> "copy out x2" in listing(program, graph)
    True
    """
    if not recorded_lifetimes:
        require_reads(graph)
    check_placement(graph, placement)
    _check(graph, placement)
    return _Lowering(graph, placement, recorded_lifetimes).program()


def require_reads(graph: TaskGraph) -> None:
    """Raises `InputError` where the recording does not tell what kernels read."""
    if not graph.trace.records_reads:
        what = "the recording does not tell what kernels read, so nobody can plan by the uses of a block"
        remedy = "run the policies none or ideal, or import it with its execution trace"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "kernels.reads", what, remedy)


def _check(graph: TaskGraph, placement: Placement) -> None:
    if (placement.swaps or placement.recomputes) and len(graph.compute_streams) > 1:
        raise ProgramError("blocks are moved on traces with one compute stream only; this one has several")
    if placement.recomputes and placement.layer_barrier:
        raise ProgramError("blocks are made again without a layer barrier only")
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
    """One decision for each gap, and no copy out of what is not back yet from an earlier gap."""
    decided: set[tuple[int, int]] = set()
    back: defaultdict[int, list[int]] = defaultdict(list)
    every: tuple[Swap | Recompute, ...] = (*placement.swaps, *placement.recomputes)
    for each in every:
        if (each.block, each.after) in decided:
            what = f"block {graph.blocks[each.block].id} is swapped or made again twice after kernel {each.after}"
            raise ProgramError(what)
        decided.add((each.block, each.after))
        back[each.block].append(each.before)
    for swap in placement.swaps:
        early = swap.out_with
        if early is not None and any(early <= kernel <= swap.after for kernel in back[swap.block]):
            what = "its copy out is issued before it is back from an earlier gap"
            raise ProgramError(f"swap of {graph.blocks[swap.block].id}: {what}")


def _check_gap(graph: TaskGraph, each: Swap | Recompute, what: str) -> None:
    if each.after not in graph.uses[each.block] or graph.next_use(each.block, each.after) != each.before:
        raise ProgramError(f"{what}: kernels {each.after} and {each.before} are no neighbouring uses of it")


def _check_early_copy(graph: TaskGraph, swap: Swap, *, layer_barrier: bool) -> None:
    assert swap.out_with is not None, "the caller asks"
    name = graph.blocks[swap.block].id
    if layer_barrier or swap.encoded_by_gpu:
        raise ProgramError(f"swap of {name}: only a plain copy without a layer barrier can be issued with a kernel")
    written = max((k for k in graph.uses[swap.block] if k <= swap.after and swap.block in graph.writes[k]), default=-1)
    written = max(written, graph.births[swap.block] or 0) if graph.blocks[swap.block].born else written
    if not written < swap.out_with <= swap.after:
        raise ProgramError(f"swap of {name}: its copy out is issued before it is complete, or after its last use")


def _written_in_step(graph: TaskGraph, swap: Swap) -> bool:
    """Whether the block gets a value, from a kernel or the host, after its step has begun."""
    step = graph.layers.steps[graph.layers.step_of[swap.after]]
    birth = graph.births[swap.block]
    born = birth is not None and birth >= step.first
    return born or any(swap.block in graph.writes[k] for k in range(step.first, swap.after + 1))


@dataclass
class _Lowering:
    graph: TaskGraph
    placement: Placement
    recorded_lifetimes: bool
    travel: Travel = field(default_factory=Travel)

    @property
    def code(self) -> dict[StreamId, list[Instruction]]:
        return self.travel.code

    def program(self) -> Program:
        """All kernels in order, then the end."""
        graph = self.graph
        releases = graph.recorded_releases if self.recorded_lifetimes else graph.needed_releases
        births, deaths, survivors, reborn = lifetimes(graph, releases)
        order = order_streams(graph, deaths)
        writer: LayerSteps | Asynchronous
        if self.placement.layer_barrier:
            writer = LayerSteps(graph, self.placement, births, deaths, order, self.travel)
        else:
            writer = Asynchronous(graph, self.placement, births, deaths, order, self.travel)
        segments = []
        for part in graph.rounds:
            self._begin([b for b in reborn if self._round_of(b) == part], order)
            for k in range(part.first, part.stop):
                writer.kernel(k)
            self._end([b for b in survivors if self._round_of(b) == part], order)
            segments.append(self._segment(part.repeat))
        notes = open_lifetimes(graph) if self.recorded_lifetimes else ()
        resident = tuple(b for b, birth in enumerate(graph.births) if birth == BEFORE and b not in set(reborn))
        return Program(tuple(segments), resident=resident, notes=notes)

    def _round_of(self, b: int) -> Round:
        """The round in which a block is first used, the first one for a block that is not."""
        k = self.graph.uses[b][0] if self.graph.uses[b] else 0
        return next(part for part in self.graph.rounds if k < part.stop or part is self.graph.rounds[-1])

    def _segment(self, repeat: int) -> Segment:
        """What has been written since the last segment."""
        streams = {stream: tuple(self.code[stream]) for stream in sorted(self.code, key=lambda stream: stream.rank)}
        self.code.clear()
        return Segment(streams, repeat)

    def _begin(self, reborn: list[int], order: StreamOrder) -> None:
        if reborn:
            self.code[COMPUTE] += [Acquire(tuple(reborn)), Provide(tuple(reborn))]
        if order.others:
            start = self._event(order.events)
            self.code[COMPUTE].append(Signal(start))
            for stream in order.others:
                self.code[stream].append(Await(start))

    def _end(self, survivors: list[int], order: StreamOrder) -> None:
        helpers = (*order.others, HOST) if HOST in self.code else order.others
        for stream in helpers:
            event = self._event(order.events)
            self.code[stream].append(Signal(event))
            self.code[COMPUTE].append(Await(event))
        if survivors:
            self.code[COMPUTE].append(Release(tuple(survivors)))

    def _event(self, at_least: int = 0) -> int:
        self.travel.events = max(self.travel.events, at_least)
        return self.travel.event()

    # --- kernels --------------------------------------------------------------------------------------------
