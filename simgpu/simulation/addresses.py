"""Where the blocks and segments of a run with PyTorch's allocator are in a GPU's memory, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.containers import BlockRequest
from simgpu.machine.run import run_program
from simgpu.memory.caching.pool import CachingPool
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.program.instructions import Program
from simgpu.simulation.result import Result
from simgpu.timeline.addresses import MemoryRange


def address_ranges(result: Result) -> tuple[MemoryRange, ...]:
    """The ranges of addresses of a run, by GPU, then by their begin; segments before the blocks in them.

    Empty for a run with another pool. The run's program runs again, on SimPy: its requests and their order are those of
    the run, so that a second allocator that gets them does the same.

    >>> import simgpu
    >>> trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    >>> ranges = address_ranges(simgpu.simulate(trace, node, "none", pool="caching"))
    >>> [(each.address, each.bytes) for each in ranges if not each.block][:3]
    [(0, 2097152), (2097152, 2097152), (4194304, 20971520)]
    """
    if result.pool != "caching":
        return ()
    limit = None if result.program.unlimited_memory else result.budget
    gpus = [_Memory(result, limit, gpu) for gpu in range(result.program.gpus)]

    def observe(gpu: int, now: int, acquired: bool | None, request: BlockRequest) -> None:
        gpus[gpu].repeat(now, acquired, request)

    run_again(
        result.program,
        result.graph,
        result.node,
        limit,
        observe,
        iterations=result.iterations,
        settings=result.allocator_settings,
        context=result.context or 0,
    )
    timeline = result.timeline
    end = max(*timeline.iteration_ends_ns, int(timeline.end_ns.max(initial=0)))
    return tuple(each for memory in gpus for each in memory.ranges(end))


def run_again(
    program: Program,
    graph: TaskGraph,
    node: NodeSpec,
    limit: int | None,
    observe: Callable[[int, int, bool | None, BlockRequest], None],
    *,
    iterations: int,
    settings: AllocatorSettings | None,
    context: int,
) -> None:
    """Run a program again with PyTorch's allocator, and let `observe` see each request for memory.

    graph: with the program's transforms. limit: bytes of each GPU's memory, None for unlimited.
    """
    run_program(
        replace(program, transforms=()),
        graph,
        node,
        budget=limit,
        iterations=iterations,
        pool="caching",
        allocator=settings,
        context=context,
        engine="simpy",
        observe=observe,
    )


class _Memory:
    """The memory of one GPU, which repeats what the run requests.

    now: nanoseconds. held: from when, and where, each block is. segments: of each range of addresses that has memory,
    by its first one, the end, and the time from which on.
    """

    def __init__(self, result: Result, limit: int | None, gpu: int) -> None:
        self.pool = CachingPool(limit, result.node.gpu.alignment, result.allocator_settings, result.context or 0)
        self.pool.allocator.observe = self._segment
        self.gpu = gpu
        self.now = 0
        self.held: dict[int, MemoryRange] = {}
        self.segments: dict[int, tuple[int, int]] = {}
        self._names = [block.id for block in result.graph.blocks]
        self._ended: list[MemoryRange] = []

    def repeat(self, now: int, acquired: bool | None, request: BlockRequest) -> None:
        """Grant, refuse (None) or release a request as the run did; what a refused one frees is freed here too."""
        self.now = now
        if acquired is not False:
            granted = self.pool.acquire(request.prepared)
            assert granted == bool(acquired)
            for block, _ in request.prepared[2] if granted else ():
                held = self.pool.held[block]
                self.held[block] = MemoryRange(self.gpu, self._names[block], held.address, held.size, now, now)
            return
        for block, _ in request.prepared[2]:
            self._end(self.held.pop(block))
        self.pool.release(request.prepared)

    def ranges(self, end: int) -> list[MemoryRange]:
        """All ranges, at the end of the run."""
        self.now = end
        for block in list(self.held):
            self._end(self.held.pop(block))
        for address, (stop, _) in list(self.segments.items()):
            self._segment("segment_free", address, stop - address, 0)
        return sorted(self._ended, key=lambda each: (each.start_ns, each.block != "", each.address, each.end_ns))

    def _end(self, held: MemoryRange) -> None:
        ended = MemoryRange(held.gpu, held.block, held.address, held.bytes, held.start_ns, self.now)
        self._ended.append(ended)

    def _segment(self, action: str, address: int, size: int, _: int) -> None:
        """Memory comes from the device, or goes back: of an expandable segment perhaps a part of what came at once."""
        if action in ("segment_alloc", "segment_map"):
            self.segments[address] = (address + size, self.now)
            return
        for start, (end, since) in sorted(self.segments.items()):
            low, high = max(start, address), min(end, address + size)
            if low < high:
                del self.segments[start]
                self._ended.append(MemoryRange(self.gpu, "", low, high - low, since, self.now))
                rest = [(start, low), (high, end)]
                self.segments.update({begin: (stop, since) for begin, stop in rest if begin < stop})
