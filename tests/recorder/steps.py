"""A small network, a step that trains it, and what tests ask of its recording."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from simgpu.trace.model import Phase, Trace
from simgpu.trace.requests import MemoryRequests

CLASSES = 10


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 36, CLASSES)
    )


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), foreach=True)


X, Y = torch.randn(4, 3, 8, 8), torch.arange(4) % CLASSES


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor = X, y: torch.Tensor = Y) -> None:
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


def phases(trace: Trace) -> list[Phase]:
    """The phases of the kernels, each run of equal ones once."""
    result: list[Phase] = []
    for kernel in trace.kernels:
        if not result or result[-1] is not kernel.phase:
            result.append(kernel.phase)
    return result


def sizes(program: MemoryRequests) -> list[int]:
    """Bytes of each event, negative for frees; without workspaces, which only a GPU has."""
    given = [(n >= 0, program.requests[n if n >= 0 else ~n]) for n in program.order]
    return [request.size if begins else -request.size for begins, request in given if request.category != "workspace"]
