"""What a pass that only looks must leave as it found it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
