"""The recordings in traces/: whole, valid, marked for what they are, and of the networks they name."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from simgpu.trace.check import check_trace
from simgpu.trace.folder import read_trace
from simgpu.trace.model import BlockKind, Origin, OutputLife, Trace
from simgpu.workloads.sparsity.generator import mean_sparsity

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
_DIGITS = [(1, 32, 32), (32, 64, 16), (64, 128, 8), (128, 128, 8)]
_NETWORKS = [
    # name, batch, convolutions, other weights (biases, batch norm, linear layers)
    ("vgg11-cifar-cpu", 32, _VGG11, 2752 + 2 * (512 * 512 + 512) + 512 * 10 + 10),
    ("resnet20-cifar-cpu", 32, _RESNET20, 2 * (16 * 7 + 32 * 6 + 64 * 6) + 64 * 10 + 10),
    ("digits-cnn-cpu", 64, _DIGITS, 352 + 128 * 4 * 4 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10),
]
_Network = tuple[Trace, int, list[tuple[int, int, int]], int]


@pytest.fixture(params=_NETWORKS, ids=lambda network: network[0])
def network(request: pytest.FixtureRequest) -> _Network:
    name, batch, convolutions, others = request.param
    return read_trace(TRACES / name), batch, convolutions, others


def test_shipped_recordings_are_valid_and_marked_as_cpu_recordings(network: _Network) -> None:
    trace, batch, *_ = network
    assert check_trace(trace) == []
    assert (trace.info.origin, trace.info.batch) == (Origin.RECORDED, batch)
    assert trace.info.device.startswith("CPU")
    assert "Recorded on a CPU" in trace.info.notes and "1 thread" in trace.info.notes
    assert all(kernel.duration_ns > 0 for kernel in trace.kernels)


def test_they_state_that_their_loop_held_the_output_and_the_loss(network: _Network) -> None:
    trace, batch, *_ = network
    assert trace.info.output is OutputLife.HELD
    held = [block for block in trace.blocks if block.kind is BlockKind.ACTIVATION and block.release == "end"]
    assert [block.shape for block in held] == [(batch, 10), ()]


def test_weights_and_arithmetic_are_the_networks(network: _Network) -> None:
    trace, batch, convolutions, others = network
    weights = sum(block.bytes for block in trace.blocks if block.kind is BlockKind.WEIGHT)
    assert weights == 4 * (sum(9 * fan_in * fan_out for fan_in, fan_out, _ in convolutions) + others)
    flops = [kernel.flops for kernel in trace.kernels if kernel.op == "aten::convolution"]
    assert flops == [2 * batch * 9 * fan_in * fan_out * side**2 for fan_in, fan_out, side in convolutions]


def test_every_weight_gets_a_gradient_of_its_size(network: _Network) -> None:
    trace = network[0]
    blocks = trace.block_by_id
    for block in trace.blocks:
        if block.kind is BlockKind.WEIGHT:
            gradient = blocks[f"{block.id}.grad"]
            assert (gradient.kind, gradient.bytes) == (BlockKind.WEIGHT_GRADIENT, block.bytes)
            assert blocks[f"{block.id}.momentum_buffer"].kind is BlockKind.OPTIMIZER_STATE


def test_shipped_recordings_are_small(network: _Network) -> None:
    files = [file for file in (TRACES / network[0].name).iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.fixture(scope="module")
def digits() -> Trace:
    return read_trace(TRACES / "digits-cnn-cpu")


@pytest.fixture(scope="module")
def zeros(digits: Trace) -> dict[str, list[float]]:
    """Share of zeros by layer, from epoch 0 to 30; ReLU works in place, so a convolution's block is its ReLU's too."""
    result: dict[str, list[float]] = {}
    for sample in digits.sparsity:
        layer, _, maker = sample.block.partition(":")
        if maker in ("convolution", "max_pool2d_with_indices", "addmm"):
            result.setdefault(layer, []).append(sample.sparsity)
    assert {len(series) for series in result.values()} == {31}
    return result


def test_the_digits_were_really_learnt(digits: Trace) -> None:
    assert "scikit-learn's 1797 handwritten digits" in digits.info.notes
    description = re.search(
        r"30 epochs of 29 steps; the mean loss was (\S+) in the first and (\S+) in the last", digits.info.notes
    )
    assert description is not None
    first, last = map(float, description.groups())
    assert first > 2 and last < 0.05


def test_the_first_convolution_stays_near_a_half(zeros: dict[str, list[float]]) -> None:
    assert (min(zeros["conv1"]), max(zeros["conv1"])) == (
        pytest.approx(0.508, abs=5e-4),
        pytest.approx(0.522, abs=5e-4),
    )


def test_pooling_is_denser_than_its_input_at_every_epoch(zeros: dict[str, list[float]]) -> None:
    for number in (1, 2, 4):
        pairs = zip(zeros[f"pool{number}"], zeros[f"conv{number}"], strict=True)
        assert all(after < before for after, before in pairs)


def test_density_drops_in_the_first_epoch_and_hardly_recovers(zeros: dict[str, list[float]]) -> None:
    for layer in ("conv2", "conv3", "conv4", "fc5"):
        series = zeros[layer]
        assert series[1] - series[0] == max(late - early for early, late in itertools.pairwise(series))
        assert series[1] - series[0] > 0.15
        assert max(series) - series[-1] < 0.05


def test_the_sparsest_layers_match_the_readme(zeros: dict[str, list[float]], digits: Trace) -> None:
    last = {layer: series[-1] for layer, series in zeros.items()}
    assert last["conv4"] > last["fc5"] > last["conv2"] > last["conv3"] > last["fc6"] > last["conv1"]
    assert [round(last[layer], 2) for layer in ("conv4", "fc5", "fc6")] == [0.93, 0.90, 0.58]
    assert round(mean_sparsity(digits), 2) == 0.64


def test_a_shipped_recording_has_convolutions_without_onednn(digits: Trace) -> None:
    convolving = [kernel for kernel in digits.kernels if kernel.op.startswith("aten::convolution")]
    rows = {(choice.kernel, choice.algorithm): choice for choice in digits.algorithms}
    assert list(rows) == [(kernel.id, name) for kernel in convolving for name in ("default", "without-onednn")]
    for kernel in convolving:
        default, other = rows[kernel.id, "default"], rows[kernel.id, "without-onednn"]
        assert default.duration_ns == kernel.duration_ns
        assert default.workspace_bytes > other.workspace_bytes


def test_a_shipped_recording_has_the_spread_of_its_repetitions(digits: Trace) -> None:
    assert all(kernel.iqr_ns is not None for kernel in digits.kernels)
