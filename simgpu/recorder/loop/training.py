"""A training loop from the model's first weight on the device, as usual scripts write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch

from simgpu.recorder.iteration import Watcher, root_of_backward, run_forward
from simgpu.recorder.workload import Workload
from simgpu.trace.model import Phase


class ZeroGrad(StrEnum):
    """Where the loop calls ``optimizer.zero_grad()``: before the batch arrives, after the loss, or after the step."""

    START = "start"
    BEFORE_BACKWARD = "before-backward"
    END = "end"


@dataclass(frozen=True)
class TrainingLoop:
    """A loop of `iterations` steps on batches of one shape, each in as many micro-batches as the workload has.

    The names of the loop stay in scope, as in Python: the previous batch and loss live until the next are assigned, and
    so does the model's output if the workload holds it.
    """

    iterations: int = 3
    zero_grad: ZeroGrad = ZeroGrad.START


class LoopWatcher(Watcher, Protocol):
    """Is notified of the progress of a loop."""

    def receive(self, workload: Workload) -> Workload:
        """Returns the workload with its batch copied to the device."""

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after each optimizer step."""


def run_loop(
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    loop: TrainingLoop,
    watcher: LoopWatcher,
    step: Callable[[], object],
) -> None:
    """Runs the loop. step: updates the weights from their gradients."""
    output = None
    for _ in range(loop.iterations):
        if loop.zero_grad is ZeroGrad.START:
            optimizer.zero_grad(set_to_none=True)
        for number in range(workload.micro_batches):
            batch = watcher.receive(workload)
            if batch.hold_output:
                watcher.begin(Phase.FORWARD)
                output = batch.output()
                loss = batch.loss(output, *batch.labels)
            else:
                _, loss = run_forward(batch, watcher)
            if loop.zero_grad is ZeroGrad.BEFORE_BACKWARD and not number:
                optimizer.zero_grad(set_to_none=True)
            root = root_of_backward(workload, loss)
            watcher.begin(Phase.BACKWARD)
            root.backward()
            del root
        watcher.begin(Phase.OPTIMIZER)
        step()
        watcher.stepped(optimizer)
        if loop.zero_grad is ZeroGrad.END:
            optimizer.zero_grad(set_to_none=True)
    watcher.finish()
    del output
