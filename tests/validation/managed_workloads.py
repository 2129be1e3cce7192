"""Small workloads of three kinds for tests of managed runs; imported only where torch is present."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from simgpu.recorder.workload import Workload

#: For each kind what may be checkpointed.
BLOCKS = {"pictures": ["first", "second", "classifier"], "residual": ["one", "two"], "tokens": ["0", "1"]}
ROWS, WIDTH = 256, 1024


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch computes in one thread, so that the threads that copy find a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class _Residual(nn.Module):
    """Two normalised convolutions next to what enters, which two operators save and backward sums gradients for."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.relu_(self.bn1(self.conv1(x)))
        return nn.functional.relu_(self.bn2(self.conv2(y)) + x)


def named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def workload_of(kind: str) -> Workload:
    """The same every time: of pictures with convolutions and dropout, of residual blocks, or a transformer."""
    torch.manual_seed(0)
    if kind == "tokens":
        layers = [nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True) for _ in range(2)]
        return Workload(nn.Sequential(*layers), (torch.randn(2, 16, 32),), (), lambda output: output.square().mean())
    if kind == "residual":
        module = named(
            enter=nn.Conv2d(3, 8, 3, padding=1),
            one=_Residual(8),
            two=_Residual(8),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(8, 10),
        )
    else:
        module = named(
            first=named(conv=nn.Conv2d(3, 8, 3, padding=1), relu=nn.ReLU(inplace=True), pool=nn.MaxPool2d(2)),
            second=named(conv=nn.Conv2d(8, 16, 3, padding=1), relu=nn.ReLU(inplace=True), pool=nn.MaxPool2d(2)),
            flatten=nn.Flatten(),
            classifier=named(
                fc=nn.Linear(256, 32), relu=nn.ReLU(inplace=True), drop=nn.Dropout(), out=nn.Linear(32, 10)
            ),
        )
    images, labels = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))
    return Workload(module, (images,), (labels,), nn.functional.cross_entropy)


def optimizer_of(workload: Workload) -> torch.optim.Optimizer:
    return torch.optim.SGD(workload.module.parameters(), lr=0.01, momentum=0.9)


def chain_of(*layers: nn.Module) -> Workload:
    """Layers on a batch of 1 MiB whose gradient is asked for too; the loss is a sum, which saves nothing."""
    torch.manual_seed(0)
    return Workload(nn.Sequential(*layers), (torch.randn(ROWS, WIDTH, requires_grad=True),), (), torch.sum)


def input_optimizer(workload: Workload) -> torch.optim.Optimizer:
    return torch.optim.SGD(workload.inputs, lr=0.1)
