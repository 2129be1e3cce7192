"""A training step of a compiled model: its recorded iteration, and PyTorch's partitioner, to ask for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from simgpu.plans.compiled.graph import Graph, graph_of
from simgpu.plans.compiled.iteration import CompiledIteration
from simgpu.plans.compiled.partitions import Joint, Query
from simgpu.plans.compiled.program import Choice
from simgpu.trace.model import Trace


@dataclass(frozen=True)
class CompiledStep:
    """trace: the iteration without a plan, its graphs run operator by operator. joint: the graph of forward and
    backward. micro_batches: how often the iteration runs it before the optimizer steps."""

    trace: Trace
    joint: Joint
    micro_batches: int = 1

    @cached_property
    def iteration(self) -> CompiledIteration:
        """The recorded iteration, with the split that it ran."""
        return CompiledIteration(self.trace, self.joint.usual(), self.micro_batches)

    @cached_property
    def query(self) -> Query:
        """What PyTorch's partitioner asks."""
        return self.joint.split(())[1]

    @property
    def has_choice(self) -> bool:
        """Whether the partitioner lets a solver choose: not where it saves less than the size of its inputs anyway."""
        return bool(self.query.known)

    @cached_property
    def choice(self) -> Choice:
        """What the partitioner leaves to choose."""
        graph = self.joint.graph
        joint = graph_of(graph)
        nodes = {node.name: node for node in graph.graph.nodes}
        impure = {
            name
            for name, node in nodes.items()
            if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        }
        seeds = {name for name, node in nodes.items() if "inductor_seed" in str(node.target)}
        times = {call.node: self.iteration.time_ns(call.node) for call in joint.calls if self.iteration.runs(call.node)}
        return Choice(joint, _sizes(joint, nodes), times, impure | seeds, self.query.forward)


def _sizes(joint: Graph, nodes: Mapping[str, Any]) -> dict[str, int]:
    sizes = {}
    for call in joint.calls:
        for memory in call.writes:
            name, _, place = memory.partition(".")
            value = nodes[name].meta["val"]
            sizes[memory] = int((value[int(place)] if place else value).untyped_storage().nbytes())
    return sizes
