"""Small workloads for the recorder's tests; imported only where torch is present."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from simgpu.recorder import record
from simgpu.trace.model import Block, Kernel, Trace


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def summed(output: torch.Tensor) -> torch.Tensor:
    return output.sum()


def record_module(
    make: Callable[[], nn.Module], *inputs: torch.Tensor, optimizer: Any = plain_sgd, loss: Any = summed
) -> Trace:
    """One short recording of a module, its loss the sum of its outputs."""
    return record(
        lambda: (make(), inputs, (), loss),
        batch=inputs[0].shape[0],
        repetitions=1,
        warmup=1,
        optimizer=optimizer,
        date="2026-01-01",
    )


def named(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))


def kernels(trace: Trace, op: str, phase: str | None = None) -> list[Kernel]:
    return [kernel for kernel in trace.kernels if kernel.op == f"aten::{op}" and phase in (None, kernel.phase)]


def only(trace: Trace, op: str, phase: str | None = None) -> Kernel:
    (kernel,) = kernels(trace, op, phase)
    return kernel


def block(trace: Trace, name: str) -> Block:
    return trace.block_by_id[name]
