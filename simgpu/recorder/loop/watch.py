"""Observes a training loop on fake tensors, and returns its requests for memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from simgpu.recorder.allocation_log import AllocationLog, HiddenMemory
from simgpu.recorder.in_place_backward import in_place_operands
from simgpu.recorder.layers import LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.loop.training import TrainingLoop, run_loop
from simgpu.recorder.scratch import NoScratch, ScratchMeter
from simgpu.recorder.state import state_tensors
from simgpu.recorder.structure import StructurePass
from simgpu.recorder.workload import Workload
from simgpu.trace.model import BlockKind, Phase
from simgpu.trace.requests import MemoryRequests


class LoopPass(StructurePass):
    """Notes the allocations of a loop.

    on_host: returns the optimizer state that is on the host.
    """

    def __init__(
        self,
        ledger: Ledger,
        tracker: LayerTracker,
        module: nn.Module,
        on_host: Callable[[torch.optim.Optimizer], list[torch.Tensor]],
        scratch: ScratchMeter | None = None,
        has_values: bool = False,
    ) -> None:
        self._named = {parameter: name for name, parameter in module.named_parameters()}
        parameters = {name: parameter for parameter, name in self._named.items()}
        super().__init__(ledger, tracker, parameters, scratch or NoScratch(), has_values)
        self._state_on_host = on_host

    def receive(self, workload: Workload) -> Workload:
        """Returns the workload with its batch copied to the device."""
        inputs = tree_map_only(torch.Tensor, torch.clone, workload.inputs)
        labels = tuple(label.clone() for label in workload.labels)
        received = workload._replace(inputs=inputs, labels=labels)
        for name, tensor in received.input_tensors().items():
            self._ledger.receive(tensor, BlockKind.INPUT, name)
        for place, tensor in enumerate(labels):
            self._ledger.receive(tensor, BlockKind.LABEL, f"label.{place}" if place else "label")
        return received

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Names the optimizer's state."""
        for tensor in self._state_on_host(optimizer):
            self._ledger.moved_to_host(tensor)
        for name, key, value in state_tensors(optimizer, self._named):
            number = self._ledger.find(value)
            if number is not None and not self._ledger.blocks[number].persistent:
                block = self._ledger.blocks[number]
                block.kind, block.name = BlockKind.OPTIMIZER_STATE, f"{name}.{key}"

    def _lifted(self, tensor: torch.Tensor) -> None:
        """A number that an optimizer creates, such as its count of steps, stays on the host."""
        if self._phase is Phase.OPTIMIZER and tensor.numel() == 1:
            self._ledger.moved_to_host(tensor)
        else:
            super()._lifted(tensor)


def watch_loop(
    workload: Workload,
    new_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    loop: TrainingLoop,
    hidden: HiddenMemory,
    on_host: Callable[[torch.optim.Optimizer], list[torch.Tensor]],
    program: MemoryRequests,
) -> None:
    """Runs a loop, and adds its requests to `program`, from ``model.to(device)`` on.

    hidden: the memory that operators allocate for themselves. on_host: returns the optimizer state on the host.
    """
    batch = (*workload.input_tensors().values(), *workload.labels)
    log = AllocationLog(hidden)
    ledger = Ledger(batch[0].device, host=batch, log=log)
    with LayerTracker(workload.module) as tracker:
        for tensor, name, kind in moved_tensors(workload.module):
            ledger.keep(tensor, kind, name, tracker.owner(name))
        structure = LoopPass(ledger, tracker, workload.module, on_host)
        with structure:
            optimizer = new_optimizer(workload.module)
            structure.stepped(optimizer)
            run_loop(workload, optimizer, loop, structure, partial(_step, workload, optimizer))
    log.add_requests(program, ledger.blocks, in_place_operands(structure.kernels, ledger.blocks))


def _step(workload: Workload, optimizer: torch.optim.Optimizer) -> None:
    if workload.scaler is None:
        optimizer.step()
    else:
        workload.scaler.step(optimizer)
        workload.scaler.update()


def moved_tensors(module: nn.Module) -> Iterator[tuple[torch.Tensor, str, BlockKind]]:
    """Yields weights and buffers in the order in which ``module.to(device)`` moves them, each once.

    Submodules come first, then the module's own parameters, then its buffers.

    >>> block = nn.Sequential(nn.BatchNorm1d(2))
    >>> [name for _, name, _ in moved_tensors(block)]
    ['0.weight', '0.bias', '0.running_mean', '0.running_var', '0.num_batches_tracked']
    """
    seen: set[int] = set()

    def of(part: nn.Module, prefix: str) -> Iterator[tuple[torch.Tensor, str, BlockKind]]:
        for name, child in part.named_children():
            yield from of(child, f"{prefix}{name}.")
        groups: tuple[tuple[dict[str, Any], BlockKind], ...] = (
            (part._parameters, BlockKind.WEIGHT),
            (part._buffers, BlockKind.OTHER),
        )
        for tensors, kind in groups:
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor, prefix + name, kind

    yield from of(module, "")
