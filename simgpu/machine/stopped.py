"""The error of a run that stops before all streams have finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.containers import Container
from simgpu.machine.simulator import Simulator, Stream
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


@dataclass(frozen=True, slots=True)
class StoppedRun:
    """Explains why a run stopped before all streams had finished."""

    simulator: Simulator
    program: Program
    graph: TaskGraph

    def error(self) -> Exception:
        """The error that names who waits. Later timers are outdated: the run stopped when the last work ended."""
        streams, memories = self.simulator.streams, self.simulator.memories.all
        now = max(stream.ended for stream in streams)
        for gpu, memory in enumerate(memories):
            if memory.waiting:
                rank, request, _ = memory.waiting[0]
                stream = streams[rank]
                requested, pool = request.prepared[1], memory.pool
                capacity = pool.capacity or 0
                free, hole, blocks = capacity - pool.used, pool.largest_hole, self._blocks_in(memory)
                first = next((s for s in streams if s.id.gpu == gpu), streams[0])
                kernel, waiting = self._next_kernel(first), self._next_work(stream)
                return OutOfMemoryError(waiting, memory.name, requested, free, hole, capacity, now, blocks, kernel)
        waiting = ", ".join(self._next_work(s) for s in streams if not s.finished)
        return ProgramError(f"the program stops at {now} ns although no stream waits for memory: {waiting}")

    def _remaining(self, stream: Stream) -> Sequence[Instruction]:
        """The remaining instructions of a stream's segment."""
        return self.program.segments[stream.segment].streams.get(stream.id, ())[stream.position :]

    def _next_work(self, stream: Stream) -> str:
        work = next((i for i in self._remaining(stream) if isinstance(i, WORK)), None)
        if isinstance(work, Launch):
            kernel = self.graph.kernels[work.kernel]
            return f"kernel {kernel.id} ({kernel.op})"
        if work is None:
            return f"stream {stream.id}"
        what = "codec" if isinstance(work, Encode | Decode) else "copy"
        return f"{what} of block {self.graph.blocks[work.block].id} on {stream.id}"

    def _next_kernel(self, stream: Stream) -> str:
        """The next kernel that a stream would run."""
        launches = (i for i in self._remaining(stream) if isinstance(i, Launch))
        return next((self.graph.kernels[launch.kernel].id for launch in launches), "")

    def _blocks_in(self, memory: Container) -> tuple[tuple[str, int], ...]:
        """Blocks in this memory, largest first; counted from the instructions that streams have executed."""
        memories = self.simulator.memories
        counts: Counter[int] = Counter(
            b
            for each in self.program.initial_contents
            if memories.of(each.gpu, each.memory) is memory
            for b in each.blocks
        )
        for stream in self.simulator.streams:
            gpu = stream.id.gpu
            for index, segment in enumerate(self.program.segments):
                done = stream.iteration * segment.repeat + (segment.repeat if index < stream.segment else 0)
                partial = 0
                if stream.finished:
                    done = self.simulator.iterations * segment.repeat
                elif index == stream.segment:
                    done += stream.repetition
                    partial = stream.position
                for position, instruction in enumerate(segment.streams.get(stream.id, ())):
                    if not isinstance(instruction, Acquire | Release):
                        continue
                    if memories.of(gpu, instruction.memory) is memory:
                        times = done + (position < partial)
                        for b in instruction.blocks:
                            counts[b] += times if isinstance(instruction, Acquire) else -times
        sizes = self.graph.sizes if memory in memories.devices else self.graph.copy_sizes
        return largest_first(
            (self.graph.blocks[b].id, sizes[b]) for b, count in counts.items() if count > 0 and sizes[b]
        )


def largest_first(blocks: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Named sizes, largest first, then by name."""
    return tuple(sorted(blocks, key=lambda block: (-block[1], block[0])))
