"""`fsdp`: one GPU of several that share weights, gradients and optimizer state, as PyTorch's FSDP2 (`fully_shard`).

Source: PyTorch 2.13, _fsdp_param_group.py, _fsdp_collectives.py, _fsdp_state.py and _fsdp_param.py in
torch/distributed/fsdp/_fully_shard. Each GPU trains on samples of its own: the trace is what one of them computes. A
*group* is a module that `fully_shard` wraps, of `blocks`; all other layers are the root group.

* Each GPU has a part of each weight, of its gradient and of its optimizer state: rows, rounded up (`Shards`).
* Before a group computes, an all-gather fills a buffer with its weights, and a kernel copies them to memory of their
  own. While it computes, the next group's all-gather runs. Behind forward they are dropped (`reshard_after_forward`)
  and gathered again for backward, with what a checkpoint inside recomputes; those of the root stay.
* When backward of a group has ended, a kernel copies its gradients to a buffer, and a reduce-scatter adds up those of
  all GPUs, while the next group computes. Compute waits for it when that group ends.
* Each micro-batch of the trace does so, and adds its part of the gradients to the sum of those before, as FSDP2 does
  unless `set_requires_gradient_sync(False)` is called.
* The optimizer's kernels take time in proportion to the bytes that they access, but for their fixed time.

With `mixed_precision`, `MixedPrecisionPolicy(param_dtype=..., reduce_dtype=torch.float32)` of weights in single
precision: the trace computes in half precision; shards of weights, optimizer state and gradients, and the buffer of a
reduce-scatter are twice as large, and all-gathers are not.

The policy `inside` decides about what the GPUs do not share: weights, gradients and optimizer state stay as they are
here, and its budget is what they leave of the memory (`simgpu.policies.common.inside_budget`).

All collectives are on one stream in the order of their launches, as those of one NCCL communicator are; their times are
those of `simgpu.hardware.collectives`, and all GPUs begin them together.

What differs: the host launches ahead without limit, so an all-gather of forward begins as soon as its stream may, and
its buffer is allocated then, where PyTorch allocates it when the host launches it, and frees it a group later: in
forward of the groups there may be one buffer more or fewer. The first all-gather of backward begins with backward, and
not before. The loss is computed outside of the model, as in `loss_fn(model(x), y)`. The copy of a shard into its
buffer, which overlaps the all-gather in front, takes no time, and its conversion to half precision no memory. Gradients
are clipped without the all-reduce of their norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.policies.base import Policy, parameter
from simgpu.policies.common.section_choice import sections_of
from simgpu.policies.common.together import ONE_GPU, TrainsTogether
from simgpu.policies.registry import policy_inside
from simgpu.program.fully_sharded import added_gradients, fully_sharded
from simgpu.program.instructions import Program
from simgpu.program.shards import ExchangeCosts, Shards
from simgpu.units import format_bytes, format_time


@dataclass(frozen=True)
class FullyShardedDataParallel(TrainsTogether):
    """Each GPU has a part of weights, gradients and optimizer state; groups of layers gather weights to compute."""

    name = "fsdp"
    summary = "FSDP2 on one of several GPUs: each has a part of weights, gradients and optimizer state"
    source = "PyTorch 2.13, torch.distributed.fsdp.fully_shard"

    blocks: int | Sequence[str] = parameter(0, "the groups, as for checkpoint; all other layers are the root group")
    reshard_after_forward: bool = parameter(True, "whether weights of groups leave between forward and backward")
    mixed_precision: bool = parameter(False, "whether shards and sums are in single precision where the trace has half")
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

    def shared(self, graph: TaskGraph) -> frozenset[int]:
        """With the gradients of each micro-batch, which reduce-scatters read."""
        return super().shared(graph) | added_gradients(graph)

    def smaller(self, graph: TaskGraph) -> Mapping[int, int]:
        """That of its shards."""
        return dict(Shards.of(graph, self.group.ranks, single=self.mixed_precision).of_optimizer)

    def exchanging(self, graph: TaskGraph, costs: ExchangeCosts) -> Callable[[Program], Program]:
        """Raises `InputError` for micro-batches that a policy makes, for `mixed_precision` without weights in half
        precision, and as `sections_of` for groups."""
        group_of = sections_of(graph, self.blocks).of_layer
        shards = Shards.of(graph, costs.group.ranks, single=self.mixed_precision)
        if self.mixed_precision and not any(shards.kept[b] > shards.bytes_of[b] for b in shards.weights):
            what = "no weight is in half precision, so that none is kept in single precision"
            raise InputError.single(graph.trace.name, "parameters.mixed_precision", what, "leave it out")
        size, whole = shards.lasting
        share = f"{format_bytes(size)} of {format_bytes(whole)} of weights, gradients and optimizer state"
        updates = shards.durations(costs.elementwise[1])
        before = sum(graph.durations[k] for k, _ in updates)
        times = f"updates take {format_time(sum(ns for _, ns in updates))} instead of {format_time(before)}"
        groups = f"in {len(set(group_of.values()))} groups and the root"
        note = f"each of {costs.group.ranks} GPUs has {share}, {groups}; {times}"

        def exchanging(program: Program) -> Program:
            sharded = fully_sharded(
                program,
                graph,
                group_of,
                costs,
                reshard_after_forward=self.reshard_after_forward,
                single=self.mixed_precision,
            )
            return replace(sharded, notes=(*sharded.notes, note, ONE_GPU))

        return exchanging
