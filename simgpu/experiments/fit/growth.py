"""How the memory of a candidate grows with the size of the step: `Growth`, from which a search takes its guesses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.program.instructions import DEVICE, HOST, Acquire, Await, Instruction, Program, Release, Signal
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import BlockKind, Phase

#: Blocks of samples, which grow although they are there before the iteration.
_SAMPLES = (BlockKind.INPUT, BlockKind.LABEL)


@dataclass(frozen=True, eq=False)
class Growth:
    """Device memory after each request of one iteration, in bytes, as if copies took no time and every block grew as
    the size does or not at all. It is a guess, which runs confirm.

    constant: of blocks that do not grow. growing: of the others, for each unit of the size. least: bytes that every run
    at the plan's own size needs at once, whatever copies take; 0 where that is not known.
    """

    constant: NDArray[np.float64]
    growing: NDArray[np.float64]
    least: int

    @classmethod
    def of(cls, program: Program, graph: TaskGraph, size: int, unlimited: Collection[str] = (HOST,)) -> Growth:
        """The growth of a program on the graph it was planned for, of an iteration of this size.

        unlimited: memories in which no request waits.

        >>> from simgpu.policies.common.framework import plain_framework
        >>> from simgpu.trace.chain import chain
        >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
        >>> growth = Growth.of(plain_framework(graph), graph, 1)
        >>> growth.largest(1000), growth.least
        (3, 300)
        """
        graph = transformed(graph, program.transforms)
        grows = _growing(graph)
        constant, growing = (
            [size if each is which else 0 for size, each in zip(graph.sizes, grows, strict=True)]
            for which in (False, True)
        )
        levels = [(sum(constant[b] for b in program.resident), sum(growing[b] for b in program.resident))]
        walk = _Walk(program)
        # Blocks that compute has acquired and no stream can have released: compute waits for nothing to get others.
        certain = set(program.resident)
        least = now = sum(graph.sizes[b] for b in certain)
        for stream, request in walk.requests():
            sign, (before, growing_before) = 1 if isinstance(request, Acquire) else -1, levels[-1]
            change = sum([constant[b] for b in request.blocks])
            growing_change = sum([growing[b] for b in request.blocks])
            levels.append((before + sign * change, growing_before + sign * growing_change))
            if isinstance(request, Release):
                now -= sum([graph.sizes[b] for b in request.blocks if b in certain])
                certain.difference_update(request.blocks)
            elif stream.role == "compute":
                now += change + growing_change
                certain.update(request.blocks)
                least = max(least, now)
        columns = np.array(levels, dtype=np.float64)
        known = walk.is_whole and walk.memories <= {DEVICE, *unlimited} and _is_simple(program)
        return cls(columns[:, 0], columns[:, 1] / size, least if known else 0)

    def peak(self, size: int) -> int:
        """The most bytes at a size."""
        return int((self.constant + self.growing * size).max())

    def largest(self, budget: int) -> int | None:
        """The largest size whose peak is within a budget; 0 for none, None for every size."""
        if (self.constant > budget).any():
            return 0
        grows = self.growing > 0
        if not grows.any():
            return None
        return int(((budget - self.constant[grows]) / self.growing[grows]).min())


def _growing(graph: TaskGraph) -> list[bool]:
    """Which blocks grow with the samples: those that do not persist, have no weight's shape, and are not first used by
    the optimizer; and the samples."""
    weights = {block.shape for block in graph.blocks if block.kind is BlockKind.WEIGHT and block.shape}
    return [
        block.kind in _SAMPLES
        or (
            not (block.persistent or block.kind is BlockKind.WEIGHT_GRADIENT or block.shape in weights)
            and not (uses and graph.kernels[uses[0]].phase is Phase.OPTIMIZER)
        )
        for block, uses in zip(graph.blocks, graph.uses, strict=True)
    ]


def _is_simple(program: Program) -> bool:
    """Whether one compute stream runs an iteration at once, with blocks that are acquired."""
    computing = [stream for stream in program.streams if stream.role == "compute"]
    return len(computing) == 1 and [each.repeat for each in program.segments] == [1] and program.residency is None


@dataclass(slots=True)
class _Walk:
    """One iteration in which every stream goes on until it waits for an event, and compute only when no other can: what
    others do has then been done as early as any timing lets it.

    is_whole: whether it reached the end. memories: in which memory is requested.
    """

    program: Program
    is_whole: bool = True
    memories: set[str] = field(default_factory=set)

    def requests(self) -> Iterator[tuple[StreamId, Acquire | Release]]:
        """The requests for device memory, in order, each with its stream."""
        happened: set[int] = set()
        for segment in self.program.segments:
            streams = sorted(segment.streams, key=lambda stream: (stream.role == "compute", stream.rank))
            code = [tuple(segment.streams[stream]) for stream in streams]
            at, moves = [0] * len(streams), True
            while moves:
                moves = False
                for number, stream in enumerate(streams):
                    stop = _stop(code[number], at[number], happened)
                    for instruction in code[number][at[number] : stop]:
                        if type(instruction) is Acquire or type(instruction) is Release:
                            self.memories.add(instruction.memory)
                            if instruction.memory == DEVICE:
                                yield stream, instruction
                    if stop > at[number]:
                        at[number], moves = stop, True
                        break  # what it has signalled may let others go on
            self.is_whole &= at == [len(each) for each in code]


def _stop(code: Sequence[Instruction], at: int, happened: set[int]) -> int:
    """How far a stream goes on: to an event that has not happened, or behind the next that it signals itself."""
    for place in range(at, len(code)):
        instruction = code[place]
        if type(instruction) is Await and not instruction.lag and instruction.event not in happened:
            return place
        if type(instruction) is Signal:
            happened.add(instruction.event)
            return place + 1
    return len(code)
