"""What is there before the iteration: the batch, weights, buffers and optimizer state."""

from __future__ import annotations

import torch

from simgpu.recorder.layers import LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.workload import Workload
from simgpu.trace.model import BlockKind


def enter_persistent(
    ledger: Ledger, workload: Workload, optimizer: torch.optim.Optimizer, tracker: LayerTracker
) -> None:
    """Enter every tensor that an iteration finds."""
    for name, tensor in workload.input_tensors().items():
        ledger.keep(tensor, BlockKind.INPUT, name)
    for place, tensor in enumerate(workload.labels):
        ledger.keep(tensor, BlockKind.LABEL, f"label.{place}" if place else "label")
    names = {}
    for name, parameter in workload.module.named_parameters():
        names[parameter] = name
        ledger.keep(parameter, BlockKind.WEIGHT, name, tracker.owner(name))
    for name, buffer in workload.module.named_buffers():
        ledger.keep(buffer, BlockKind.OTHER, name, tracker.owner(name))
    for parameter, state in optimizer.state.items():
        name = names.get(parameter, "state")
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                ledger.keep(value, BlockKind.OPTIMIZER_STATE, f"{name}.{key}", tracker.owner(name))
