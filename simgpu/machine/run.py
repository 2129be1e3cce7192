"""Run a program on a node: the one entrance to the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import simpy

from simgpu.errors import InputError, OutOfMemoryError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.arrays import CompiledRun, Engine, is_chosen, run_compiled, why_not
from simgpu.machine.buddy import shared_link
from simgpu.machine.implicit_streams import ImplicitStreams, ResidencyDriver, with_implicit_streams
from simgpu.machine.paged import PageFaults
from simgpu.machine.record import timeline_of
from simgpu.machine.remote import RemoteAccess
from simgpu.machine.simulator import Simulator
from simgpu.machine.stream import Memories, Stream, TimedMemory
from simgpu.machine.translate import dram_demands, translate
from simgpu.memory.addressed import AddressedPool
from simgpu.memory.paged import Reclaim, least_recently_used
from simgpu.memory.pool import CountingPool, Pool
from simgpu.program.check import CheckedProgram, check_program
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    WORK,
    Acquire,
    Decode,
    Encode,
    InitialContents,
    Instruction,
    Launch,
    Program,
    Release,
)
from simgpu.program.paging import Paged
from simgpu.timeline.model import Timeline
from simgpu.timeline.streams import StreamId

#: Nanoseconds after which a timeline's 64-bit columns would run over when they are sorted.
LONGEST = 2**59

POOLS: dict[str, Callable[[int | None, int], Pool]] = {"counting": CountingPool, "addressed": AddressedPool}


@dataclass(frozen=True, slots=True)
class MachineRun:
    """The result of a run on the machine.

    steady: whether the last two iterations took the same time and ended with the same pool states, None after a single
    iteration. high_water: bytes of device memory that the pool needed, holes included, maximum over GPUs. retired:
    instructions executed, over all iterations. notes: the machine's notes on the last iteration. buddy_peak: peak bytes
    of buddy memory owned by live blocks, maximum over GPUs.
    """

    timeline: Timeline
    steady: bool | None
    high_water: int
    retired: int
    buddy_peak: int = 0
    notes: tuple[str, ...] = ()


def run_program(
    program: Program,
    graph: TaskGraph,
    node: NodeSpec,
    *,
    budget: int | None,
    iterations: int = 3,
    pool: str = "counting",
    reclaim: Reclaim = least_recently_used,
    engine: Engine = "auto",
    checked: CheckedProgram | None = None,
) -> MachineRun:
    """Execute a verified program.

    budget: bytes of each GPU's memory, None for unlimited. reclaim: picks chunks to evict if blocks are on demand;
    these have pages instead of a `pool`. engine: ``compiled`` runs the same machine compiled, where it has all that the
    program needs, ``simpy`` never, ``auto`` where that is faster; all give the same numbers. checked: what
    `check_program` returned for the program, this graph and this node, so that its contents need no second check.

    A program for one GPU uses GPU 0 with its own link; with several, copies also share the node's switches.

    Raises `ProgramError` for unknown contents (`simgpu.program.check`), `OutOfMemoryError` when all streams are stopped
    and one waits for memory, `InputError` when the clock overflows.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> run_program(lower(graph, Placement()), graph, node, budget=1000).timeline.iteration_ends_ns
    (12, 24, 36)
    """
    checked = checked or check_program(program, graph, node)
    graph = checked.graph
    limit = None if program.unlimited_memory else budget
    gpus = program.gpus
    if gpus > node.gpus:
        raise ProgramError(f"the program uses {gpus} GPUs, and node {node.name} has {node.gpus}")
    env = simpy.Environment(initial_time=0)
    cdma = node.gpu.cdma
    demands = None if cdma is None else dram_demands(graph, cdma)
    driver = _residency_driver(program, graph, node, env, limit, reclaim)
    if driver is None:
        memories = _memories(node, gpus, checked.memories, limit, pool)
        code = translate(program, graph, node, memories, demands, shared_link(program, graph, node))
    else:
        graph, memories = driver.graph, Memories([driver.memory], {HOST: driver.host})
        code = translate(program, graph, node, memories, driver=driver, streams=driver.implicit.streams)
    simulator = Simulator(env, code, node, memories, iterations)
    if driver:
        driver.settled = simulator.settle_if_last
    for each in program.initial_contents:
        _allocate_initial(each, graph, memories)
    ran: Simulator | CompiledRun | None = None
    reason = why_not(code)
    if not reason and is_chosen(engine, code, iterations):
        ran = run_compiled(code, simulator.engines, memories, iterations)
        reason = "its times or sizes are too large for 64 bits"
    if ran is None:
        ran = simulator
        _run_to_the_end(simulator, program, graph)
    timeline = timeline_of(ran, graph, driver.implicit.rows if driver else ())
    retired = iterations * sum(
        len(code) * segment.repeat for segment in program.segments for code in segment.streams.values()
    )
    high_water = ran.high_water
    notes = driver.notes(iterations - 1) if driver else ()
    if engine == "compiled" and ran is simulator:
        notes = (*notes, f"ran on SimPy, because the compiled engine does not have this: {reason}")
    carved = max(memory.buddy_peak() for memory in memories.devices)
    _check_carve_out(carved, node)
    return MachineRun(timeline, _steady(timeline, ran), high_water, retired, notes=notes, buddy_peak=carved)


def _run_to_the_end(simulator: Simulator, program: Program, graph: TaskGraph) -> None:
    """Run the simulator; raise the error of a run that stops before all streams have finished."""
    simulator.run()
    if simulator.env.now > LONGEST:
        what = "the simulated time passes 18 years, more than a timeline's columns can hold"
        raise InputError.single("", "time", what, "look at durations, latency and bandwidths")
    if not all(stream.finished for stream in simulator.streams):
        raise _StoppedRun(simulator, program, graph).error()


def _check_carve_out(carved: int, node: NodeSpec) -> None:
    """Check that buddy memory suffices: blocks own their ranges of it while they live, used or not."""
    buddy = node.gpu.buddy
    size = 0 if buddy is None else buddy.carve_out * node.gpu.memory
    if carved > size:
        raise OutOfMemoryError("what is allocated as compressed", "buddy", carved, size, size, size, 0)


def _memories(node: NodeSpec, gpus: int, used: Sequence[str], limit: int | None, pool: str) -> Memories:
    """The memories that a program uses; those of the GPUs have the run's budget and pool."""
    devices = [
        TimedMemory(DEVICE if gpus == 1 else f"GPU {gpu}'s device", POOLS[pool](limit, node.gpu.alignment))
        for gpu in range(gpus)
    ]
    shared = {
        memory.name: TimedMemory(memory.name, POOLS[memory.allocator](memory.capacity, memory.alignment))
        for memory in node.memories
        if memory.name != DEVICE and memory.name in used
    }
    return Memories(devices, shared)


