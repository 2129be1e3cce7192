"""Run a program on a node: the one entrance to the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import simpy

from simgpu.errors import InputError, OutOfMemoryError, ProgramError
from simgpu.graph.compressed import carved_by
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.buddy import shared_link
from simgpu.machine.cdma import dram_demands
from simgpu.machine.code import translate
from simgpu.machine.simulator import Simulator
from simgpu.machine.stream import Memory
from simgpu.machine.record import timeline_of
from simgpu.machine.stream import Stream
from simgpu.machine.unmoved import unmoved_blocks
from simgpu.memory.addressed import AddressedPool
from simgpu.memory.paged import Reclaim, least_recently_touched
from simgpu.memory.pool import CountingPool, Pool
from simgpu.program.check import check_program
from simgpu.program.instructions import (
    Acquire,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Instruction,
    Launch,
    Program,
    Release,
    Space,
)
from simgpu.timeline.model import Timeline

#: Nanoseconds after which a timeline's 64-bit columns would run over when they are sorted.
LONGEST = 2**59

_WORK = (Launch, CopyOut, CopyIn, Encode, Decode)

POOLS: dict[str, Callable[[int | None, int], Pool]] = {"counting": CountingPool, "addressed": AddressedPool}


@dataclass(frozen=True, slots=True)
class Run:
    """What the machine did.

    steady: whether the last two iterations were equal in time and left the pool of each GPU equal, None where only one
    was run. high_water: bytes of device memory that the pool of the neediest GPU needed, holes included.
    retired: instructions executed, over all iterations. notes: what the machine has to say of the last one.
    buddy_peak: bytes of buddy memory that live blocks owned at most, of the GPU whose blocks owned most.
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
    reclaim: Reclaim = least_recently_touched,
) -> Run:
    """Execute a verified program. budget: bytes of each GPU's memory, None for unlimited. reclaim: picks what leaves
    where blocks are on demand; these have pages in place of a `pool`.

    A program for one GPU has GPU 0 with its link to itself; with several, copies also share the node's switches.

    Raises `ProgramError` for contents that are not known (`simgpu.program.check`), `OutOfMemoryError` when nothing can
    happen any more and a stream waits for memory, `InputError` when the clock runs over.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> run_program(lower(graph, Placement()), graph, node, budget=1000).timeline.iteration_ends_ns
    (12, 24, 36)
    """
    graph = check_program(program, graph).graph
    limit = None if program.unlimited_memory else budget
    gpus = program.gpus
    if gpus > node.gpus:
        raise ProgramError(f"the program uses {gpus} GPUs, and node {node.name} has {node.gpus}")
    devices: list[Memory] = [
        Memory("device" if gpus == 1 else f"GPU {gpu}'s device", POOLS[pool](limit, node.gpu.alignment))
        for gpu in range(gpus)
    ]
    host = Memory("host", CountingPool(node.host.pinned_memory))
    env = simpy.Environment(initial_time=0)
    cdma = node.gpu.cdma
    demands = None if cdma is None else dram_demands(graph, cdma)
    unmoved = unmoved_blocks(program, graph, node, env, limit, reclaim)
    if unmoved is None:
        code = translate(program, graph, devices, host, demands, shared_link(program, graph, node))
    else:
        graph, devices, host = unmoved.graph, [unmoved.memory], unmoved.host
        code = translate(program, graph, devices, host, driver=unmoved, streams=unmoved.lanes.streams)
    simulator = Simulator(env, code, node, (*devices, host), iterations)
    if unmoved:
        unmoved.settled = simulator.settle_if_last
    for holding in program.holdings:
        sizes, memory = (graph.copy_sizes, host) if holding.gpu is None else (graph.sizes, devices[holding.gpu])
        _take_residents(holding.blocks, graph, sizes, memory)
    simulator.run()
    if env.now > LONGEST:
        what = "the simulated time passes 18 years, more than a timeline's columns can hold"
        raise InputError.single("", "time", what, "look at durations, latency and bandwidths")
    if not all(stream.finished for stream in simulator.streams):
        raise _stopped(simulator, program, graph)
    timeline = timeline_of(simulator, graph, unmoved.lanes.rows if unmoved else ())
    retired = iterations * sum(
        len(code) * segment.repeat for segment in program.segments for code in segment.streams.values()
    )
    high_water = max(memory.pool.high_water for memory in devices)
    notes = unmoved.notes(iterations - 1) if unmoved else ()
    carved = max(memory.buddy_peak() for memory in devices)
    _check_carve_out(carved, node)
    return Run(timeline, _steady(timeline, simulator), high_water, retired, notes=notes, buddy_peak=carved)


def _check_carve_out(carved: int, node: NodeSpec) -> None:
    """Blocks own their places in buddy memory for as long as they live, used or not."""
    buddy = node.gpu.buddy
    size = 0 if buddy is None else buddy.carve_out * node.gpu.memory
    if carved > size:
        raise OutOfMemoryError("what is allocated as compressed", "buddy", carved, size, size, size, 0)


