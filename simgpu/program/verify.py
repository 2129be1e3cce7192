"""The check that guards every run: a program is legal by happens-before alone, whatever the timing.

Lives here: `verify`. Does not live here: whether waiting requests for memory can starve each other, which depends on
timing and is found out by the run.

The program is walked once in an order its events allow, for two iterations where it has several streams or copies (so
that what one iteration leaves undone or out of date and the next one touches is seen). Every access is stamped with
its stream and that stream's clock, which ticks at each signal; an access is ordered after another if its stream has
heard of the other's tick. Since every pair of conflicting accesses is checked to be ordered, the one order walked
stands for all.

The value of a block is told by how often it has been written since the beginning, with every repetition of every
segment counted out; what a kernel must find follows from the trace's versions in the same count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from operator import add
from typing import Any

from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.memory.pool import aligned
from simgpu.program.instructions import (
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Instruction,
    Launch,
    Program,
    Provide,
    Release,
    Segment,
    Signal,
    Space,
)


def verify(program: Program, graph: TaskGraph, *, capacity: int | None = None, alignment: int = 1) -> None:
    """Check a program against the graph it was written for.

    Raises `ProgramError` naming stream, instruction and block or kernel; raises `OutOfMemoryError` if the blocks of
    a single kernel are larger than `capacity` (bytes), which no order of events can mend.

    Rules: every kernel runs, once per repetition of its segment, plus declared recomputes of pure kernels after it;
    a segment has consecutive kernels that follow those of the segment before or repeat them; what a kernel reads is
    resident in the version the trace read; copies follow the writes they copy; nothing is used after its release or
    released while in use or twice; memory is taken once; an iteration, and a segment that repeats, leaves memory as
    it found it; every awaited event is signalled, at one place.

    graph: the one the program was planned for; the program's own transforms are applied to it here.

    >>> from simgpu.program.instructions import COMPUTE
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> verify(Program((Segment({COMPUTE: (Launch(0), Launch(1))}),), resident=(graph.block("x1"),)), graph)
    Traceback (most recent call last):
    simgpu.errors.ProgramError: compute[0] Launch(kernel=0, recompute=False): block x2 holds no device memory
    """
    graph = transformed(graph, program.transforms)
    if capacity is not None and not program.unlimited_memory:
        check_kernels_fit(graph, capacity, alignment)
    _Walk(program, graph).run()


def check_kernels_fit(graph: TaskGraph, capacity: int, alignment: int = 1) -> None:
    """Raise `OutOfMemoryError` if the blocks that one kernel touches exceed `capacity` bytes together."""
    sizes = [aligned(size, alignment) for size in graph.sizes]
    for k, kernel in enumerate(graph.kernels):
        blocks = set(graph.reads[k]) | set(graph.writes[k])
        need = sum(sizes[b] for b in blocks)
        if need > capacity:
            holders = sorted(((graph.blocks[b].id, sizes[b]) for b in blocks), key=lambda h: (-h[1], h[0]))
            waiting = f"kernel {kernel.id} ({kernel.op}) alone"
            raise OutOfMemoryError(waiting, "device", need, capacity, capacity, capacity, 0, tuple(holders), kernel.id)


class _Memory:
    """What the walk knows of one space: per block, who took or gave back its memory, which value it holds since when,
    and who touched it last. A stamp is a stream (`_by`) and its clock (`_at`); stream -1 stands for the beginning.
    """

    def __init__(self, name: str, blocks: int, streams: int) -> None:
        self.name = name
        self.resident = [False] * blocks
        self.value = [-1] * blocks
        self.taken_by, self.taken_at = [-1] * blocks, [-1] * blocks
        self.ready_by, self.ready_at = [-1] * blocks, [-1] * blocks
        self.back_by, self.back_at = [-1] * blocks, [-1] * blocks
        self.touched = [[-1] * blocks for _ in range(streams)]


class _Walk:
    def __init__(self, program: Program, graph: TaskGraph) -> None:
        self.program = program
        self.graph = graph
        self.streams = program.streams
        self.count = len(self.streams)
        self.device = _Memory("device", len(graph.sizes), self.count)
        self.host = _Memory("host", len(graph.sizes), self.count)
        self.clock = [[0 if other == me else -1 for other in range(self.count)] for me in range(self.count)]
        self.signals: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        self.signalled_in: dict[int, int] = {}
        self.copies = False
        self._look_over()
        # Per block: writes before this repetition, and those of them that the trace has before this segment.
        self.written = [0] * len(graph.sizes)
        self.earlier = [0] * len(graph.sizes)
        self.kernels_reached = (0, 0)
        self.writes_of = [self._writes(segment) for segment in program.segments]
        self.launched = bytearray(len(graph.kernels))
        self.ever_launched = bytearray(len(graph.kernels))
        self._do: dict[type, Callable[[Any, int, list[int]], None]] = {
            Launch: self._launch,
            Acquire: self._acquire,
            Release: self._release,
            CopyOut: self._copy_out,
            CopyIn: self._copy_in,
            Encode: self._encode,
            Decode: self._decode,
            Provide: self._provide,
        }

    def run(self) -> None:
        """Walk the program."""
        for b in self.program.resident:
            if self.device.resident[b]:
                raise ProgramError(f"block {self.graph.blocks[b].id} is resident twice at the start")
            if not self.graph.blocks[b].persistent:
                raise ProgramError(f"block {self.graph.blocks[b].id} is not persistent but resident at the start")
            self.device.resident[b] = True
            self.device.value[b] = 0
        plain = self.count == 1 and not self.copies
        for iteration in range(1 if plain else 2):
            start = self.device.resident[:], self.host.resident[:]
            for index, segment in enumerate(self.program.segments):
                for repetition in range(min(segment.repeat, 2)):
                    self._repetition(index, segment, iteration * min(segment.repeat, 2) + repetition)
            missing = self.ever_launched.find(0)
            if missing >= 0:
                raise ProgramError(f"kernel {self.graph.kernels[missing].id} is never launched")
            self._check_residency("the iteration", *start)
            for b in self.program.resident:
                value = self.device.value[b]
                if value != self.written[b]:
                    state = "no value" if value < 0 else "an older value than its last"
                    raise ProgramError(f"block {self.graph.blocks[b].id} holds {state} when the iteration ends")

    def _writes(self, segment: Segment) -> tuple[list[int], list[int]]:
        """How often each block is written before a segment and in it, by the trace's order of kernels."""
        graph = self.graph
        kernels = {
            instruction.kernel
            for code in segment.streams.values()
            for instruction in code
            if type(instruction) is Launch and not instruction.recompute
        }
        first, stop = (min(kernels), max(kernels) + 1) if kernels else (self.kernels_reached[1],) * 2
        if kernels:
            if len(kernels) < stop - first:
                missing = next(k for k in range(first, stop) if k not in kernels)
                raise ProgramError(f"kernel {graph.kernels[missing].id} is never launched")
            if first != self.kernels_reached[1] and (first, stop) != self.kernels_reached:
                raise ProgramError(f"a segment begins with kernel {graph.kernels[first].id}, out of order")
            self.kernels_reached = (first, stop)
        if (first, stop) == (0, len(graph.kernels)):
            return [0] * len(graph.sizes), list(graph.last_version)
        earlier, own = [0] * len(graph.sizes), [0] * len(graph.sizes)
        for k in range(stop):
            for b in graph.writes[k]:
                (own if k >= first else earlier)[b] += 1
        return earlier, own

    def _look_over(self) -> None:
        """Every number stands for something, and every event has one place."""
        for index, segment in enumerate(self.program.segments):
            for stream, code in segment.streams.items():
                for position, instruction in enumerate(code):
                    if isinstance(instruction, Launch):
                        known = 0 <= instruction.kernel < len(self.graph.kernels)
                    elif isinstance(instruction, (Acquire, Release, Provide)):
                        blocks = instruction.blocks
                        known = not blocks or (min(blocks) >= 0 and max(blocks) < len(self.graph.blocks))
                    elif isinstance(instruction, (CopyOut, CopyIn)):
                        known = 0 <= instruction.block < len(self.graph.blocks)
                        self.copies = True
                    elif isinstance(instruction, (Encode, Decode)):
                        form = instruction.into if isinstance(instruction, Encode) else instruction.source
                        known = form in self.graph.encoded and self.graph.encoded[form].block == instruction.block
                        self.copies = True
                    elif isinstance(instruction, Signal):
                        known = instruction.event not in self.signalled_in
                        self.signalled_in[instruction.event] = index
                    else:
                        continue
                    if not known:
                        why = (
                            "is signalled at a second place"
                            if isinstance(instruction, Signal)
                            else "names what the graph does not have"
                        )
                        raise ProgramError(f"{stream}[{position}] {instruction}: {why}")

    # --- one repetition of a segment ------------------------------------------------------------------------

    def _repetition(self, index: int, segment: Segment, number: int) -> None:
        device_before, host_before = self.device.resident[:], self.host.resident[:]
        self.earlier, writes = self.writes_of[index]
        self.launched = bytearray(len(self.graph.kernels))
        positions = [0] * self.count
        codes = [segment.streams.get(stream, ()) for stream in self.streams]
        moving = True
        while moving:
            moving = False
            for me, code in enumerate(codes):
                reached = self._advance(me, code, positions[me], index, number)
                moving = moving or reached > positions[me]
                positions[me] = reached
        for me, code in enumerate(codes):
            if positions[me] < len(code):
                stuck = code[positions[me]]
                raise ProgramError(f"{self.streams[me]}[{positions[me]}]: {stuck} waits for an event that never comes")
        self.written = list(map(add, self.written, writes))
        if segment.repeat > 1:
            self._check_residency(f"segment {index}", device_before, host_before)

    def _check_residency(self, what: str, device: list[bool], host: list[bool]) -> None:
        for before, memory in ((device, self.device), (host, self.host)):
            if before != memory.resident:
                b = next(b for b, held in enumerate(before) if held != memory.resident[b])
                verb = "leaves" if memory.resident[b] else "loses"
                name = self.graph.blocks[b].id
                raise ProgramError(f"{what} {verb} block {name} in {memory.name} memory at its end")

    def _advance(self, me: int, code: tuple[Instruction, ...], position: int, index: int, number: int) -> int:
        """Walk a stream until it has to wait; returns where."""
        clock = self.clock[me]
        stop = len(code)
        while position < stop:
            instruction = code[position]
            do = self._do.get(type(instruction))
            if do is not None:
                try:
                    do(instruction, me, clock)
                except ProgramError as error:
                    raise ProgramError(f"{self.streams[me]}[{position}] {instruction}: {error}") from None
            elif isinstance(instruction, Await):
                if not self._heard(instruction, clock, index, number):
                    return position
            elif isinstance(instruction, Signal):
                self.signals[instruction.event].append(tuple(clock))
                clock[me] += 1
            position += 1
        return position

    def _heard(self, wait: Await, clock: list[int], index: int, number: int) -> bool:
        signalled_in = self.signalled_in.get(wait.event)
        if signalled_in is None:
            return False
        if signalled_in == index:
            target = number + 1 - wait.lag
        else:
            repeat = min(self.program.segments[signalled_in].repeat, 2)
            own = min(self.program.segments[index].repeat, 2)
            target = (number // own + 1) * repeat - wait.lag
        if target <= 0:
            return True
        heard = self.signals[wait.event]
        if len(heard) < target:
            return False
        for stream, tick in enumerate(heard[target - 1]):
            if tick > clock[stream]:
                clock[stream] = tick
        return True

    # --- instructions ---------------------------------------------------------------------------------------

    def _name(self, b: int) -> str:
        return self.graph.blocks[b].id

    def _space(self, space: Space) -> _Memory:
        return self.device if space is Space.DEVICE else self.host

    def _hold(self, memory: _Memory, b: int, me: int, clock: list[int]) -> None:
        """The block holds memory, and this stream knows it."""
        if not memory.resident[b]:
            raise ProgramError(f"block {self._name(b)} holds no {memory.name} memory")
        by = memory.taken_by[b]
        if by != me and by >= 0 and memory.taken_at[b] > clock[by]:
            raise ProgramError(f"block {self._name(b)} may not hold {memory.name} memory yet")

    def _quiet(self, memory: _Memory, b: int, me: int, clock: list[int], what: str) -> None:
        """Nobody else may still be touching the block."""
        for stream, touched in enumerate(memory.touched):
            if stream != me and touched[b] > clock[stream]:
                other = self.streams[stream]
                raise ProgramError(f"block {self._name(b)} is {what} while {other} may still be using it")

    def _value(self, memory: _Memory, b: int, me: int, clock: list[int]) -> int:
        """The value a block holds, if this stream knows that it is there. Whoever set it knew of the memory."""
        value = memory.value[b]
        if value < 0:
            self._hold(memory, b, me, clock)
            raise ProgramError(f"block {self._name(b)} holds no value in {memory.name} memory")
        by = memory.ready_by[b]
        if by != me and by >= 0 and memory.ready_at[b] > clock[by]:
            raise ProgramError(f"block {self._name(b)} may not hold its value in {memory.name} memory yet")
        return value

    def _set(self, memory: _Memory, b: int, value: int, me: int, clock: list[int]) -> None:
        memory.value[b] = value
        memory.ready_by[b] = me
        memory.ready_at[b] = memory.touched[me][b] = clock[me]

    def _acquire(self, instruction: Acquire, me: int, clock: list[int]) -> None:
        memory = self._space(instruction.space)
        for b in instruction.blocks:
            if memory.resident[b]:
                raise ProgramError(f"block {self._name(b)} already holds {memory.name} memory")
            by = memory.back_by[b]
            if by != me and by >= 0 and memory.back_at[b] > clock[by]:
                raise ProgramError(f"block {self._name(b)} may still hold {memory.name} memory")
            memory.resident[b] = True
            memory.value[b] = -1
            memory.taken_by[b], memory.taken_at[b] = me, clock[me]

    def _release(self, instruction: Release, me: int, clock: list[int]) -> None:
        memory = self._space(instruction.space)
        for b in instruction.blocks:
            self._hold(memory, b, me, clock)
            self._quiet(memory, b, me, clock, "released")
            memory.resident[b] = False
            memory.value[b] = -1
            memory.back_by[b], memory.back_at[b] = me, clock[me]

    def _provide(self, instruction: Provide, me: int, clock: list[int]) -> None:
        memory = self._space(instruction.space)
        for b in instruction.blocks:
            block = self.graph.blocks[b]
            if not block.persistent and block.born is None:
                raise ProgramError(f"block {block.id} is made by a kernel, the host cannot provide it")
            self._hold(memory, b, me, clock)
            self._quiet(memory, b, me, clock, "provided")
            # A given value is one more write, which the trace counts as version 0.
            self.written[b] += 1
            self._set(memory, b, self.written[b] - self.earlier[b], me, clock)

    def _copy_out(self, instruction: CopyOut, me: int, clock: list[int]) -> None:
        b = instruction.block
        value = self._value(self.device, b, me, clock)
        self._hold(self.host, b, me, clock)
        self._quiet(self.host, b, me, clock, "overwritten on the host")
        self.device.touched[me][b] = clock[me]
        self._set(self.host, b, value, me, clock)

    def _copy_in(self, instruction: CopyIn, me: int, clock: list[int]) -> None:
        b = instruction.block
        value = self._value(self.host, b, me, clock)
        self._hold(self.device, b, me, clock)
        self._quiet(self.device, b, me, clock, "overwritten")
        self.host.touched[me][b] = clock[me]
        self._set(self.device, b, value, me, clock)

    def _encode(self, instruction: Encode, me: int, clock: list[int]) -> None:
        self._change(self._space(instruction.space), instruction.block, instruction.into, me, clock)

    def _decode(self, instruction: Decode, me: int, clock: list[int]) -> None:
        self._change(self._space(instruction.space), instruction.source, instruction.block, me, clock)

    def _change(self, memory: _Memory, of: int, into: int, me: int, clock: list[int]) -> None:
        """One form of a block is made of another in the same memory; both stand for the same value."""
        value = self._value(memory, of, me, clock)
        self._hold(memory, into, me, clock)
        self._quiet(memory, into, me, clock, "overwritten")
        memory.touched[me][of] = clock[me]
        self._set(memory, into, value, me, clock)

    def _launch(self, instruction: Launch, me: int, clock: list[int]) -> None:
        k = instruction.kernel
        graph, device = self.graph, self.device
        self._count_launch(instruction)
        written, earlier, now = self.written, self.earlier, clock[me]
        values, ready_by, ready_at, touched = device.value, device.ready_by, device.ready_at, device.touched[me]
        for b, version in zip(graph.reads[k], graph.read_versions[k], strict=True):
            by = ready_by[b]
            if by != me and by >= 0 and ready_at[b] > clock[by]:
                self._value(device, b, me, clock)
            if values[b] != written[b] + version - earlier[b]:
                self._value(device, b, me, clock)
                raise ProgramError(f"kernel {graph.kernels[k].id} finds a wrong version of block {self._name(b)}")
            touched[b] = now
        for b, version in zip(graph.writes[k], graph.write_versions[k], strict=True):
            self._hold(device, b, me, clock)
            if self.count > 1:
                self._quiet(device, b, me, clock, "overwritten")
            values[b] = written[b] + version - earlier[b]
            ready_by[b], ready_at[b], touched[b] = me, now, now

    def _count_launch(self, instruction: Launch) -> None:
        kernel = self.graph.kernels[instruction.kernel]
        ran = self.launched[instruction.kernel]
        if instruction.recompute:
            if not ran:
                raise ProgramError(f"kernel {kernel.id} is recomputed before it ran")
            if kernel.pure is not True:
                raise ProgramError(f"kernel {kernel.id} ({kernel.op}) is not known to be pure, it cannot be recomputed")
        elif ran:
            raise ProgramError(f"kernel {kernel.id} is launched a second time without being declared a recompute")
        self.launched[instruction.kernel] = self.ever_launched[instruction.kernel] = 1
