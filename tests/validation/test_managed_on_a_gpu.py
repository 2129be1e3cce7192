"""Managed runs on a CUDA device, where there is one: the bits of plain steps, and peaks as counted by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.recorder.workload import Workload
from simgpu.validation.devices import Device, open_device
from simgpu.validation.managed.methods import managed
from simgpu.validation.measured import Method
from tests.validation.managed_workloads import ROWS, WIDTH, input_optimizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device")

_LAYERS = 8
_MIB = ROWS * WIDTH * 4
#: The loss and the gradient that backward begins with, each rounded up by PyTorch's allocator.
_LOSS = 2 * 512
_METHODS = [
    (Method.PLAIN, {}, _LAYERS + 2),
    (Method.CHECKPOINT, {"blocks": ["0", "1"]}, 1 + _LAYERS // 2 + 2),
    (Method.SAVE_ON_CPU, {}, 1 + 1 + 2),
    (Method.ASYNC_OFFLOAD, {"prefetch": 0, "stash": 1, "min_bytes": 0}, 1 + 1 + 2),
    (Method.ASYNC_OFFLOAD, {"prefetch": 2, "stash": 2, "min_bytes": 0}, 1 + 3 + 2),
]


@pytest.fixture
def device() -> Iterator[Device]:
    opened = open_device("cuda")
    yield opened
    opened.close()


def chain(device: Device) -> Workload:
    """Two blocks of sigmoids, each of which saves 1 MiB; the loss is a sum, which saves nothing."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Sequential(*(nn.Sigmoid() for _ in range(_LAYERS // 2))) for _ in range(2)))
    batch = torch.randn(ROWS, WIDTH).to(device.torch_device).requires_grad_()
    return Workload(module, (batch,), (), torch.sum)


def batch_after(device: Device, method: Method, settings: Mapping[str, Any]) -> torch.Tensor:
    workload = chain(device)
    optimizer = input_optimizer(workload)
    with managed(method, workload, device, settings) as run:
        for _ in range(5):
            run.step(optimizer)
    return workload.inputs[0].detach().cpu()


@pytest.mark.parametrize(("method", "settings", "_blocks"), _METHODS)
def test_steps_give_the_bits_of_plain_steps(
    device: Device, method: Method, settings: Mapping[str, Any], _blocks: int
) -> None:
    assert torch.equal(batch_after(device, method, settings), batch_after(device, Method.PLAIN, {}))


@pytest.mark.parametrize(("method", "settings", "blocks"), _METHODS)
def test_peaks_are_those_counted_by_hand(
    device: Device, method: Method, settings: Mapping[str, Any], blocks: int
) -> None:
    """As on the CPU, where `tests.validation.test_managed` says what is held."""
    workload = chain(device)
    optimizer = input_optimizer(workload)
    with managed(method, workload, device, settings) as run:
        for _ in range(2):
            run.step(optimizer)
        peak = device.peak_of(lambda: run.step(optimizer))
    assert peak.peak_bytes - peak.initial_bytes == blocks * _MIB + _LOSS
