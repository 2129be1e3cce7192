"""One training iteration as in a usual training loop, and the state that a trial iteration must restore."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from simgpu.recorder.workload import Workload
from simgpu.trace.model import Phase


class Watcher(Protocol):
    """Told where in the iteration we are."""

    def begin(self, phase: Phase) -> None:
        """A phase begins."""

    def differentiate(self, root: Any) -> None:
        """Backward is about to run from this autograd node."""

    def finish(self) -> None:
        """The iteration is over; its loss is still held, and its output where the loop holds it."""


class NoWatcher:
    """Nobody watches: for iterations that only warm up, and those watched by other means."""

    def begin(self, phase: Phase) -> None:
        """Nothing to do."""

    def differentiate(self, root: Any) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do."""


def run_forward(workload: Workload, watcher: Watcher) -> tuple[Any, torch.Tensor]:
    """Forward and loss alone; returns the module's output, None unless the loop holds it, and the loss."""
    watcher.begin(Phase.FORWARD)
    if workload.hold_output:
        output = workload.output()
        return output, workload.loss(output, *workload.labels)
    # As a loop writes it: where labels are unpacked, the tuple of all arguments holds the output during the call.
    if len(workload.labels) == 1:
        return None, workload.loss(workload.output(), workload.labels[0])
    return None, workload.loss(workload.output(), *workload.labels)


def run_gradients(workload: Workload, watcher: Watcher) -> tuple[Any, torch.Tensor]:
    """Forward, loss and backward; returns the module's output, None unless the loop holds it, and the loss."""
    output, loss = run_forward(workload, watcher)
    root = loss if workload.scaler is None else workload.scaler.scale(loss)
    watcher.begin(Phase.BACKWARD)
    watcher.differentiate(root.grad_fn)
    root.backward()
    return output, loss


def run_iteration(workload: Workload, optimizer: torch.optim.Optimizer, watcher: Watcher) -> torch.Tensor:
    """Forward, loss, backward, optimizer step, and then letting the gradients go.

    ``optimizer.zero_grad(set_to_none=True)`` ends the iteration, so that the next one starts without gradients; a
    loop that calls it first in the next iteration frees the same memory before any kernel runs. The loss is held to
    the end, as a loop's variables are, and so is the output where `Workload.hold_output` asks for it. Returns the loss.
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
    """Puts the module's weights, its buffers (running statistics) and torch's random state back afterwards."""
    tensors = [*module.parameters(), *module.buffers()]
    saved = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for tensor, was in zip(tensors, saved, strict=True):
                tensor.copy_(was)


@contextmanager
def state_as_it_was(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> Iterator[None]:
    """Puts the optimizer's state back afterwards, and that of what scales its gradients."""
    saved = {parameter: copy.deepcopy(state) for parameter, state in optimizer.state.items()}
    scale = None if scaler is None else scaler.state_dict()
    yield
    if scaler is not None and scale:
        scaler.load_state_dict(scale)
    optimizer.state.clear()
    optimizer.state.update(saved)
