"""One watched pass: registers persistent tensors (batch, weights, buffers, optimizer state), then runs and observes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu.recorder.contents import Values
from simgpu.recorder.layers import LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.scratch import CudaScratch, NoScratch, ScratchMeter
from simgpu.recorder.state import state_tensors
from simgpu.recorder.structure import StructurePass
from simgpu.recorder.workload import Workload
from simgpu.trace.model import BlockKind


def watch(
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    run: Callable[[StructurePass], Any],
    values: Values,
) -> tuple[StructurePass, Ledger]:
    """Runs `run` with a `StructurePass` as its watcher; returns the pass and its ledger."""
    ledger = Ledger(device)
    scratch: ScratchMeter = CudaScratch(device) if device.type == "cuda" else NoScratch()
    with LayerTracker(workload.module) as tracker:
        enter_persistent(ledger, workload, optimizer, tracker)
        values.begin(ledger)
        parameters = dict(workload.module.named_parameters())
        structure = StructurePass(ledger, tracker, parameters, scratch, values=values)
        with structure:
            run(structure)
    return structure, ledger


def enter_persistent(
    ledger: Ledger, workload: Workload, optimizer: torch.optim.Optimizer, tracker: LayerTracker
) -> None:
    """Enter every tensor that exists before an iteration."""
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
    for name, key, value in state_tensors(optimizer, names):
        ledger.keep(value, BlockKind.OPTIMIZER_STATE, f"{name}.{key}", tracker.owner(name))
