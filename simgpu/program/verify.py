"""Verify a program: it is legal by happens-before alone, whatever the timing.

The program is walked once in an order its events allow, for two iterations where it has several streams, so that stale
values and unfinished accesses of one iteration are seen by the next. Every access is stamped with its stream
and that stream's clock, which ticks at each signal; an access is ordered after another if its stream has received the
other's tick through events. Since every pair of conflicting accesses is checked to be ordered, the one order walked
stands for all.

The value of a block is the number of its writes since the beginning, with every repetition of every segment counted;
what a kernel must read follows from the trace's versions in the same count. A block with copies in several memories,
such as a weight on several GPUs, has a value in each.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import cached_property
from operator import add

from simgpu.compiling import is_ready
from simgpu.errors import ProgramError
from simgpu.graph.recompute import Ancestry
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.program.budget import check_budget
from simgpu.program.check import CheckedProgram, check_program
from simgpu.program.contents import Contents, OnDemand
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    InitialContents,
    Initialize,
    Instruction,
    Launch,
    Location,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.paging import Paged, Remote
from simgpu.program.text import Place, deadlock, excerpt, located

#: The compiled walk is faster from about so many instructions on. A process that has loaded the compiled machine runs
#: enough that it is worth to compile the walk too.
_LONG = 500
_MACHINE = "simgpu.machine.compiled"


def verify(
    program: Program,
    graph: TaskGraph,
    *,
    capacity: int | None = None,
    alignment: int = 1,
    node: NodeSpec | None = None,
    checked: CheckedProgram | None = None,
) -> None:
    """Check a program against the graph it was written for.

    Raises `ProgramError` naming stream, instruction and block or kernel, with the lines around it, or the streams of a
    deadlock; raises `OutOfMemoryError` if the blocks of a single kernel are larger than `capacity` (bytes).

    Rules:

    * The program contains only known instructions with plain fields (`simgpu.program.check`).
    * Every kernel runs once per repetition of its segment, plus declared recomputations after it. A recomputed kernel
      is deterministic (`simgpu.graph.recompute`), reads the same versions as in its first run, and has memory for all
      blocks that it writes.
    * A segment has consecutive kernels that follow those of the segment before, or repeat them and may continue.
    * A kernel's inputs are resident in the version that the trace read, in the memory of the GPU (or host) that runs
      it.
    * Copies follow the writes that they copy.
    * No block is used after its release, released while in use, released twice, or acquired twice.
    * An iteration, and a segment that repeats, restores the initial contents of memories.
    * Every awaited event is signalled, at one place.

    Blocks on demand are available when a kernel accesses them, in the version written last, until they are released.
    Their copies are hints to migrate pages, which may come at any time between two releases. For kernels that access
    host memory, the rules hold for host memory instead of device memory. In neither case does a kernel's working set
    have to fit.

    graph: the one the program was planned for; the program's own transforms are applied to it here. node: the one it is
    to run on, whose memories and links it may use; without one, it may use any. checked: what `check_program` returned
    for these three, where that is known.

    >>> from simgpu.program.instructions import COMPUTE, Segment
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> verify(Program((Segment({COMPUTE: (Launch(0), Launch(1))}),), resident=(graph.block("x1"),)), graph)
    Traceback (most recent call last):
    simgpu.errors.ProgramError: compute[0], launch F1 (conv2d): block x2 holds no device memory
      --> launch F1
          launch B1
    """
    checked = checked or check_program(program, graph, node)
    if capacity is not None:
        check_budget(checked, capacity, alignment)
    writes = writes_of(checked)
    if len(program) >= _LONG and (is_ready("simgpu.program.compiled_walk", "walk") or _MACHINE in sys.modules):
        from simgpu.program.fast_walk import keeps_rules

        if keeps_rules(checked, writes):
            return
    ProgramWalk(program, checked, writes).run()


#: For each segment the number of writes to each block before it and in it, in the trace's order of kernels.
Writes = list[tuple[list[int], list[int]]]


def writes_of(checked: CheckedProgram) -> Writes:
    """The writes of each segment. Raises `ProgramError` for segments that lack kernels or are out of order."""
    graph = checked.graph
    writes: Writes = []
    reached = (0, 0)
    for kernels in checked.launched:
        first, stop = (min(kernels), max(kernels) + 1) if kernels else (reached[1],) * 2
        if kernels:
            if len(kernels) < stop - first:
                missing = next(k for k in range(first, stop) if k not in kernels)
                raise ProgramError(f"kernel {graph.kernels[missing].id} is never launched")
            again = first == reached[0] and stop >= reached[1]
            if first != reached[1] and not again:
                raise ProgramError(f"a segment begins with kernel {graph.kernels[first].id}, out of order")
            reached = (first, stop)
        if (first, stop) == (0, len(graph.kernels)):
            writes.append(([0] * len(graph.sizes), list(graph.last_version)))
            continue
        earlier, own = [0] * len(graph.sizes), [0] * len(graph.sizes)
        for k in range(stop):
            for b in graph.writes[k]:
                (own if k >= first else earlier)[b] += 1
        writes.append((earlier, own))
    return writes


class ProgramWalk:
    """Executes the instructions of one program symbolically, as an `Effects`; `me` is the stream that it walks."""

    def __init__(self, program: Program, checked: CheckedProgram, writes: Writes) -> None:
        self.program = program
        self.graph = graph = checked.graph
        self.streams = program.streams
        self.count = len(self.streams)
        contents = OnDemand if isinstance(program.residency, Paged) else Contents
        devices = [contents(_named(gpu), graph, self.streams) for gpu in range(program.gpus)]
        shared = {name: Contents(name, graph, self.streams) for name in checked.memories if name != DEVICE}
        self.memories = (*devices, *shared.values())
        #: Per GPU: the contents by name of memory.
        self.on = [{DEVICE: device, **shared} for device in devices]
        remote = isinstance(program.residency, Remote)
        #: Per stream: the memory that its kernels use.
        self.used = [self.on[s.gpu][HOST if remote or s.role == "host" else DEVICE] for s in self.streams]
        # The stream that is walked, its segment, how often that has repeated, and whether the stream may go on.
        self.me = self.segment = self.number = 0
        self.received = True
        self.clock = [[0 if other == me else -1 for other in range(self.count)] for me in range(self.count)]
        #: By event: the clock of the signalling stream at each signal.
        self.clocks: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        self.signalled = checked.signalled
        # Per block: writes before this repetition, and those of them that the trace has before this segment.
        self.written = [0] * len(graph.sizes)
        self.earlier = [0] * len(graph.sizes)
        self.writes = writes
        self.launched = bytearray(len(graph.kernels))
        self.ever_launched = bytearray(len(graph.kernels))

    def run(self) -> None:
        """Walk the program."""
        holdings = [(self._memory(holding), holding.blocks) for holding in self.program.initial_contents]
        for memory, blocks in holdings:
            memory.initialize_resident(blocks)
        # On one stream, an iteration that ends with the contents it began with repeats without any change.
        for iteration in range(1 if self.count == 1 else 2):
            start = [memory.resident[:] for memory in self.memories]
            for index, segment in enumerate(self.program.segments):
                for repetition in range(min(segment.repeat, 2)):
                    self._repetition(index, segment, iteration * min(segment.repeat, 2) + repetition)
            missing = self.ever_launched.find(0)
            if missing >= 0:
                raise ProgramError(f"kernel {self.graph.kernels[missing].id} is never launched")
            self._check_residency("the iteration", start)
            for memory, blocks in holdings:
                for b in blocks:
                    value = memory.value[b]
                    if value != self.written[b]:
                        state = "no value" if value < 0 else "an older value than its last"
                        raise ProgramError(f"block {self._name(b)} holds {state} when the iteration ends")

    def _memory(self, holding: InitialContents) -> Contents:
        return self.on[holding.gpu][holding.memory]

    # --- one repetition of a segment ------------------------------------------------------------------------

    def _repetition(self, index: int, segment: Segment, number: int) -> None:
        before = [memory.resident[:] for memory in self.memories]
        self.earlier, writes = self.writes[index]
        self.launched = bytearray(len(self.graph.kernels))
        positions = [0] * self.count
        codes = [tuple(segment.streams.get(stream, ())) for stream in self.streams]
        moving = True
        while moving:
            moving = False
            for me, code in enumerate(codes):
                reached = self._advance(me, code, positions[me], index, number)
                moving = moving or reached > positions[me]
                positions[me] = reached
        for me, code in enumerate(codes):
            if positions[me] < len(code):
                stuck = {s: at for s, at, c in zip(self.streams, positions, codes, strict=True) if at < len(c)}
                raise ProgramError(deadlock(self.program, self.graph, index, stuck))
        self.written = list(map(add, self.written, writes))
        if segment.repeat > 1:
            self._check_residency(f"segment {index}", before)

    def _check_residency(self, what: str, before: list[list[bool]]) -> None:
        for resident, memory in zip(before, self.memories, strict=True):
            if resident != memory.resident:
                b = next(b for b, there in enumerate(resident) if there != memory.resident[b])
                verb = "leaves" if memory.resident[b] else "loses"
                raise ProgramError(f"{what} {verb} block {self._name(b)} in {memory.name} memory at its end")

    def _advance(self, me: int, code: tuple[Instruction, ...], position: int, index: int, number: int) -> int:
        """Walk a stream until it has to wait; returns where."""
        self.me, self.segment, self.number = me, index, number
        stop = len(code)
        while position < stop:
            try:
                code[position].apply(self)
            except ProgramError as error:
                place = Place(index, self.streams[me], position)
                message = located(self.program, self.graph, place, str(error))
                raise ProgramError("\n".join((message, *excerpt(self.program, self.graph, place)))) from None
            if not self.received:
                self.received = True
                return position
            position += 1
        return position

    # --- instructions ---------------------------------------------------------------------------------------

    def signals(self, signal: Signal) -> None:
        """The clock of the stream at this signal; it ticks."""
        clock = self.clock[self.me]
        self.clocks[signal.event].append(tuple(clock))
        clock[self.me] += 1

    def awaits(self, wait: Await) -> None:
        """The stream's clock after the signal; not `received` if there is none yet."""
        self.received = self._receive(wait, self.clock[self.me])

    def _receive(self, wait: Await, clock: list[int]) -> bool:
        index, number = self.segment, self.number
        signalled_in = self.signalled[wait.event]
        if signalled_in == index:
            target = number + 1 - wait.lag
        else:
            # Of a segment that repeats more often, the first and the last repetition are walked; the first one stands
            # for those between them, whose clocks are at least as far.
            repeat = self.program.segments[signalled_in].repeat
            walked, own = min(repeat, 2), min(self.program.segments[index].repeat, 2)
            iterations, from_last = divmod(wait.lag, repeat)
            target = (number // own + 1 - iterations) * walked - min(from_last, walked - 1)
        if target <= 0:
            return True
        heard = self.clocks[wait.event]
        if len(heard) < target:
            return False
        for stream, tick in enumerate(heard[target - 1]):
            if tick > clock[stream]:
                clock[stream] = tick
        return True

    def _name(self, b: int) -> str:
        return self.graph.blocks[b].id

    def _reached(self, memory: str) -> Contents:
        """The memory of that name that the stream reaches."""
        return self.on[self.streams[self.me].gpu][memory]

    def acquires(self, acquire: Acquire) -> None:
        """The blocks must have no memory."""
        self._reached(acquire.memory).acquire(acquire.blocks, self.me, self.clock[self.me])

    def releases(self, release: Release) -> None:
        """The blocks must be unused."""
        self._reached(release.memory).release(release.blocks, self.me, self.clock[self.me])

    def initializes(self, initialize: Initialize) -> None:
        """The blocks get their initial values."""
        memory, me, clock = self._reached(initialize.memory), self.me, self.clock[self.me]
        for b in initialize.blocks:
            block = self.graph.blocks[b]
            if not block.persistent and block.host_write is None:
                raise ProgramError(f"block {block.id} is made by a kernel, the host cannot provide it")
            memory.check_allocated(b, me, clock)
            memory.check_unused(b, me, clock, "provided")
            # An initial value is one more write, which the trace counts as version 0.
            self.written[b] += 1
            memory.set(b, self.written[b] - self.earlier[b], me, clock)

    def moves(self, work: Copy | Encode | Decode, source: Location, target: Location) -> None:
        """The source must hold its value, and nobody may be using the target; both have the same value then. Blocks on
        demand have their values wherever they are."""
        me, clock = self.me, self.clock[self.me]
        device = self._reached(DEVICE)
        if isinstance(device, OnDemand):
            device.migrate(source.block, me, clock)
            return
        there, here = self._reached(source.memory), self._reached(target.memory)
        value = there.read(source.block, me, clock)
        here.check_allocated(target.block, me, clock)
        what = "overwritten" if target.memory == DEVICE or there is here else f"overwritten in {here.name} memory"
        here.check_unused(target.block, me, clock, what)
        there.touched[me][source.block] = clock[me]
        here.set(target.block, value, me, clock)

    def runs(self, launch: Launch) -> None:
        """A kernel's inputs must hold the versions of the trace, and its outputs must have memory."""
        me, clock, k = self.me, self.clock[self.me], launch.kernel
        graph, memory = self.graph, self.used[me]
        self._count_launch(launch)
        if launch.recompute:
            self._relaunch(launch, me, clock)
            return
        written, earlier, now = self.written, self.earlier, clock[me]
        values, ready_by, ready_at, touched = memory.value, memory.ready_by, memory.ready_at, memory.touched[me]
        for b, version in zip(graph.reads[k], graph.read_versions[k], strict=True):
            by = ready_by[b]
            if by != me and by >= 0 and ready_at[b] > clock[by]:
                memory.read(b, me, clock)
            if values[b] != written[b] + version - earlier[b] and not self._stands_for(b, version, values[b]):
                memory.read(b, me, clock)
                raise ProgramError(f"kernel {graph.kernels[k].id} finds a wrong version of block {self._name(b)}")
            touched[b] = now
        for b, version in zip(graph.writes[k], graph.write_versions[k], strict=True):
            memory.check_allocated(b, me, clock)
            if self.count > 1:
                memory.check_unused(b, me, clock, "overwritten")
            values[b] = written[b] + version - earlier[b]
            ready_by[b], ready_at[b], touched[b] = me, now, now

    def _stands_for(self, form: int, version: int, value: int) -> bool:
        """Whether a form of a block holds the value that the block has in a version."""
        if form not in self.graph.encoded:
            return False
        of = self.graph.encoded[form].block
        return value == self.written[of] + version - self.earlier[of]

    def _relaunch(self, instruction: Launch, me: int, clock: list[int]) -> None:
        """Run a kernel again: it must read the versions of its first run, and have memory for all its writes."""
        k = instruction.kernel
        graph, memory = self.graph, self.used[me]
        inputs, outputs = self.ancestry.inputs[k], self.ancestry.outputs[k]
        first = dict(zip(graph.writes[k], graph.write_versions[k], strict=True))
        versions = first | dict(zip(graph.reads[k], graph.read_versions[k], strict=True))
        for b in inputs:
            if memory.read(b, me, clock) != self.written[b] + versions[b] - self.earlier[b]:
                raise ProgramError(f"kernel {graph.kernels[k].id} finds a wrong version of block {self._name(b)}")
            memory.touched[me][b] = clock[me]
        makes = instruction.makes or outputs
        if changed := [b for b in outputs if b in graph.reads[k] and b not in makes]:
            what = f"changes block {self._name(changed[0])} in place when it runs again, and is to make others only"
            raise ProgramError(f"kernel {graph.kernels[k].id} {what}")
        for b in makes:
            if b not in outputs:
                raise ProgramError(
                    f"kernel {graph.kernels[k].id} does not make block {self._name(b)} when it runs again"
                )
            memory.check_allocated(b, me, clock)
            memory.check_unused(b, me, clock, "overwritten")
            memory.set(b, self.written[b] + first[b] - self.earlier[b], me, clock)
        for b in outputs:
            if b not in makes:  # a workspace, another result: its values are of no use, but its bytes are written
                memory.check_allocated(b, me, clock)
                memory.touched[me][b] = clock[me]

    @cached_property
    def ancestry(self) -> Ancestry:
        """The blocks that can be recomputed, and their sources."""
        return Ancestry.of(self.graph)

    def _count_launch(self, instruction: Launch) -> None:
        kernel = self.graph.kernels[instruction.kernel]
        ran = self.launched[instruction.kernel]
        if instruction.recompute:
            if not ran:
                raise ProgramError(f"kernel {kernel.id} is recomputed before it ran")
            if not self.ancestry.repeatable(instruction.kernel):
                raise ProgramError(f"kernel {kernel.id} ({kernel.op}) is not known to be pure, it cannot be recomputed")
        elif ran:
            raise ProgramError(f"kernel {kernel.id} is launched a second time without being declared a recompute")
        self.launched[instruction.kernel] = self.ever_launched[instruction.kernel] = 1


def _named(gpu: int) -> str:
    return f"GPU {gpu}'s device" if gpu else "device"