def _allocate_initial(contents: InitialContents, graph: TaskGraph, memories: Memories) -> None:
    blocks, sizes = contents.blocks, graph.sizes_in(contents.memory)
    memory = memories.of(contents.gpu, contents.memory)
    request = memory.pool.prepare(blocks, [sizes[b] for b in blocks])
    if not memory.pool.acquire(request):
        largest = _largest_first((graph.blocks[b].id, sizes[b]) for b in blocks)
        capacity = memory.pool.capacity or 0
        what = "what is persistent, before the first kernel,"
        hole = memory.pool.largest_hole
        raise OutOfMemoryError(what, memory.name, request[1], capacity, hole, capacity, 0, largest)
    carved = graph.compressed.carved_by(blocks) if graph.compressed and contents.memory == DEVICE else 0
    memory.log(0, memory.number(request, carved))


def _residency_driver(
    program: Program,
    graph: TaskGraph,
    node: NodeSpec,
    env: simpy.Environment,
    capacity: int | None,
    reclaim: Reclaim,
) -> ResidencyDriver | None:
    """The driver of kernels of a program that does not move its blocks, None if it moves them.

    Raises `ProgramError` for several GPUs.
    """
    if program.residency is None:
        return None
    if program.gpus > 1:
        raise ProgramError("a program that does not move its blocks must use one GPU; this one uses several")
    implicit = ImplicitStreams(with_implicit_streams(program.streams))
    if isinstance(program.residency, Paged):
        return PageFaults(env, graph, node, program.residency, implicit, capacity, reclaim)
    return RemoteAccess(env, graph, node, implicit, capacity)


