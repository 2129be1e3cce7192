"""`largest`: the few largest feature maps go to the host in their longest gap; everything else stays.

An example of a policy in a package of its own: the entry point in `pyproject.toml` is all that registers it.
"""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.errors import InputError
from simgpu.graph.taskgraph import Gap, TaskGraph
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.trace.model import BlockKind


@dataclass(frozen=True)
class Largest(Policy):
    """Swaps `count` feature maps, largest first, each fetched one kernel before it is needed."""

    name = "largest"
    summary = "swap the largest feature maps out in their longest gap"
    source = "an example, unpublished"

    count: int = parameter(1, "how many feature maps are swapped, 1 or more")

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for a count below 1."""
        if self.count < 1:
            raise InputError.single("", "parameters.count", f"{self.count} is too few", "give 1 or more")
        graph = context.graph
        gaps = sorted(_longest_gaps(graph), key=lambda gap: (-graph.sizes[gap.block], gap.block))
        swaps = tuple(Swap(gap.block, gap.after, gap.before, gap.before - 1) for gap in gaps[: self.count])
        return lower(graph, Placement(swaps))


def _longest_gaps(graph: TaskGraph) -> list[Gap]:
    activations = [b for b, block in enumerate(graph.blocks) if block.kind is BlockKind.ACTIVATION and block.bytes]
    return [max(gaps, key=lambda gap: gap.before - gap.after) for b in activations if (gaps := list(graph.gaps(b)))]
