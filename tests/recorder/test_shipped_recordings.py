"""The two recordings in traces/: whole, valid, marked for what they are, and of the networks they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.trace.check import check_trace
from simgpu.trace.folder import read_trace
from simgpu.trace.model import BlockKind, Origin, Trace

TRACES = Path(__file__).parents[2] / "traces"
#: Convolutions as (input channels, output channels, output side): what the papers' tables say.
_VGG11 = [(3, 64, 32), (64, 128, 16), (128, 256, 8), (256, 256, 8), (256, 512, 4), (512, 512, 4)] + [(512, 512, 2)] * 2
_RESNET20 = [
    (3, 16, 32),
    *[(16, 16, 32)] * 6,
    (16, 32, 16),
    *[(32, 32, 16)] * 5,
    (32, 64, 8),
    *[(64, 64, 8)] * 5,
]
_NETWORKS = [
    # name, convolutions, other weights (biases, batch norm, linear layers)
    ("vgg11-cifar-cpu", _VGG11, 2752 + 2 * (512 * 512 + 512) + 512 * 10 + 10),
    ("resnet20-cifar-cpu", _RESNET20, 2 * (16 * 7 + 32 * 6 + 64 * 6) + 64 * 10 + 10),
]
_BATCH = 32


@pytest.fixture(params=_NETWORKS, ids=lambda network: network[0])
def network(request: pytest.FixtureRequest) -> tuple[Trace, list[tuple[int, int, int]], int]:
    name, convolutions, others = request.param
    return read_trace(TRACES / name), convolutions, others


def test_they_are_valid_recordings_marked_as_made_on_a_cpu(
    network: tuple[Trace, list[tuple[int, int, int]], int],
) -> None:
    trace = network[0]
    assert check_trace(trace) == []
    assert (trace.info.origin, trace.info.batch) == (Origin.RECORDED, _BATCH)
    assert trace.info.device.startswith("CPU")
    assert "Recorded on a CPU" in trace.info.notes and "1 thread" in trace.info.notes
    assert all(kernel.duration_ns > 0 for kernel in trace.kernels)


def test_weights_and_arithmetic_are_the_networks(network: tuple[Trace, list[tuple[int, int, int]], int]) -> None:
    trace, convolutions, others = network
    weights = sum(block.bytes for block in trace.blocks if block.kind is BlockKind.WEIGHT)
    assert weights == 4 * (sum(9 * fan_in * fan_out for fan_in, fan_out, _ in convolutions) + others)
    flops = [kernel.flops for kernel in trace.kernels if kernel.op == "aten::convolution"]
    assert flops == [2 * _BATCH * 9 * fan_in * fan_out * side**2 for fan_in, fan_out, side in convolutions]


def test_every_weight_gets_a_gradient_of_its_size(network: tuple[Trace, list[tuple[int, int, int]], int]) -> None:
    trace = network[0]
    blocks = trace.block_by_id
    for block in trace.blocks:
        if block.kind is BlockKind.WEIGHT:
            gradient = blocks[f"{block.id}.grad"]
            assert (gradient.kind, gradient.bytes) == (BlockKind.WEIGHT_GRADIENT, block.bytes)
            assert blocks[f"{block.id}.momentum_buffer"].kind is BlockKind.OPTIMIZER_STATE


def test_they_are_small(network: tuple[Trace, list[tuple[int, int, int]], int]) -> None:
    files = [file for file in (TRACES / network[0].name).iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 300_000
