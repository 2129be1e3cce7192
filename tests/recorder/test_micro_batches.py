"""A step in micro-batches that the recorder runs, against the same step in a loop of the user's own."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import simgpu
from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.trace.check import check_trace
from simgpu.trace.model import SavedTensor, Trace

BATCH, COUNT = 8, 4


def network(batch: int) -> tuple[Any, ...]:
    """The gradients of its branches meet, which PyTorch sums in place, and dropout draws in each micro-batch."""
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.5))
    branches = Sum(nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1))
    module = nn.Sequential(first, branches, nn.Flatten(), nn.Linear(512, 10))
    return module, torch.randn(batch, 3, 8, 8), torch.arange(batch) % 10, cross_entropy


class Sum(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((part(x) for part in self.parts), start=x)


def of_own_loop() -> Any:
    module, inputs, labels, loss = network(BATCH // COUNT)
    optimizer = torch.optim.Adam(module.parameters())
    with simgpu.record_step(module, optimizer, gpu="v100") as recording:
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(COUNT):
                x, y = inputs.to("cuda"), labels.to("cuda")
                value = loss(module(x), y)
                (value / COUNT).backward()
            optimizer.step()
    return recording


def of_recorder(**arguments: Any) -> Trace:
    return record(network, batch=BATCH, micro_batches=COUNT, optimizer="adam", **arguments)


def positions(trace: Trace, row: SavedTensor) -> tuple[object, ...]:
    place = {kernel.id: k for k, kernel in enumerate(trace.kernels)}
    kernels = (row.packed_after, row.unpacked_before, row.unused_after, row.freed_after)
    return row.dtype, row.shape, row.bytes, *(None if name is None else place.get(name) for name in kernels)


def test_operators_and_saved_tensors_are_those_of_the_loop() -> None:
    trace, loop = of_recorder(gpu="v100"), of_own_loop().trace
    assert check_trace(trace) == [] and trace.info.batch == loop.info.batch == BATCH
    assert [kernel.op for kernel in trace.kernels] == [kernel.op for kernel in loop.kernels]
    assert [kernel.duration_ns for kernel in trace.kernels] == [kernel.duration_ns for kernel in loop.kernels]
    assert [positions(trace, row) for row in trace.saved] == [positions(loop, row) for row in loop.saved]
    assert [(row.module, row.after, row.until) for row in trace.modules] == [
        (row.module, row.after, row.until) for row in loop.modules
    ]
    assert "4 micro-batches of 2" in trace.info.notes


def test_a_loop_requests_what_the_loop_of_a_user_does() -> None:
    predicted = simgpu.record_requests(network, batch=BATCH, micro_batches=COUNT, gpu="v100", optimizer="adam")
    own = of_own_loop().requests
    assert _peak(predicted) == _peak(own)


def _peak(program: Any) -> int:
    return simgpu.explain_allocations(program).allocated


def test_a_step_that_runs_has_the_saved_tensors_of_each_micro_batch() -> None:
    trace = of_recorder(repetitions=1, warmup=1)
    assert check_trace(trace) == [] and len(trace.saved) % COUNT == 0
    part = len(trace.saved) // COUNT
    kinds = [(row.layer, row.dtype, row.shape) for row in trace.saved]
    assert kinds == kinds[:part] * COUNT
    blocks = [trace.block_by_id[row.block] for row in trace.saved]
    own = [{block.id for block in blocks[first : first + part] if not block.persistent} for first in (0, part)]
    assert own[0] and own[0].isdisjoint(own[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"micro_batches": 3}, "8 samples are not 3 equal micro-batches"),
        ({"micro_batches": 0}, "0 is not a number of micro-batches"),
        ({"micro_batches": 2, "epochs": 1}, "training before the recording takes whole batches"),
    ],
)
def test_wrong_numbers_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        record(network, batch=BATCH, **arguments)


def test_such_a_step_is_not_rescaled_to_another_batch() -> None:
    trace = of_recorder(gpu="v100")
    with pytest.raises(InputError, match="forward runs again after backward"):
        simgpu.at_batch(trace, 4)
    assert simgpu.compare(trace, simgpu.load_node("v100"), ["none", "accumulate"]).results.keys() == {
        "none",
        "accumulate",
    }