def _steady(timeline: Timeline, simulator: Simulator | CompiledRun) -> bool | None:
    """Whether the last two iterations took the same time and ended with the same pool states."""
    if simulator.iterations < 2:
        return None
    last, before = timeline.window(-1), timeline.window(-2)
    same_time = last[1] - last[0] == before[1] - before[0]
    states = [stream.snapshots for stream in simulator.streams if stream.memory is not None]
    return same_time and all(after == before for *_, before, after in states)


@dataclass(frozen=True, slots=True)
class _StoppedRun:
    """Explains why a run stopped before all streams had finished."""

    simulator: Simulator
    program: Program
    graph: TaskGraph

    def error(self) -> Exception:
        """The error that names who waits. Later timers are outdated: the run stopped when the last work ended."""
        streams, memories = self.simulator.streams, self.simulator.memories.all
        now = max((stream.ends[-1] for stream in streams if stream.ends), default=0)
        for gpu, memory in enumerate(memories):
            if memory.waiting:
                stream = memory.waiting[0]
                requested, pool = stream.ops[stream.pc][2][1], memory.pool
                capacity = pool.capacity or 0
                free, hole, blocks = capacity - pool.used, pool.largest_hole, self._blocks_in(memory)
                first = next((s for s in streams if self._id(s).gpu == gpu), streams[0])
                kernel, waiting = self._next_kernel(first), self._next_work(stream)
                return OutOfMemoryError(waiting, memory.name, requested, free, hole, capacity, now, blocks, kernel)
        waiting = ", ".join(self._next_work(s) for s in streams if not s.finished)
        return ProgramError(f"the program stops at {now} ns although no stream waits for memory: {waiting}")

    def _id(self, stream: Stream) -> StreamId:
        return self.simulator.code.streams[stream.rank]

    def _remaining(self, stream: Stream) -> tuple[Instruction, ...]:
        """The remaining instructions of a stream's segment."""
        return self.program.segments[stream.segment].streams.get(self._id(stream), ())[stream.pc :]

    def _next_work(self, stream: Stream) -> str:
        work = next((i for i in self._remaining(stream) if isinstance(i, WORK)), None)
        if isinstance(work, Launch):
            kernel = self.graph.kernels[work.kernel]
            return f"kernel {kernel.id} ({kernel.op})"
        if work is None:
            return f"stream {self._id(stream)}"
        what = "codec" if isinstance(work, Encode | Decode) else "copy"
        return f"{what} of block {self.graph.blocks[work.block].id} on {self._id(stream)}"

    def _next_kernel(self, stream: Stream) -> str:
        """The next kernel that a stream would run."""
        launches = (i for i in self._remaining(stream) if isinstance(i, Launch))
        return next((self.graph.kernels[launch.kernel].id for launch in launches), "")

    def _blocks_in(self, memory: TimedMemory) -> tuple[tuple[str, int], ...]:
        """Blocks in this memory, largest first; counted from the instructions that streams have executed."""
        memories = self.simulator.memories
        counts: Counter[int] = Counter(
            b
            for each in self.program.initial_contents
            if memories.of(each.gpu, each.memory) is memory
            for b in each.blocks
        )
        for stream in self.simulator.streams:
            gpu = self._id(stream).gpu
            for index, segment in enumerate(self.program.segments):
                done = stream.iteration * segment.repeat + (segment.repeat if index < stream.segment else 0)
                partial = 0
                if index == stream.segment:
                    done += stream.repetition
                    partial = 0 if stream.finished else stream.pc
                for position, instruction in enumerate(segment.streams.get(self._id(stream), ())):
                    if not isinstance(instruction, Acquire | Release):
                        continue
                    if memories.of(gpu, instruction.memory) is memory:
                        times = done + (position < partial)
                        for b in instruction.blocks:
                            counts[b] += times if isinstance(instruction, Acquire) else -times
        sizes = self.graph.sizes if memory in memories.devices else self.graph.copy_sizes
        return _largest_first(
            (self.graph.blocks[b].id, sizes[b]) for b, count in counts.items() if count > 0 and sizes[b]
        )


def _largest_first(blocks: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Named sizes, largest first, then by name."""
    return tuple(sorted(blocks, key=lambda block: (-block[1], block[0])))
