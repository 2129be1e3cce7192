"""Runs one training iteration like a usual training loop, and restores the state after trial iterations."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from simgpu.recorder.workload import Workload
from simgpu.trace.model import Phase


class Watcher(Protocol):
    """Is notified of the progress of an iteration."""

    def begin(self, phase: Phase) -> None:
        """Called at the start of each phase."""

    def finish(self) -> None:
        """Called at the end, while the loss (and the output, if the loop holds it) is still referenced."""


class NoWatcher:
    """Ignores all notifications: for warm-up iterations, and for those observed by other means."""

    def begin(self, phase: Phase) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do."""


def run_forward(workload: Workload, watcher: Watcher) -> tuple[Any, torch.Tensor]:
    """Runs forward and loss; returns the module's output (None unless the loop holds it) and the loss."""
    watcher.begin(Phase.FORWARD)
    if workload.hold_output:
        output = workload.output()
        return output, workload.loss(output, *workload.labels)
    # Unpacking labels would keep the output alive during the call (in the argument tuple), unlike in a usual loop.
    if len(workload.labels) == 1:
        return None, workload.loss(workload.output(), workload.labels[0])
    return None, workload.loss(workload.output(), *workload.labels)


def run_gradients(workload: Workload, watcher: Watcher) -> tuple[Any, torch.Tensor]:
    """Runs forward, loss and backward; returns the module's output (None unless the loop holds it) and the loss.

    With micro-batches it does so for each: output and loss of the previous one live until the next are assigned.
    """
    for _ in range(workload.micro_batches):
        output, loss = run_forward(workload, watcher)
        root = root_of_backward(workload, loss)
        watcher.begin(Phase.BACKWARD)
        root.backward()
        del root
    return output, loss


def root_of_backward(workload: Workload, loss: torch.Tensor) -> torch.Tensor:
    """What backward starts from: the loss, divided by the number of micro-batches and scaled where the loop does so."""
    part = loss if workload.micro_batches == 1 else loss / workload.micro_batches
    return part if workload.scaler is None else workload.scaler.scale(part)


def run_iteration(workload: Workload, optimizer: torch.optim.Optimizer, watcher: Watcher) -> torch.Tensor:
    """Runs forward, loss, backward and the optimizer step, then frees the gradients; returns the loss.

    The iteration ends with ``optimizer.zero_grad(set_to_none=True)``, so the next one starts without gradients. A loop
    that calls it at the start of the next iteration frees the same memory before any kernel runs. The loss stays
    referenced until the end, like a loop's variable; so does the output if `Workload.hold_output` is set.
    """
    _output, loss = run_gradients(workload, watcher)
    watcher.begin(Phase.OPTIMIZER)
    if workload.scaler is None:
        optimizer.step()
    else:
        workload.scaler.step(optimizer)
        workload.scaler.update()
    optimizer.zero_grad(set_to_none=True)
    watcher.finish()
    return loss


@contextmanager
def as_it_was(module: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Restores the module's weights and buffers (running statistics) and torch's random state on exit."""
    tensors = [*module.parameters(), *module.buffers()]
    saved = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, saved, strict=True):
                tensor.copy_(value)


@contextmanager
def state_as_it_was(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> Iterator[None]:
    """Restores the state of the optimizer and of the gradient scaler on exit."""
    saved = {parameter: copy.deepcopy(state) for parameter, state in optimizer.state.items()}
    scale = None if scaler is None else scaler.state_dict()
    yield
    if scaler is not None and scale:
        scaler.load_state_dict(scale)
    optimizer.state.clear()
    optimizer.state.update(saved)
