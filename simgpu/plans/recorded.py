"""Records a workload's iteration as it runs, with or without a plan around it."""

from __future__ import annotations

import torch

from simgpu.recorder.assemble import assemble
from simgpu.recorder.contents import Values
from simgpu.recorder.in_place_backward import fold_in_place
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.notes import Saves
from simgpu.recorder.saved import note_saved
from simgpu.recorder.session import no_garbage_collection
from simgpu.recorder.watching import watch
from simgpu.recorder.workload import Workload
from simgpu.trace.model import Trace, TraceInfo


def recorded(
    workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, info: TraceInfo, saves: bool = True
) -> Trace:
    """The iteration as PyTorch runs it now; its kernels take no time. saves: whether saved tensors are recorded too."""
    run_iteration(workload, optimizer, NoWatcher())
    with no_garbage_collection():
        structure, ledger = watch(
            workload, optimizer, device, lambda watcher: run_iteration(workload, optimizer, watcher), Values()
        )
        kernels, blocks = fold_in_place(structure.kernels, ledger.blocks)
        noted = Saves()
        if saves:
            noted = note_saved(
                info.model, workload, optimizer, device, structure.signatures, kernels, blocks, lambda text: None
            )
    times = [0] * len(structure.signatures)
    return assemble(info, kernels, blocks, [times], saves=noted)