def _take_residents(blocks: Sequence[int], graph: TaskGraph, sizes: Sequence[int], memory: Memory) -> None:
    request = memory.pool.prepare(blocks, [sizes[b] for b in blocks])
    if not memory.pool.acquire(request):
        held = sorted(((graph.blocks[b].id, sizes[b]) for b in blocks), key=lambda h: (-h[1], h[0]))
        capacity = memory.pool.capacity or 0
        what = "what is persistent, before the first kernel,"
        hole = memory.pool.largest_hole
        raise OutOfMemoryError(what, memory.name, request[1], capacity, hole, capacity, 0, tuple(held))
    memory.log(0, memory.number(request, carved_by(graph, blocks) if sizes is graph.sizes else 0))


def _steady(timeline: Timeline, simulator: Simulator) -> bool | None:
    """Whether the last two iterations took the same time and left the same pools."""
    if simulator.iterations < 2:
        return None
    last, before = timeline.window(-1), timeline.window(-2)
    same_time = last[1] - last[0] == before[1] - before[0]
    states = [stream.snapshots for stream in simulator.streams if stream.memory is not None]
    return same_time and all(after == before for *_, before, after in states)


def _stopped(simulator: Simulator, program: Program, graph: TaskGraph) -> Exception:
    """Why a run came to a halt. Nothing has happened since the last work ended, whatever old timers ran out later."""
    now = max((stream.ends[-1] for stream in simulator.streams if stream.ends), default=0)
    for gpu, memory in enumerate(simulator.memories):
        if memory.waiting:
            stream = memory.waiting[0]
            request = stream.ops[stream.pc][2]
            capacity = memory.pool.capacity or 0
            free = capacity - memory.pool.used
            hole = memory.pool.largest_hole
            holders = _holders(simulator, program, graph, memory)
            asked = request[1]
            waiting = _work_at(simulator, program, graph, stream)
            first = next((s for s in simulator.streams if simulator.code.streams[s.rank].gpu == gpu), simulator.streams[0])
            kernel = _kernel_at(simulator, program, graph, first)
            return OutOfMemoryError(waiting, memory.name, asked, free, hole, capacity, now, holders, kernel)
    waiting = ", ".join(_work_at(simulator, program, graph, s) for s in simulator.streams if not s.finished)
    return ProgramError(f"the program stops at {now} ns although nobody waits for memory: {waiting}")


def _to_come(simulator: Simulator, program: Program, stream: Stream) -> tuple[Instruction, ...]:
    """The instructions from where a stream is to the end of its segment."""
    return program.segments[stream.segment].streams.get(simulator.code.streams[stream.rank], ())[stream.pc :]


def _work_at(simulator: Simulator, program: Program, graph: TaskGraph, stream: Stream) -> str:
    work = next((i for i in _to_come(simulator, program, stream) if isinstance(i, _WORK)), None)
    stream_id = simulator.code.streams[stream.rank]
    if isinstance(work, Launch):
        return f"kernel {graph.kernels[work.kernel].id} ({graph.kernels[work.kernel].op})"
    if isinstance(work, Encode | Decode):
        return f"codec of block {graph.blocks[work.block].id} on {stream_id}"
    return f"copy of block {graph.blocks[work.block].id} on {stream_id}" if work else f"stream {stream_id}"


def _kernel_at(simulator: Simulator, program: Program, graph: TaskGraph, stream: Stream) -> str:
    """The kernel that a stream has come to, after what it does before."""
    launches = (i for i in _to_come(simulator, program, stream) if isinstance(i, Launch))
    return next((graph.kernels[launch.kernel].id for launch in launches), "")


def _holders(simulator: Simulator, program: Program, graph: TaskGraph, memory: Memory) -> tuple[tuple[str, int], ...]:
    """Blocks that hold this memory when a run has stopped, largest first; counted from what streams have executed."""
    *devices, host = simulator.memories
    gpu = None if memory is host else devices.index(memory)
    space = Space.HOST if gpu is None else Space.DEVICE
    held: Counter[int] = Counter(b for holding in program.holdings if holding.gpu == gpu for b in holding.blocks)
    for stream in simulator.streams:
        if gpu is not None and simulator.code.streams[stream.rank].gpu != gpu:
            continue
        stream_id = simulator.code.streams[stream.rank]
        for index, segment in enumerate(program.segments):
            instructions = segment.streams.get(stream_id, ())
            done = stream.iteration * segment.repeat
            if index < stream.segment:
                done += segment.repeat
            partial = 0
            if index == stream.segment:
                done += stream.repetition
                partial = len(instructions) if stream.finished else stream.pc
            for position, instruction in enumerate(instructions):
                times = done + (position < partial and not stream.finished)
                if isinstance(instruction, Acquire | Release) and instruction.space is space:
                    sign = times if isinstance(instruction, Acquire) else -times
                    for b in instruction.blocks:
                        held[b] += sign
    sizes = graph.sizes if space is Space.DEVICE else graph.copy_sizes
    blocks = ((graph.blocks[b].id, sizes[b]) for b, count in held.items() if count > 0 and sizes[b])
    return tuple(sorted(blocks, key=lambda holder: (-holder[1], holder[0])))
