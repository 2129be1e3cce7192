"""How the memory of a candidate grows with the size of the step: `Growth`, from which a search takes its guesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.program.instructions import DEVICE, Acquire, Await, Instruction, Program, Release, Signal
from simgpu.trace.model import BlockKind, Phase

#: Blocks of samples, which grow although they are there before the iteration.
_SAMPLES = (BlockKind.INPUT, BlockKind.LABEL)


@dataclass(frozen=True, eq=False)
class Growth:
    """Device memory after each request of one iteration, in bytes, as if copies took no time and every block grew as
    the size does or not at all. It is a guess, which runs confirm.

    constant: of blocks that do not grow. growing: of the others, for each unit of the size. is_bound: whether no run
    needs less memory at the size of the plan, as one stream makes all requests, whose order no time changes, and they
    are for device memory alone.
    """

    constant: NDArray[np.float64]
    growing: NDArray[np.float64]
    is_bound: bool

    @classmethod
    def of(cls, program: Program, graph: TaskGraph, size: int) -> Growth:
        """The growth of a program on the graph it was planned for, of an iteration of this size.

        >>> from simgpu.policies.common.framework import plain_framework
        >>> from simgpu.trace.chain import chain
        >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
        >>> Growth.of(plain_framework(graph), graph, 1).largest(1000)
        3
        """
        graph = transformed(graph, program.transforms)
        grows = _growing(graph)
        constant, growing = (
            [size if each is which else 0 for size, each in zip(graph.sizes, grows, strict=True)]
            for which in (False, True)
        )
        levels = [(sum(constant[b] for b in program.resident), sum(growing[b] for b in program.resident))]
        for request in _requests(program):
            sign, (before, growing_before) = 1 if isinstance(request, Acquire) else -1, levels[-1]
            change, growing_change = (sum([sizes[b] for b in request.blocks]) for sizes in (constant, growing))
            levels.append((before + sign * change, growing_before + sign * growing_change))
        columns = np.array(levels, dtype=np.float64)
        return cls(columns[:, 0], columns[:, 1] / size, _by_one_stream(program))

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


def _by_one_stream(program: Program) -> bool:
    """Whether one stream makes all requests for memory, and they are for device memory."""
    makers = {
        (stream, instruction.memory)
        for segment in program.segments
        for stream, code in segment.streams.items()
        for instruction in code
        if isinstance(instruction, Acquire | Release)
    }
    return len(makers) == 1 and all(memory == DEVICE for _, memory in makers)


def _requests(program: Program) -> Iterator[Acquire | Release]:
    """The requests for device memory of one iteration, where every stream goes on until it waits for an event, other
    streams before those that compute."""
    for segment in program.segments:
        happened: Counter[int] = Counter()
        streams = sorted(segment.streams, key=lambda stream: (stream.role == "compute", stream.rank))
        waiting = {stream: iter(segment.streams[stream]) for stream in streams}
        at: dict[object, Instruction | None] = {stream: next(code, None) for stream, code in waiting.items()}
        while True:
            stream = next((each for each in streams if _goes_on(at[each], happened)), None)
            if stream is None:
                break
            instruction = at[stream]
            if isinstance(instruction, Acquire | Release) and instruction.memory == DEVICE:
                yield instruction
            elif isinstance(instruction, Signal):
                happened[instruction.event] += 1
            at[stream] = next(waiting[stream], None)


def _goes_on(instruction: Instruction | None, happened: Counter[int]) -> bool:
    if isinstance(instruction, Await):
        return instruction.lag > 0 or happened[instruction.event] > 0
    return instruction is not None
