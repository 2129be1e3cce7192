"""`ddp`: one GPU of several with equal weights, which add up gradients in buckets while backward runs.

Sources: PyTorch 2.13, torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp; Megatron-LM at
d98e8a64, param_and_grad_buffer.py and distributed_data_parallel.py in megatron/core/distributed. Each GPU trains on
samples of its own: the trace is what one of them computes.

With `shards: none`, PyTorch's DistributedDataParallel:

* Buckets have the gradients in the order in which backward completes them, as the reducer rebuilds them: the first is
  full from 1 MiB on, the others from 25 MiB. They last, in addition to the gradients (`gradient_as_bucket_view=False`).
* When a bucket's gradients are there, kernels copy them, and an all-reduce runs while backward goes on; of an iteration
  in micro-batches in the last one, as with `no_sync`. After backward compute waits for each bucket, and copies the sums
  back.

With `shards: optimizer`, Megatron-LM's distributed optimizer with `overlap_grad_reduce` (ZeRO-1):

* Buckets are the only gradients that last: each is dropped when it is in its bucket. A bucket is full from 40 million
  numbers on, a million for each GPU if that is more.
* A reduce-scatter leaves each GPU its part of a bucket's sum. The optimizer updates a part of the weights: its state
  and what it allocates are divided by bytes, and its kernels take time in proportion to what they access, but for
  their fixed time. Then an all-gather for each bucket brings the new weights of all GPUs, and compute waits for them.

The policy `inside` leaves weights, gradients, buckets and optimizer state alone, as in `fsdp`.

All collectives are on one stream; their times are those of `simgpu.hardware.collectives`, and all GPUs begin them
together. What differs: one kernel copies all gradients of a bucket when the last is there, in the time of one kernel
for each. Buckets are not padded to multiples of 128. Megatron-LM's kernels that add weight gradients to a bucket
themselves (`gradient_accumulation_fusion`), and `overlap_param_gather`, are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.policies.base import Policy, parameter
from simgpu.policies.common.together import ONE_GPU, TrainsTogether
from simgpu.policies.registry import policy_inside
from simgpu.program.buckets import Capacity, in_buckets
from simgpu.program.instructions import Program
from simgpu.program.shards import ExchangeCosts, Shards

_MIB = 2**20


@dataclass(frozen=True)
class DistributedDataParallel(TrainsTogether):
    """Gradients are added up in buckets during backward; all GPUs have all weights."""

    name = "ddp"
    summary = "data parallelism on one of several GPUs: gradients are added up in buckets during backward"
    source = "PyTorch 2.13, torch.nn.parallel.DistributedDataParallel; Megatron-LM's distributed optimizer"

    shards: Literal["none", "optimizer"] = parameter("none", "what each GPU has a part of")
    bucket_mib: int = parameter(0, "MiB of gradients from which a bucket is full; 0: as the framework has it")
    inside: str | Mapping[str, object] = parameter(
        "none", "policy of everything else, as a scenario has it: a name, or {name: {parameter: value}}"
    )

    @property
    def inner(self) -> Policy:
        """The policy of everything else."""
        return policy_inside(self.inside)

    @property
    def capacity(self) -> Capacity:
        """When a bucket is full."""
        if self.bucket_mib < 0:
            raise InputError.single("", "parameters.bucket_mib", f"{self.bucket_mib} is negative", "give 0 or more")
        if self.bucket_mib:
            return Capacity(self.bucket_mib * _MIB, self.bucket_mib * _MIB)
        if self.shards == "none":
            return Capacity(_MIB, 25 * _MIB)
        numbers = max(40_000_000, 1_000_000 * self.gpus)
        return Capacity(numbers, numbers, elements=True)

    def smaller(self, graph: TaskGraph) -> Mapping[int, int]:
        """That of the optimizer's shards, with `shards: optimizer`."""
        parts = Shards.of(graph, self.group.ranks, rows=False)
        return dict(parts.of_optimizer) if self.shards == "optimizer" else {}

    def exchanging(self, graph: TaskGraph, costs: ExchangeCosts) -> Callable[[Program], Program]:
        """Raises `InputError` for micro-batches that a policy divides the batch into."""

        def exchanging(program: Program) -> Program:
            changed = in_buckets(program, graph, costs, self.capacity, shards=self.shards == "optimizer")
            return replace(changed, notes=(*changed.notes, ONE_GPU))

        return exchanging
