"""Run a program on a node: the one entrance to the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from simgpu.errors import InputError, OutOfMemoryError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.buddy import shared_link
from simgpu.machine.compiled_engine import Engine, is_chosen, run_compiled
from simgpu.machine.containers import BlockRequest, Container, Memories
from simgpu.machine.dram import dram_demands
from simgpu.machine.engines import Engines
from simgpu.machine.implicit_streams import ImplicitStreams, Residency, with_implicit_streams
from simgpu.machine.instants import InstantOrder
from simgpu.machine.log import LONGEST, Ran, timeline_of
from simgpu.machine.paged import PageFaults
from simgpu.machine.remote import RemoteAccess
from simgpu.machine.simulator import Simulator
from simgpu.machine.steps import streams_of
from simgpu.machine.stopped import StoppedRun, largest_first
from simgpu.memory.addressed import AddressedPool
from simgpu.memory.caching.pool import CachingPool
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.memory.chunks import Reclaim, least_recently_used
from simgpu.memory.pool import CountingPool, Pool
from simgpu.program.check import CheckedProgram, check_program
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    Copy,
    InitialContents,
    Program,
)
from simgpu.program.paging import Paged
from simgpu.timeline.model import Timeline
from simgpu.timeline.streams import engine as engine_name

POOLS: dict[str, Callable[[int | None, int], Pool]] = {
    "counting": CountingPool,
    "addressed": AddressedPool,
    "caching": CachingPool,
}


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
    allocator: AllocatorSettings | None = None,
    context: int = 0,
    reclaim: Reclaim = least_recently_used,
    sees_future: bool = False,
    engine: Engine = "auto",
    checked: CheckedProgram | None = None,
    observe: Callable[[int, int, bool | None, BlockRequest], None] | None = None,
) -> MachineRun:
    """Execute a verified program.

    budget: bytes of each GPU's memory, None for unlimited. allocator: settings of the caching pool. context: bytes of
    each GPU that the CUDA context takes in addition to the budget, which only the caching pool counts. reclaim: picks
    chunks to evict if blocks are on demand; these have pages instead of a `pool`. sees_future: whether it may ask for
    the next use of a chunk. engine: ``compiled`` runs the same
    machine compiled, where it has all that the program needs, ``simpy`` never, ``auto`` where that is faster; all give
    the same numbers. checked: what `check_program` returned for the program, this graph and this node, so that its
    contents need no second check. observe: called with each request for a GPU's memory, see
    `simgpu.machine.containers.Observer`, and before with the number of the GPU; for the engine ``simpy``.

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
    if program.gpus > node.gpus:
        raise ProgramError(f"the program uses {program.gpus} GPUs, and node {node.name} has {node.gpus}")
    limit = None if program.unlimited_memory else budget
    pools = partial(CachingPool, settings=allocator, context=context) if pool == "caching" else POOLS[pool]
    machine = _Machine(checked, node, limit, pools, reclaim, observe, sees_future=sees_future)
    ran: Ran | StoppedRun | None = None
    notes: tuple[str, ...] = ()
    reason = machine.why_not_compiled
    if not reason and is_chosen(engine, program, iterations, caching=pool == "caching"):
        ran = run_compiled(checked, node, machine.engines, machine.memories, iterations)
        reason = "its times or sizes are too large for 64 bits"
    if isinstance(ran, StoppedRun):
        raise ran.error()
    if ran is None:
        ran, notes = machine.simulated(iterations)
        if engine == "compiled":
            notes = (*notes, f"ran on SimPy, because the compiled engine does not have this: {reason}")
    _check_carve_out(ran.buddy_peak, node)
    timeline = timeline_of(ran, machine.graph, machine.streams, machine.resources, iterations)
    retired = iterations * sum(sum(map(len, each.streams.values())) * each.repeat for each in program.segments)
    return MachineRun(timeline, _steady(timeline, ran), ran.high_water, retired, ran.buddy_peak, notes)


