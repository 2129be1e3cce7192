"""`accumulate` on a recorded step against a recorded loop that accumulates: the same operators, the same bytes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import simgpu
from simgpu.trace.model import BlockKind, Trace

BATCH = 8


def convolutions() -> nn.Module:
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(8 * 64, 64), nn.ReLU(), nn.Linear(64, 10))


def recorded(count: int) -> Trace:
    """A step of a loop over this number of micro-batches."""
    model = convolutions()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    inputs = [part.clone() for part in torch.zeros(BATCH, 3, 8, 8).chunk(count)]
    labels = [part.clone() for part in torch.arange(BATCH).chunk(count)]

    def step() -> None:
        optimizer.zero_grad()
        for x, y in zip(inputs, labels, strict=True):
            cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    with simgpu.record_step(model, optimizer) as recording:
        step()
    return recording.trace


@pytest.mark.parametrize("count", [2, 4])
def test_a_step_in_micro_batches_equals_a_recorded_loop(count: int) -> None:
    """The loop has all of its inputs on the device, the policy those of one micro-batch."""
    node = simgpu.load_node("v100")
    loop = recorded(count)
    plain = simgpu.simulate(loop, node, "none")
    result = simgpu.simulate(recorded(1), node, "accumulate", parameters={"micro_batches": count})
    parts = ((part.first, part.stop) for part in result.graph.rounds for _ in range(part.repeat))
    ops = [kernel.op for first, stop in parts for kernel in result.graph.kernels[first:stop]]
    assert ops == [kernel.op for kernel in loop.kernels]
    inputs = sum(b.bytes for b in loop.blocks if b.persistent and b.kind in (BlockKind.INPUT, BlockKind.LABEL))
    others = inputs * (count - 1) // count
    assert result.metrics.device_peak_bytes == plain.metrics.device_peak_bytes - others
