"""The error of a run that stops before all streams have finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.containers import Container, Memories
from simgpu.machine.simulator import Simulator
from simgpu.memory.caching.pool import CachingPool
from simgpu.program.instructions import (
    WORK,
    Acquire,
    Decode,
    Encode,
    Instruction,
    Launch,
    Program,
    Release,
)
from simgpu.timeline.streams import StreamId
from simgpu.units import format_bytes


class Reached(NamedTuple):
    """How far a stream has got in the program; a stream that has finished is at its last instruction."""

    id: StreamId
    iteration: int
    segment: int
    repetition: int
    position: int
    finished: bool


class Unmet(NamedTuple):
    """A request for memory that is never granted: the memory's place among all, the stream's rank, the bytes with
    padding, and the memory's bytes in use, largest hole, and bytes of PyTorch's segments, if it has them."""

    memory: int
    stream: int
    requested: int
    used: int
    hole: int
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class StoppedRun:
    """Explains why a run stopped before all streams had finished.

    streams: how far each has got. iterations: how many were to run. now: when the last work ended.
    unmet: the first request in the queue of each memory that has one, in the order of memories.
    """

    program: Program
    graph: TaskGraph
    memories: Memories
    streams: Sequence[Reached]
    iterations: int
    now: int
    unmet: Sequence[Unmet]

    @classmethod
    def of(cls, simulator: Simulator, program: Program, graph: TaskGraph) -> StoppedRun:
        """A run on SimPy. Later timers are outdated: it stopped when the last work ended."""
        streams = [
            Reached(s.id, s.iteration, s.segment, s.repetition, s.position, s.finished) for s in simulator.streams
        ]
        memories = enumerate(simulator.memories.all)
        unmet = [Unmet(place, *_first_request(each)) for place, each in memories if each.waiting]
        now = max(stream.ended for stream in simulator.streams)
        return cls(program, graph, simulator.memories, streams, simulator.iterations, now, unmet)

    def error(self) -> Exception:
        """The error that names who waits."""
        streams, now = self.streams, self.now
        if not self.unmet:
            waiting = ", ".join(self._next_work(s) for s in streams if not s.finished)
            return ProgramError(f"the program stops at {now} ns although no stream waits for memory: {waiting}")
        place, rank, requested, used, hole, reserved = self.unmet[0]
        memory = self.memories.all[place]
        capacity = memory.pool.capacity or 0
        first = next((s for s in streams if s.id.gpu == place), streams[0])
        kernel, waiting, blocks = self._next_kernel(first), self._next_work(streams[rank]), self._blocks_in(memory)
        # Other GPUs wait for the same reason, but a memory behind this one may be the cause.
        others = tuple(self._other(each) for each in self.unmet[1:] if each.memory >= len(self.memories.devices))
        if reserved:
            others = (_of_segments(reserved, used), *others)
        return OutOfMemoryError(
            waiting, memory.name, requested, capacity - used, hole, capacity, now, blocks, kernel, others
        )

    def _other(self, unmet: Unmet) -> str:
        memory = self.memories.all[unmet.memory]
        capacity = memory.pool.capacity or 0
        free = f"{format_bytes(capacity - unmet.used)} of {format_bytes(capacity)} are free"
        waiting = self._next_work(self.streams[unmet.stream])
        return f"{waiting} requests {format_bytes(unmet.requested)} of {memory.name} memory, {free}"

    def _remaining(self, stream: Reached) -> Sequence[Instruction]:
        """The remaining instructions of a stream's segment."""
        return self.program.segments[stream.segment].streams.get(stream.id, ())[stream.position :]

    def _next_work(self, stream: Reached) -> str:
        work = next((i for i in self._remaining(stream) if isinstance(i, WORK)), None)
        if isinstance(work, Launch):
            kernel = self.graph.kernels[work.kernel]
            return f"kernel {kernel.id} ({kernel.op})"
        if work is None:
            return f"stream {stream.id}"
        what = "codec" if isinstance(work, Encode | Decode) else "copy"
        return f"{what} of block {self.graph.blocks[work.block].id} on {stream.id}"

    def _next_kernel(self, stream: Reached) -> str:
        """The next kernel that a stream would run."""
        launches = (i for i in self._remaining(stream) if isinstance(i, Launch))
        return next((self.graph.kernels[launch.kernel].id for launch in launches), "")

    def _blocks_in(self, memory: Container) -> tuple[tuple[str, int], ...]:
        """Blocks in this memory, largest first; counted from the instructions that streams have executed."""
        memories = self.memories
        counts: Counter[int] = Counter(
            b
            for each in self.program.initial_contents
            if memories.of(each.gpu, each.memory) is memory
            for b in each.blocks
        )
        for stream in self.streams:
            gpu = stream.id.gpu
            for index, segment in enumerate(self.program.segments):
                done = stream.iteration * segment.repeat + (segment.repeat if index < stream.segment else 0)
                partial = 0
                if stream.finished:
                    done = self.iterations * segment.repeat
                elif index == stream.segment:
                    done += stream.repetition
                    partial = stream.position
                for position, instruction in enumerate(segment.streams.get(stream.id, ())):
                    # Not isinstance: these are the types themselves, and a program may have many instructions.
                    if type(instruction) is not Acquire and type(instruction) is not Release:
                        continue
                    if memories.of(gpu, instruction.memory) is memory:
                        times = done + (position < partial)
                        for b in instruction.blocks:
                            counts[b] += times if type(instruction) is Acquire else -times
        sizes = self.graph.sizes if memory in memories.devices else self.graph.copy_sizes
        return largest_first(
            (self.graph.blocks[b].id, sizes[b]) for b, count in counts.items() if count > 0 and sizes[b]
        )


def largest_first(blocks: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Named sizes, largest first, then by name."""
    return tuple(sorted(blocks, key=lambda block: (-block[1], block[0])))


def _of_segments(reserved: int, used: int) -> str:
    """Why free memory may not serve a request to PyTorch's allocator."""
    free = format_bytes(reserved - used)
    return (
        f"PyTorch's allocator has reserved {format_bytes(reserved)}, of which {free} are free, but in blocks that are "
        "too small, or in segments of the other pool (requests up to 1 MiB have their own); a new segment for a "
        "request of 1 to 10 MiB has 20 MiB"
    )


def _first_request(memory: Container) -> tuple[int, int, int, int, int]:
    rank, request, _ = memory.waiting[0]
    pool = memory.pool
    reserved = pool.allocator.statistics.reserved if isinstance(pool, CachingPool) else 0
    return rank, request.prepared[1], pool.used, pool.largest_hole, reserved
