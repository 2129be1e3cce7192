"""From a placement to a program: one lowering for every policy that decides by placement.

Lives here: where copies, acquires, releases and events go, with the layer barrier of vDNN or with true dependencies
only. Does not live here: deciding (policies), the instructions of a single swap (`simgpu.program.travel`), and the
order between several compute streams (`simgpu.program.streams`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simgpu.errors import InputError, ProgramError
from simgpu.graph.taskgraph import BEFORE, Round, TaskGraph
from simgpu.program.instructions import (
    COMPUTE,
    HOST,
    Acquire,
    Await,
    Instruction,
    Launch,
    Program,
    Provide,
    Release,
    Segment,
    Signal,
)
from simgpu.program.placement import Placement, Swap
from simgpu.program.streams import StreamOrder, compute_stream, order_streams
from simgpu.program.travel import Travel
from simgpu.timeline.streams import StreamId


def lower(graph: TaskGraph, placement: Placement, *, recorded_lifetimes: bool = False) -> Program:
    """The program that carries out a placement.

    A block takes memory just before the kernel that first writes it and gives it back after its last use, or, with
    `recorded_lifetimes`, where the recorded framework let go of it (a note says where that was not recorded).
    Persistent blocks that are let go in mid-iteration are provided anew at the start of the round that uses them; what
    else survives is released at its end. Each round of the graph becomes a segment.

    Raises `ProgramError` for a swap outside its gap, and for swaps on a trace with several compute streams;
    `InputError` where last uses are asked for and the recording does not tell what kernels read.

    >>> from simgpu.program.text import listing
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> program = lower(graph, Placement((Swap(graph.block("x2"), after=1, before=4, fetch_with=3),)))
    >>> "copy out x2" in listing(program, graph)
    True
    """
    if not recorded_lifetimes:
        require_reads(graph)
    _check_swaps(graph, placement)
    return _Lowering(graph, placement, recorded_lifetimes).program()


def require_reads(graph: TaskGraph) -> None:
    """Raises `InputError` where the recording does not tell what kernels read."""
    if not graph.trace.tells_reads:
        what = "the recording does not tell what kernels read, so nobody can plan by the uses of a block"
        remedy = "run the policies none or ideal, or import it with its execution trace"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "kernels.reads", what, remedy)


def _check_swaps(graph: TaskGraph, placement: Placement) -> None:
    if placement.swaps and len(graph.compute_streams) > 1:
        raise ProgramError("blocks are swapped on traces with one compute stream only; this one has several")
    position: Sequence[int] = graph.layers.step_of if placement.layer_barrier else range(len(graph.kernels))
    for swap in placement.swaps:
        name = graph.blocks[swap.block].id
        if swap.form is not None and (swap.form not in graph.encoded or graph.encoded[swap.form].block != swap.block):
            raise ProgramError(f"swap of {name}: block {swap.form} is no encoded form of it")
        if swap.after not in graph.uses[swap.block] or graph.next_use(swap.block, swap.after) != swap.before:
            raise ProgramError(f"swap of {name}: kernels {swap.after} and {swap.before} are no neighbouring uses of it")
        late = position[swap.before] if placement.layer_barrier else position[swap.before] + 1
        if not position[swap.after] < position[swap.fetch_with] < late:
            raise ProgramError(f"swap of {name}: its copy back is issued outside the gap it fills")
        if placement.layer_barrier and _written_in_step(graph, swap):
            raise ProgramError(f"swap of {name}: it is still being written in the layer step it would leave with")


def _written_in_step(graph: TaskGraph, swap: Swap) -> bool:
    """Whether the block gets a value, from a kernel or the host, after its step has begun."""
    step = graph.layers.steps[graph.layers.step_of[swap.after]]
    birth = graph.births[swap.block]
    born = birth is not None and birth >= step.first
    return born or any(swap.block in graph.writes[k] for k in range(step.first, swap.after + 1))


def _open_lifetimes(graph: TaskGraph) -> tuple[str, ...]:
    unknown, blocks = graph.open_lifetimes
    if not unknown:
        return ()
    what = f"{unknown} of {blocks} lifetimes are not in the recording: these blocks are held to their last use"
    return (f"{what}, a real framework may hold them longer",)


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
        births, deaths, survivors, reborn = self._lifetimes()
        order = order_streams(graph, deaths)
        leaving: defaultdict[int, list[Swap]] = defaultdict(list)
        fetched: defaultdict[int, list[Swap]] = defaultdict(list)
        awaited: defaultdict[int, list[Swap]] = defaultdict(list)
        for swap in sorted(self.placement.swaps, key=lambda s: (s.before, s.after, s.block)):
            place = self._step_start if self.placement.layer_barrier else int
            leaving[place(swap.after)].append(swap)
            fetched[place(swap.fetch_with)].append(swap)
            awaited[place(swap.before)].append(swap)
        segments = []
        for part in graph.rounds:
            self._begin([b for b in reborn if self._round_of(b) == part], order)
            self._run(part, births, deaths, order, leaving, fetched, awaited)
            self._end([b for b in survivors if self._round_of(b) == part], order)
            segments.append(self._segment(part.repeat))
        notes = _open_lifetimes(graph) if self.recorded_lifetimes else ()
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

    def _run(
        self,
        part: Round,
        births: list[list[int]],
        deaths: list[list[int]],
        order: StreamOrder,
        leaving: Mapping[int, list[Swap]],
        fetched: Mapping[int, list[Swap]],
        awaited: Mapping[int, list[Swap]],
    ) -> None:
        """The kernels of a round."""
        for k in range(part.first, part.stop):
            stream = compute_stream(self.graph.streams[k])
            for event in order.before[k]:
                self.code[stream].append(Await(event))
            if self.placement.layer_barrier:
                self._launch_with_barrier(k, births[k], deaths[k], leaving, fetched, awaited[k])
            else:
                self._launch(k, births[k], deaths[k], leaving[k], fetched[k], awaited[k], order)

    # --- lifetimes ------------------------------------------------------------------------------------------

    def _lifetimes(self) -> tuple[list[list[int]], list[list[int]], list[int], list[int]]:
        """Blocks born at and dying after each kernel; blocks that survive; persistent blocks that do not."""
        graph = self.graph
        births: list[list[int]] = [[] for _ in graph.kernels]
        deaths: list[list[int]] = [[] for _ in graph.kernels]
        survivors, reborn = [], []
        for k, writes in enumerate(graph.writes):
            births[k] = [b for b in writes if graph.births[b] == k]
        releases = graph.recorded_releases if self.recorded_lifetimes else graph.needed_releases
        for b, birth in enumerate(graph.births):
            if birth is None:
                continue
            if birth >= 0 and b not in births[birth]:
                births[birth].append(b)
            release = releases[b]
            if birth == BEFORE and release is not None:
                reborn.append(b)
            if release is None:
                if birth != BEFORE:
                    survivors.append(b)
            else:
                deaths[max(release, 0)].append(b)
        return births, deaths, survivors, reborn

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

    def _kernel(self, k: int, births: list[int]) -> list[Instruction]:
        code: list[Instruction] = []
        if births:
            code.append(Acquire(tuple(births)))
            given = tuple(b for b in births if self.graph.blocks[b].born is not None)
            if given:
                code.append(Provide(given))
        code.append(Launch(k))
        return code

    def _launch(
        self,
        k: int,
        births: list[int],
        deaths: list[int],
        leaving: list[Swap],
        fetched: list[Swap],
        awaited: list[Swap],
        order: StreamOrder,
    ) -> None:
        """Kernel k with true dependencies only."""
        code = self.code[compute_stream(self.graph.streams[k])]
        if fetched:
            reached = self._event()
            code.append(Signal(reached))
            for swap in fetched:
                self.travel.into(swap, (reached, self.travel.away[swap]))
        self._have_back(awaited)
        code += self._kernel(k, births)
        shared, events = order.shared[k]
        own = tuple(b for b in deaths if b not in shared)
        if own:
            code.append(Release(own))
        if k in order.signals:
            code.append(Signal(order.signals[k]))
        if shared:
            self.code[HOST] += [*(Await(event) for event in events), Release(shared)]
        for swap in leaving:
            self.travel.encode(swap)
            if swap.encoded_by_gpu:
                code.append(Release((swap.block,)))
        if leaving:
            ended = self._event(order.events)
            code.append(Signal(ended))
            for swap in leaving:
                self.travel.out(swap, ended, release=True)

    def _have_back(self, awaited: list[Swap]) -> None:
        """Before a kernel that needs blocks that were away."""
        for swap in awaited:
            self.code[COMPUTE].append(Await(self.travel.back[swap]))
            self.travel.decode(swap)

    def _step_start(self, k: int) -> int:
        layers = self.graph.layers
        return layers.steps[layers.step_of[k]].first

    def _launch_with_barrier(
        self,
        k: int,
        births: list[int],
        deaths: list[int],
        leaving: Mapping[int, list[Swap]],
        fetched: Mapping[int, list[Swap]],
        awaited: list[Swap],
    ) -> None:
        """Kernel k of a layer step: copies begin with the step's first kernel, the step ends with the last copy.

        Before the step's first kernel the GPU decodes what the step needs, and encodes what is to leave with it.
        """
        code = self.code[COMPUTE]
        first = self._step_start(k)
        outs, ins = leaving.get(first, []), fetched.get(first, [])
        for swap in awaited:
            self.travel.decode(swap)
        if k == first and (outs or ins):
            self._begin_step(outs, ins)
        code += self._kernel(k, births)
        encoded = [swap.block for swap in outs if swap.encoded_by_gpu and swap.after == k]
        if gone := (*deaths, *encoded):
            code.append(Release(gone))
        layers = self.graph.layers
        if k + 1 == layers.steps[layers.step_of[k]].stop:
            for swap in outs:
                code.append(Await(self.travel.copied_out[swap]))
                if not swap.encoded_by_gpu:
                    code.append(Release((swap.block,)))
            code += [Await(self.travel.back[swap]) for swap in ins]

    def _begin_step(self, outs: list[Swap], ins: list[Swap]) -> None:
        """Issue the copies of a layer step: at once, or once the GPU has encoded what is to be copied."""
        code = self.code[COMPUTE]
        begun = self._event()
        code.append(Signal(begun))
        for swap in outs:
            if not swap.encoded_by_gpu:
                self.travel.out(swap, begun, release=False)
        for swap in ins:
            self.travel.into(swap, (begun,))
        for swap in outs:
            if swap.encoded_by_gpu:
                self.travel.encode(swap)
                encoded = self._event()
                code.append(Signal(encoded))
                self.travel.out(swap, encoded, release=True)
