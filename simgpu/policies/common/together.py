"""What policies share that are for one GPU of several which train together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.updates import updates_of
from simgpu.hardware.collectives import EXCHANGES, Group
from simgpu.hardware.sharing import one_of
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import PlanContext, Policy, parameter, policy_label
from simgpu.policies.calling import planned
from simgpu.policies.common.host_optimizer import check_optimizer
from simgpu.policies.common.inside import Outer
from simgpu.policies.common.inside_budget import planned_inside
from simgpu.program.instructions import Program
from simgpu.program.shards import ExchangeCosts
from simgpu.trace.model import BlockKind

#: A note on each result.
ONE_GPU = "samples per second are those of one GPU"


@dataclass(frozen=True)
class TrainsTogether(Outer):
    """One GPU of several, each with samples of its own; all begin their collectives together."""

    gpus: int = parameter(8, "number of GPUs that train together, over all nodes")
    nodes: int = parameter(1, "number of nodes that they are on, as many on each")

    @property
    def group(self) -> Group:
        """The GPUs. Raises `InputError` for numbers that do not fit together."""
        gpus, nodes = self.gpus, self.nodes
        if gpus < 1 or nodes < 1 or gpus % nodes:
            what = f"{gpus} GPUs cannot be divided evenly among {nodes} nodes"
            raise InputError.single("", "parameters.nodes", what, "give a number of nodes that divides the GPUs")
        return Group(gpus, nodes)

    def around(self, inside: Policy) -> TrainsTogether:
        """The same with another policy inside."""
        values: dict[str, Any] = self.parameters | {"inside": policy_label(inside)}
        return type(self)(**values)

    def machine(self, node: NodeSpec) -> NodeSpec:
        """What one of the GPUs has of its node; a node of which that has been taken already stays as it is."""
        inner = self.inner.machine(node)
        return inner if inner.gpus == 1 and inner.peers is not None else one_of(inner, self.group.local)

    def plan(self, context: PlanContext) -> Program:
        """One iteration. With one GPU that of the policy `inside`.

        Raises `InputError` for a node that does not state the links which the GPUs need, for several compute streams,
        for an optimizer that does not come last, for a trace of one of several GPUs, and for a policy inside that moves
        what the GPUs share.
        """
        if self.group.ranks == 1:
            return planned(self.inner, context)
        if isinstance(self.inner, TrainsTogether):
            what = f"{self.inner.name} inside {self.name} would divide the GPUs twice"
            raise InputError.single("", "parameters.inside", what, "give one of them")
        check_optimizer(context.graph, self.name)
        _check_alone(context.graph)
        exchanging = self.exchanging(context.graph, ExchangeCosts(self.group, context.node))
        return planned_inside(self.inner, context, exchanging, self.shared, self.smaller(context.graph))

    def shared(self, graph: TaskGraph) -> frozenset[int]:
        """Weights, their gradients and optimizer state, which a policy inside leaves where the GPUs have them."""
        weights = (b for b, block in enumerate(graph.blocks) if block.kind is BlockKind.WEIGHT and block.persistent)
        updated = (b for weight, gradient, state in updates_of(graph)[0] for b in (weight, gradient, *state))
        return frozenset((*weights, *updated))

    def smaller(self, graph: TaskGraph) -> Mapping[int, int]:
        """Bytes of optimizer state and of what the optimizer allocates, where a GPU has a part of it."""
        return {}

    @abstractmethod
    def exchanging(self, graph: TaskGraph, costs: ExchangeCosts) -> Callable[[Program], Program]:
        """Adds to a program of the policy inside what the GPUs exchange."""


def together(policy: Policy) -> TrainsTogether | None:
    """The policy if it is for one GPU of several, and None otherwise: what holds for one GPU alone holds for it then.

    >>> from simgpu.policies.registry import make_policy
    >>> [together(make_policy("fsdp", {"gpus": gpus})) is None for gpus in (1, 2)]
    [True, False]
    """
    return policy if isinstance(policy, TrainsTogether) and policy.gpus > 1 else None


def _check_alone(graph: TaskGraph) -> None:
    """Raises `InputError` for a trace whose kernels exchange data with other GPUs, which share the node's links."""
    exchange = next((each for each in graph.kernels if each.op in EXCHANGES), None)
    if exchange is not None:
        what = f"kernel '{exchange.id}' exchanges data: the trace is already that of one of several GPUs"
        remedy = "model it for one GPU, without --tensor-parallel and --megatron"
        raise InputError.single(graph.trace.name, "policy", what, remedy)
