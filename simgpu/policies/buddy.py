"""`buddy`: everything resident in compressed memory (Buddy Compression, Choukse et al., ISCA 2020).

The node defines the buddy memory and the target ratios of its allocations, so every policy can use it: vDNN over buddy
memory is `vdnn` on a node with `gpu.buddy`. This policy is the paper's own use, a plain framework whose allocations are
annotated with target ratios (section 3.4). It requires a node with buddy memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import uncompressed
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.framework import plain_framework
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.trace.entries import is_of_entries


@dataclass(frozen=True)
class Buddy(Policy):
    """A plain framework in compressed memory: recorded lifetimes, every block at its target ratio."""

    when: Literal["always", "needed"] = parameter(
        "always", "needed: nothing is compressed if the iteration fits without (section 3.3)"
    )

    name = "buddy"
    summary = "a plain framework in compressed memory; entries that overflow lie in a buddy memory"
    source = "Choukse et al., ISCA 2020, sections 3.2 to 3.5"
    libraries = ("numba",)

    def plan(self, context: PlanContext) -> Program:
        """The recorded iteration in compressed memory.

        Raises `InputError` for a node without compressed memory, or a trace without compressed sizes of its blocks.
        """
        if context.graph.compressed is None:
            what = f"node {context.node.name} has no compressed memory"
            remedy = "use one that has, such as buddy-gpu, or define gpu.buddy"
            raise InputError.single("", "node.gpu.buddy", what, remedy)
        if not _has_entry_sizes(context.graph):
            trace = context.graph.trace
            what = "the trace has no compressed sizes of its blocks' memory-entries"
            remedy = "record it with --codec bpc, or model it (trace.compressibility=true, zoo build --compressibility)"
            raise InputError.single(trace.name or trace.info.model, "compressibility", what, remedy)
        if self.when == "needed" and context.graph.sizes != uncompressed(context.graph).sizes:
            plain = plain_framework(context.graph)
            try:
                context.trial(plain)
            except OutOfMemoryError:
                pass
            else:
                return replace(plain, notes=(*plain.notes, "fits without compression: nothing is compressed"))
        return lower(context.graph, Placement(), recorded_lifetimes=True)


def _has_entry_sizes(graph: TaskGraph) -> bool:
    return any(map(is_of_entries, graph.trace.compressibility))
