"""`optimizer_on_host`: the host updates weights and holds their optimizer state, as ZeRO-Offload does.

Ren et al. (ZeRO-Offload, ATC 2021), and its counterparts in Megatron-LM (``--optimizer-cpu-offload``,
``--optimizer-offload-fraction``) and torchao (``CPUOffloadOptimizer``): backward computes a gradient on the GPU, the
host reads a copy of it, updates its own copy of the weight with optimizer state that only the host has, and the new
weight is copied back. `FRAMEWORKS.md` says which setting is which framework's.

* `fraction`: the first weights are updated on the host until they are this share of all their bytes, as Megatron-LM
  chooses; weights whose gradient is not known (`simgpu.graph.updates`) stay with the GPU.
* `overlap`: see `simgpu.program.host_updates`. With ``backward``, an update may begin as soon as the gradient has
  arrived: the host has launched backward long before the GPU ends it.
* `free_gradients`: a gradient is released on the GPU when it has been copied (torchao's ``offload_gradients``,
  ZeRO-Offload); otherwise when the step has ended.
* The GPU runs its optimizer for the other weights meanwhile.
* Copies are of pinned memory and have the sizes of gradient and weight. The formats of the trace are the host's:
  optimizer state in bfloat16 is so on the host too. Frameworks that keep a single-precision copy of the weights on the
  host move more bytes than this.
* With micro-batches (`accumulate` inside), gradients are copied in the last one only.

The time of an update is its bytes, the gradient, and the weight and its state twice, over a share of the host's memory
bandwidth (``host.memory_bandwidth`` of the node). The default share, one half, is that of DeepSpeed's CPU Adam: 0.22 s
for 1e9 single-precision parameters (Ren et al., table 4, quoted from memory: the text was not at hand), 28 bytes each,
on a DGX-2, whose two processors have six channels of DDR4-2666 each, 256 GB/s.

A policy inside that plans by the budget has the bytes of the state that the host holds in addition. Lower bounds that
it reports are for the optimizer on the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from simgpu.graph.host_updates import UpdateOnHost
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.graph.updates import Update, updates_of
from simgpu.memory.pool import aligned
from simgpu.policies.base import PlanContext, Policy, Trial, no_progress, parameter
from simgpu.policies.calling import planned
from simgpu.policies.common.host_optimizer import check_may_move, check_optimizer, check_shares, update_bandwidth
from simgpu.policies.common.inside import Outer
from simgpu.policies.registry import policy_inside
from simgpu.program.host_updates import updating_on_host
from simgpu.program.instructions import Program
from simgpu.units import format_bytes, format_time


@dataclass(frozen=True)
class OptimizerOnHost(Outer):
    """Optimizer state and updates of a share of the weights on the host, everything else under another policy."""

    name = "optimizer_on_host"
    summary = "the host holds optimizer state and updates weights; gradients go to it, new weights come back"
    source = "Ren et al., ATC 2021; Megatron-LM's HybridDeviceOptimizer; torchao's CPUOffloadOptimizer"

    fraction: float = parameter(1.0, "share of the weights, by bytes, that the host updates")
    overlap: Literal["none", "gradients", "step", "backward"] = parameter(
        "backward",
        "what overlaps: none; copies of gradients, with backward; the step's copies and updates; all of these",
    )
    free_gradients: bool = parameter(False, "whether a gradient leaves the GPU when it has been copied")
    update_share: float = parameter(0.5, "share of the host's memory bandwidth that updates reach")
    inside: str | Mapping[str, object] = parameter(
        "none", "policy of everything else, as a scenario has it: a name, or {name: {parameter: value}}"
    )

    @property
    def inner(self) -> Policy:
        """The policy of everything else."""
        return policy_inside(self.inside)

    def plan(self, context: PlanContext) -> Program:
        """One iteration.

        Raises `InputError` where the node has no `host.memory_bandwidth`, and for a trace without an optimizer that
        comes last, with several compute streams, or of GPUs that train together; also for a policy inside that moves
        weights or optimizer state.
        """
        graph = context.graph
        self._check(graph)
        check_may_move(context, self.name)
        bandwidth = update_bandwidth(context, self.update_share)
        count = len(self._hosted(graph))
        state = sum(aligned(graph.sizes[b], context.node.gpu.alignment) for u in self._hosted(graph) for b in u.state)

        def on_host(program: Program) -> Program:
            # The policy inside may have split the batch, which numbers blocks anew.
            hosted = self._hosted(transformed(graph, program.transforms))
            how = UpdateOnHost(tuple(update.weight for update in hosted), bandwidth)
            return updating_on_host(program, graph, how, self.overlap, free_gradients=self.free_gradients)

        def trial(program: Program) -> Trial:
            return context.trial(on_host(program))

        # What is decided about blocks, and lower bounds, do not hold for a program whose optimizer is elsewhere.
        within = replace(context, budget=context.budget + state, trial=trial, chosen=no_progress, lower_bounds=False)
        program = planned(self.inner, within)
        hosted = on_host(program)
        last = transformed(graph, hosted.transforms)
        took = sum(last.durations[k] for k, kernel in enumerate(last.kernels) if kernel.id.startswith("update:"))
        of_state = format_bytes(sum(graph.sizes[b] for u in self._hosted(graph) for b in u.state))
        note = f"the host updates {count} weights, {format_time(took)} in all, and holds {of_state} of optimizer state"
        return replace(hosted, notes=(*hosted.notes, note))

    def _check(self, graph: TaskGraph) -> None:
        check_shares(fraction=self.fraction, update_share=self.update_share)
        check_optimizer(graph, self.name)

    def _hosted(self, graph: TaskGraph) -> list[Update]:
        """The first weights until they reach the share."""
        every, _ = updates_of(graph)
        threshold = Fraction(str(self.fraction)) * sum(graph.sizes[update.weight] for update in every)
        hosted: list[Update] = []
        reached = 0
        for update in every:
            if reached >= threshold:
                break
            hosted.append(update)
            reached += graph.sizes[update.weight]
        return hosted
