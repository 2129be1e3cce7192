"""The passes of an iteration: forward with the backward that follows it, once for each micro-batch."""

from __future__ import annotations

from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import Phase


class Pass(NamedTuple):
    """One forward pass with the backward that follows it: its kernels, from `first` up to `stop`."""

    first: int
    stop: int


def passes_of(graph: TaskGraph) -> list[Pass]:
    """The passes of an iteration: one, or one for each micro-batch, whether it was recorded or is a round.

    A round of the optimizer alone is none.

    >>> from simgpu.trace.chain import chain
    >>> passes_of(TaskGraph.of(chain([5, 7], [10, 14], [100, 200])))
    [Pass(first=0, stop=4)]
    """
    passes = []
    for part in graph.rounds:
        first, phase = part.first, Phase.FORWARD
        for k in range(part.first, part.stop):
            if graph.kernels[k].phase is Phase.FORWARD and phase is Phase.BACKWARD:
                passes.append(Pass(first, k))
                first = k
            phase = graph.kernels[k].phase
        passes.append(Pass(first, part.stop))
    return [each for each in passes if any(graph.kernels[k].phase is Phase.FORWARD for k in range(*each))]
