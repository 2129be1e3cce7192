"""One watched pass: what is there is entered, then a part of the iteration runs and everything is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu.recorder.contents import Values
from simgpu.recorder.layers import LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.persistent import enter_persistent
from simgpu.recorder.scratch import CudaScratch, NoScratch, Scratch
from simgpu.recorder.structure import StructurePass
from simgpu.recorder.workload import Workload


def watch(
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    run: Callable[[StructurePass], Any],
    values: Values,
) -> tuple[StructurePass, Ledger]:
    """Watch what `run` does, which gets the watcher; what it returns is held until it has been told to finish."""
    ledger = Ledger(device)
    scratch: Scratch = CudaScratch(device) if device.type == "cuda" else NoScratch()
    with LayerTracker(workload.module) as tracker:
        enter_persistent(ledger, workload, optimizer, tracker)
        values.begin(ledger)
        parameters = dict(workload.module.named_parameters())
        structure = StructurePass(ledger, tracker, parameters, scratch, values=values)
        with structure:
            run(structure)
    return structure, ledger
