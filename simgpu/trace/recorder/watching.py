"""One watched pass: what is there is entered, then a part of the iteration runs and everything is looked at.

Lives here: putting ledger, layers and the structure pass together. Does not live here: any of these, or which passes
a recording makes (`session`, `training`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu.trace.recorder.contents import Values
from simgpu.trace.recorder.layers import LayerTracker
from simgpu.trace.recorder.ledger import Ledger
from simgpu.trace.recorder.persistent import enter_persistent
from simgpu.trace.recorder.scratch import CudaScratch, NoScratch, Scratch
from simgpu.trace.recorder.structure import StructurePass
from simgpu.trace.recorder.workload import Workload


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
