"""A real training run, and the share of zeros in every feature map along it.

Lives here: training for some epochs and looking at the feature maps at the end of each. Does not live here: a single
step (`iteration`), what is looked at (`structure`), or the recording that follows (`session`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from simgpu.errors import InputError, SimgpuError
from simgpu.trace.recorder.iteration import NoWatcher, run_forward, run_iteration
from simgpu.trace.recorder.layers import LayerTracker
from simgpu.trace.recorder.ledger import Ledger
from simgpu.trace.recorder.maps import Maps
from simgpu.trace.recorder.notes import ValueNote, made_in_iteration
from simgpu.trace.recorder.persistent import enter_persistent
from simgpu.trace.recorder.scratch import NoScratch
from simgpu.trace.recorder.structure import StructurePass
from simgpu.trace.recorder.timing import Signature, expect_same
from simgpu.trace.recorder.workload import Workload


@dataclass
class Training:
    """What a training run showed.

    forward: the operators of a forward pass, the same at every epoch. values: for each epoch from 0, before training,
    what was seen of each block that forward makes, in the order of `made_in_iteration`. losses: the mean loss over the
    steps of each epoch from 1. steps: of all epochs.
    """

    forward: list[Signature]
    values: list[list[ValueNote]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    steps: int = 0

    def told(self) -> str:
        """The run in one sentence."""
        steps = self.steps // len(self.losses)
        return (
            f"Trained for {len(self.losses)} epoch{'s' if len(self.losses) > 1 else ''} of {steps} "
            f"step{'s' if steps > 1 else ''}; the mean loss was {self.losses[0]:.4g} in the first and "
            f"{self.losses[-1]:.4g} in the last."
        )


def train(
    name: str,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    epochs: int,
    say: Callable[[str], None],
    maps: Maps | None = None,
) -> Training:
    """Train for `epochs` walks through the workload's batches, or as many steps on its one batch.

    Feature maps are measured on the workload's own inputs, the same ones each time, in training mode, so dropout
    counts; looking at them leaves weights, buffers and random numbers as they were. maps: what else is measured of
    them.

    Raises `InputError` naming `name` where a step fails, the loss is no longer a number, or the operators change.
    """
    values, forward = _look(workload, optimizer, device, maps)
    found = Training(forward, [values])
    for epoch in range(1, epochs + 1):
        losses = [_step(name, step, optimizer, epoch) for step in workload.steps(device)]
        if not losses:
            raise InputError.single(name, "batches", "there are none", "give at least one pair (inputs, labels)")
        found.losses.append(math.fsum(losses) / len(losses))
        found.steps += len(losses)
        values, signatures = _look(workload, optimizer, device, maps)
        expect_same(name, forward, signatures)
        found.values.append(values)
        say(f"trained epoch {epoch} of {epochs}, loss {found.losses[-1]:.4g}")
    return found


def _step(name: str, step: Workload, optimizer: torch.optim.Optimizer, epoch: int) -> float:
    try:
        loss = float(run_iteration(step, optimizer, NoWatcher()).detach())
    except SimgpuError:
        raise
    except Exception as error:
        what = f"a training step raised {type(error).__name__}: {error}"
        remedy = "every batch is trained with loss(module(*inputs), *labels)"
        raise InputError.single(name, f"epoch {epoch}", what, remedy) from error
    if not math.isfinite(loss):
        remedy = "train more gently: --optimizer module.path:factory sets a learning rate of your own"
        raise InputError.single(name, f"epoch {epoch}", f"the loss has become {loss}", remedy)
    return loss


def _look(
    workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, maps: Maps | None
) -> tuple[list[ValueNote], list[Signature]]:
    """What is seen of each block that forward makes, and forward's operators."""
    ledger = Ledger(device)
    with _as_it_was(workload.module, device), LayerTracker(workload.module) as tracker:
        enter_persistent(ledger, workload, optimizer, tracker)
        watcher = StructurePass(ledger, tracker, {}, NoScratch(), maps=maps)
        with watcher:
            held = run_forward(workload, watcher)
            watcher.finish()
        del held
    made = [ledger.blocks[number] for number in made_in_iteration(ledger.blocks)]
    return [ValueNote(block.sparsity, block.sizes) for block in made], watcher.signatures


@contextmanager
def _as_it_was(module: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Puts the module's buffers (running statistics) and torch's random state back afterwards."""
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
