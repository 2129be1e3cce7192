"""A framework that knows nothing of memory policies, nor of compressed memory."""

from __future__ import annotations

from dataclasses import replace

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import Uncompressed, uncompressed
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement


def plain_framework(graph: TaskGraph) -> Program:
    """The recorded iteration as it was: everything resident over its recorded lifetime, nothing compressed.

    >>> from simgpu.trace.chain import chain
    >>> plain_framework(TaskGraph.of(chain([5], [7], [100]))).transforms
    ()
    """
    program = lower(uncompressed(graph), Placement(), recorded_lifetimes=True)
    if graph.compressed is None:
        return program
    return replace(program, transforms=(Uncompressed(), *program.transforms))
