"""Policies whose host updates weights: what they demand of the trace, and how fast updates are."""

from __future__ import annotations

from fractions import Fraction

from simgpu.errors import InputError, Problem
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.updates import updates_of
from simgpu.policies.base import PlanContext, require_one_stream
from simgpu.program.lowering import require_reads


def check_shares(**shares: float) -> None:
    """Raises `InputError` for parameters that are no shares."""
    wrong = [(name, value) for name, value in shares.items() if not 0 < value <= 1]
    if wrong:
        remedy = "give a number above 0, at most 1"
        raise InputError(Problem("", f"parameters.{n}", f"{v!r} is not a share", remedy) for n, v in wrong)


def check_optimizer(graph: TaskGraph, policy: str) -> None:
    """Raises `InputError` for a trace without an optimizer that comes last, with several compute streams, or of GPUs
    that train together."""
    require_one_stream(graph, policy)
    require_reads(graph)
    if graph.exchanged:
        what = f"{policy} is for one GPU, not for several that train together"
        raise InputError.single(graph.trace.name, "policy", what, "run it on one GPU")
    _, end = updates_of(graph)
    if end == len(graph.kernels):
        what = f"the trace has no optimizer, and {policy} is about its updates"
        raise InputError.single(graph.trace.name, "kernels.phase", what, "record or model it with an optimizer")


def check_may_move(context: PlanContext, policy: str) -> None:
    """Raises `InputError` where weights, gradients and optimizer state belong to a policy around this one."""
    if context.resident(context.graph):
        what = f"{policy} moves weights, gradients or optimizer state, of which each GPU has a part here"
        remedy = "choose a policy that leaves them on the GPU, such as checkpoint"
        raise InputError.single("", "parameters.inside", what, remedy)


def update_bandwidth(context: PlanContext, share: float) -> int:
    """Bytes per second that updates reach. Raises `InputError` where the node does not say."""
    bandwidth = context.node.host.memory_bandwidth
    if bandwidth is None:
        what = f"is not set for node {context.node.name}, so the time of updates on its host is unknown"
        remedy = "set it to what the host's memory can transfer, such as '51.2 GB/s' for two channels of DDR4-3200"
        raise InputError.single("", "node.host.memory_bandwidth", what, remedy)
    return max(int(bandwidth * Fraction(str(share))), 1)