class _Machine:
    """A node with a checked program in it: its memories with what they hold at the start, and its copy engines.

    graph: as the machine runs it. streams: the program's, and those that only show something. resources: what the log
    names.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        node: NodeSpec,
        limit: int | None,
        pool: Callable[[int | None, int], Pool],
        reclaim: Reclaim,
        observe: Callable[[int, int, bool | None, BlockRequest], None] | None = None,
        *,
        sees_future: bool = False,
    ) -> None:
        program = self.program = checked.program
        graph = self.graph = checked.graph
        self.node = node
        residency, cdma = program.residency, node.gpu.cdma
        self.demands = None if cdma is None else dram_demands(graph, cdma)
        self.shared = shared_link(program, graph, node)
        self.streams = program.streams if residency is None else with_implicit_streams(program.streams)
        self.env = InstantOrder(len(self.streams))
        linked = self.shared is not None
        self.engines = Engines(self.env, node, program.gpus, demands_vary=self.demands is not None, buddy_flows=linked)
        self.residency = _residency(program, graph, node, self.env, limit, reclaim, sees_future=sees_future)
        if self.residency is None:
            self.memories = _memories(node, program.gpus, checked.memories, limit, pool)
        else:
            self.graph = self.residency.graph
            self.memories = Memories([self.residency.memory], {HOST: self.residency.host})
        ways = [way for link in node.links for way in (link.ends, (link.ends[1], link.ends[0]))]
        self.resources = (*self.memories.names, *(engine_name(*way) for way in ways))
        for gpu, device in enumerate(self.memories.devices):
            device.observe = None if observe is None else partial(observe, gpu)
        for each in program.initial_contents:
            _allocate_initial(each, self.graph, self.memories)

    @property
    def why_not_compiled(self) -> str:
        """Why the compiled engine cannot run the program; empty if it can."""
        if self.residency is not None:
            return "its kernels access host memory"
        if self.demands is not None:
            return "kernels slow down its compressed copies"
        if self.node.host.launch_ns and any(each.role == "compute" and each.number for each in self.program.streams):
            return "one thread launches the kernels of several streams"
        pool = self.memories.devices[0].pool
        if isinstance(pool, CachingPool) and not pool.allocator.settings.only_rounds:
            return "settings of PyTorch's caching allocator other than roundup_power2_divisions"
        return "" if self.shared is None else "kernels share the link to buddy memory"

    def simulated(self, iterations: int) -> tuple[Ran, tuple[str, ...]]:
        """Run on SimPy; notes on the last iteration. Raises the error of a run that stops before all streams have
        finished."""
        streams = streams_of(
            self.env,
            self.program,
            self.graph,
            self.node,
            self.streams,
            self.memories,
            self.engines,
            demands=self.demands,
            shared=self.shared,
            residency=self.residency,
        )
        simulator = Simulator(self.env, streams, self.memories, iterations)
        finished = simulator.run()
        if self.env.instant > LONGEST:
            what = "the simulated time passes 18 years, more than a timeline's columns can hold"
            raise InputError.single("", "time", what, "look at durations, latency and bandwidths")
        if not finished:
            raise StoppedRun.of(simulator, self.program, self.graph).error()
        return simulator.ran, self.residency.notes(iterations - 1) if self.residency else ()


def _check_carve_out(carved: int, node: NodeSpec) -> None:
    """Check that buddy memory suffices: blocks own their ranges of it while they live, used or not."""
    buddy = node.gpu.buddy
    size = 0 if buddy is None else buddy.carve_out * node.gpu.memory
    if carved > size:
        raise OutOfMemoryError("what is allocated as compressed", "buddy", carved, size, size, size, 0)


def _memories(
    node: NodeSpec, gpus: int, used: Sequence[str], limit: int | None, pool: Callable[[int | None, int], Pool]
) -> Memories:
    """The memories that a program uses; those of the GPUs have the run's budget and pool."""
    devices = [
        Container(DEVICE if gpus == 1 else f"GPU {gpu}'s device", pool(limit, node.gpu.alignment))
        for gpu in range(gpus)
    ]
    shared = {
        memory.name: Container(memory.name, POOLS[memory.allocator](memory.capacity, memory.alignment))
        for memory in node.memories
        if memory.name != DEVICE and memory.name in used
    }
    return Memories(devices, shared)


def _allocate_initial(contents: InitialContents, graph: TaskGraph, memories: Memories) -> None:
    blocks, sizes = contents.blocks, graph.sizes_in(contents.memory)
    memory = memories.of(contents.gpu, contents.memory)
    request = memory.pool.prepare(blocks, [sizes[b] for b in blocks])
    carved = graph.compressed.carved_by(blocks) if graph.compressed and contents.memory == DEVICE else 0
    if not memory.acquire(BlockRequest(request, carved), 0):
        largest = largest_first((graph.blocks[b].id, sizes[b]) for b in blocks)
        capacity = memory.pool.capacity or 0
        what = "what is persistent, before the first kernel,"
        hole = memory.pool.largest_hole
        raise OutOfMemoryError(what, memory.name, request[1], capacity, hole, capacity, 0, largest)


def _residency(
    program: Program,
    graph: TaskGraph,
    node: NodeSpec,
    env: InstantOrder,
    capacity: int | None,
    reclaim: Reclaim,
    *,
    sees_future: bool,
) -> Residency | None:
    """What runs the kernels of a program that acquires no memory, None for others.

    Raises `ProgramError` for several GPUs.
    """
    if program.residency is None:
        return None
    if program.gpus > 1:
        raise ProgramError("a program that acquires no memory must use one GPU; this one uses several")
    implicit = ImplicitStreams(program.streams, graph)
    if isinstance(program.residency, Paged):
        ahead = any(
            isinstance(each, Copy) for part in program.segments for code in part.streams.values() for each in code
        )
        return PageFaults(
            env, graph, node, program.residency, implicit, capacity, reclaim, ahead=ahead, sees_future=sees_future
        )
    return RemoteAccess(env, graph, node, implicit, capacity)


def _steady(timeline: Timeline, ran: Ran) -> bool | None:
    """Whether the last two iterations took the same time and ended with the same pool states."""
    if len(timeline.iteration_ends_ns) < 2:
        return None
    last, before = timeline.window(-1), timeline.window(-2)
    same_time = last[1] - last[0] == before[1] - before[0]
    return same_time and all(after == before for *_, before, after in ran.states)
