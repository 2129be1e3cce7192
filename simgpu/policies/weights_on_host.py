"""`weights_on_host`: weights, gradients and optimizer on the host, as FSDP2 with `CPUOffloadPolicy` on one GPU.

Source: PyTorch 2.13, _fsdp_param_group.py, _fsdp_param.py and _fsdp_collectives.py in
torch/distributed/fsdp/_fully_shard, for one process. A *group* is a module that `fully_shard` wraps, of `blocks`; all
other layers are the root group.

* Before a group begins in forward, its weights are copied from pinned memory on the stream of compute: with one process
  there is no all-gather, and what FSDP2 calls a prefetch copies nothing (`wait_for_unshard`). So copies of weights and
  kernels never overlap. When the group has ended, its weights are dropped (`reshard_after_forward`), and before
  backward of the group, with what a checkpoint inside recomputes, they are copied again. The root's stay from the
  beginning to the end of backward.
* When backward of a group has ended, its gradients are copied on a stream of their own, and dropped when they have
  left. That stream first copies them within the GPU (`foreach_reduce`), into a second buffer of their size, and compute
  waits for it where the next group ends: so gradients of two groups may be under way. The host waits for the last
  ones, and then updates all weights (`simgpu.policies.optimizer_on_host` says how fast). Weights are on the host
  already, so none comes back.
* A weight arrives in a staging buffer, from which the GPU copies it; that of the weight before is dropped then.

What differs: copies within the GPU take no time. Weights have the trace's format on the host too: with FSDP2's mixed
precision they are single-precision there, their copies twice as large, and the GPU converts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from simgpu.graph.host_updates import UpdateOnHost
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.graph.updates import updates_of
from simgpu.policies.base import PlanContext, Policy, Trial, no_progress, parameter
from simgpu.policies.calling import planned
from simgpu.policies.common.host_optimizer import check_may_move, check_optimizer, check_shares, update_bandwidth
from simgpu.policies.common.inside import Outer
from simgpu.policies.common.section_choice import sections_of
from simgpu.policies.registry import policy_inside
from simgpu.program.host_weights import weights_on_host
from simgpu.program.instructions import Program
from simgpu.trace.model import BlockKind
from simgpu.units import format_bytes


@dataclass(frozen=True)
class WeightsOnHost(Outer):
    """Weights, gradients and optimizer state on the host; groups of layers have their weights while they compute."""

    name = "weights_on_host"
    summary = "FSDP2's CPU offload on one GPU: weights come for each group of layers, gradients leave, the host updates"
    source = "PyTorch 2.13, torch.distributed.fsdp.CPUOffloadPolicy"

    blocks: int | Sequence[str] = parameter(0, "the groups, as for checkpoint; all other layers are the root group")
    reshard_after_forward: bool = parameter(True, "whether weights of groups leave between forward and backward")
    update_share: float = parameter(0.5, "share of the host's memory bandwidth that updates reach")
    inside: str | Mapping[str, object] = parameter(
        "none", "policy of everything else, as a scenario has it: a name, or {name: {parameter: value}}"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.blocks, int):
            object.__setattr__(self, "blocks", tuple(self.blocks))

    @property
    def inner(self) -> Policy:
        """The policy of everything else."""
        return policy_inside(self.inside)

    def plan(self, context: PlanContext) -> Program:
        """One iteration.

        Raises `InputError` as `optimizer_on_host` does; also for micro-batches, and for an optimizer that clips
        gradients.
        """
        graph = context.graph
        check_shares(update_share=self.update_share)
        check_optimizer(graph, self.name)
        check_may_move(context, self.name)
        bandwidth = update_bandwidth(context, self.update_share)
        group_of = sections_of(graph, self.blocks).of_layer

        def on_host(program: Program) -> Program:
            last = transformed(graph, program.transforms)
            how = UpdateOnHost(tuple(update.weight for update in updates_of(last)[0]), bandwidth)
            return weights_on_host(
                program, graph, how, group_of, _weights(last), reshard_after_forward=self.reshard_after_forward
            )

        def trial(program: Program) -> Trial:
            return context.trial(on_host(program))

        program = planned(self.inner, replace(context, trial=trial, chosen=no_progress, lower_bounds=False))
        hosted = on_host(program)
        size = format_bytes(sum(graph.sizes[b] for b in _weights(graph)))
        note = f"{size} of weights are on the host, in {len(set(group_of.values()))} groups and the root"
        return replace(hosted, notes=(*hosted.notes, note))


def _weights(graph: TaskGraph) -> tuple[int, ...]:
    """All weights, also those that are not trained."""
    return tuple(b for b, block in enumerate(graph.blocks) if block.kind is BlockKind.WEIGHT and block.persistent)
