"""Sizes and lifetimes of a modelled iteration, compared with recordings, papers and counts by hand."""

from __future__ import annotations

import pytest

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.folder import load_trace
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.catalogue import build
from simgpu.workloads.network import LayerKind
from tests.workloads.zoo.networks import Choice, Flat, conv, linear, lowered, network, plain, relu, vgg11_cifar

MIB = 2**20


def without_masks(blocks: tuple[Block, ...]) -> list[tuple[int, str, tuple[int, ...] | None]]:
    """Bytes, kind and shape of blocks in any order, without dropout's masks (see below)."""
    retained = [block for block in blocks if not block.id.endswith((".mask", ":empty_like"))]
    return sorted((block.bytes, block.kind.value, tuple(n for n in block.shape or () if n > 1)) for block in retained)


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return load_trace("vgg11-cifar-cpu")


@pytest.fixture(scope="module")
def modelled() -> Trace:
    return lowered(vgg11_cifar(), 32)


def test_the_modelled_vgg11_has_the_exact_peaks_of_the_recording(recorded: Trace, modelled: Trace) -> None:
    # The recording has no workspaces, and neither has the stand-in time model.
    simulated, expected = trace_stats(modelled), trace_stats(recorded)
    assert simulated.peak_recorded is not None and expected.peak_recorded is not None
    assert simulated.peak_needed is not None and expected.peak_needed is not None
    assert simulated.peak_recorded.bytes == expected.peak_recorded.bytes == 144_366_208
    assert simulated.peak_needed.bytes == expected.peak_needed.bytes


def test_the_modelled_vgg11_has_the_blocks_of_the_recording_except_for_dropout(
    recorded: Trace, modelled: Trace
) -> None:
    # On the CPU dropout multiplies by a float32 mask of zeros and twos, made by three kernels; on a GPU one kernel
    # draws a mask of one byte a value. Everything else is the same block by block.
    assert without_masks(recorded.blocks) == without_masks(modelled.blocks)
    assert {block.bytes for block in recorded.blocks if "empty_like" in block.id} == {32 * 512 * 4}
    assert {block.bytes for block in modelled.blocks if "mask" in block.id} == {32 * 512}


def test_the_modelled_vgg11_releases_activations_at_the_operators_of_the_recording(
    recorded: Trace, modelled: Trace
) -> None:
    # Feature maps: by the layer and operator after which each is released. The recording's backward of a convolution
    # is one kernel and ours are up to three, of which the last releases.
    alike = {
        "convolution_backward": "conv2d_backward",
        "threshold_backward": "threshold_backward",
        "max_pool2d_with_indices_backward": "max_pool2d_with_indices_backward",
        "sum": "linear_backward_bias",
        "mul": "native_dropout_backward",
        "_log_softmax_backward_data": "log_softmax_backward",
        "nll_loss_backward": "nll_loss_backward",
        RELEASED_AT_END: RELEASED_AT_END,
    }

    def released_by(trace: Trace) -> dict[tuple[str, int], str]:
        operators = {kernel.id: kernel.op for kernel in trace.kernels} | {RELEASED_AT_END: RELEASED_AT_END}
        number: dict[str, int] = {}
        result = {}
        for block in trace.blocks:
            if block.kind is BlockKind.ACTIVATION and "empty_like" not in block.id:
                assert block.layer is not None and block.release is not None
                number[block.layer] = number.get(block.layer, 0) + 1
                result[block.layer, number[block.layer]] = operators[block.release].removeprefix("aten::")
        return result

    expected = {place: alike[op] for place, op in released_by(recorded).items()}
    simulated = {
        place: op.removesuffix("_bias") if "conv2d" in op else op for place, op in released_by(modelled).items()
    }
    assert expected == simulated


def test_the_modelled_resnet20_has_the_peak_of_the_recording() -> None:
    # The zoo's shortcut averages and joins zeros where the recorded one subsamples and pads, and it adds in place; the
    # peak is elsewhere, where the last block's gradient meets all that forward has saved.
    recorded, modelled = load_trace("resnet20-cifar-cpu"), lowered(build("resnet20", "cifar10"), 32)
    simulated, expected = trace_stats(modelled), trace_stats(recorded)
    assert simulated.peak_recorded is not None and expected.peak_recorded is not None
    assert simulated.peak_recorded.bytes == expected.peak_recorded.bytes == 51_849_368
    for kind in (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT, BlockKind.OPTIMIZER_STATE, BlockKind.OTHER):
        assert size_of(modelled, kind) == size_of(recorded, kind)


def size_of(trace: Trace, kind: BlockKind) -> int:
    return sum(block.bytes for block in trace.blocks if block.kind is kind)


def test_the_peak_of_a_tiny_network_matches_a_count_by_hand() -> None:
    # One convolution 3 -> 4 channels on 8x8, relu in place, linear 256 -> 10, batch 2, float32.
    shape = (4, 8, 8)
    net = network(
        conv("conv", "input", 3, shape),
        relu("relu", "conv", shape),
        plain(LayerKind.VIEW, "flatten", "relu", shape=(256,)),
        linear("fc", "flatten", 256, 10),
    )
    trace = lowered(net, 2, Flat((Choice("direct", 1, 5000),)))
    weights = 4 * (4 * 3 * 9 + 4 + 10 * 256 + 10)
    batch = 2 * 3 * 64 * 4 + 2 * 8  # images, labels
    retained = 2 * 10 * 4 + 4 + 4  # network output and loss, held to the end; gradient of the loss
    activation = 2 * 256 * 4
    # Backward of the convolution: its weights' gradient is written, all the others are there but its bias's; the
    # gradient of its result is read; the feature map went with relu's backward, but a workspace is there.
    gradients = weights - 4 * 4
    peak = 2 * weights + batch + retained + gradients + activation + 5000
    result = trace_stats(trace).peak_recorded
    assert result is not None
    by_id = {kernel.id: kernel for kernel in trace.kernels}
    assert (by_id[result.kernel].op, result.bytes) == ("conv2d_backward_weights", peak)


def test_activation_bytes_equal_the_sum_over_shapes() -> None:
    batch, net = 8, build("vgg16")
    in_place = {LayerKind.RELU, LayerKind.VIEW}
    expected = sum(
        4 * batch * count(layer.shape) for layer in net.layers if layer.kind not in in_place | {LayerKind.LOSS}
    )
    scores = net.layers[-2]
    result = sum(block.bytes for block in lowered(net, batch).blocks if block.kind is BlockKind.ACTIVATION)
    assert result == expected + 4 * batch * count(scores.shape) + 4  # the loss: log-softmax, and the loss itself


def count(shape: tuple[int, ...]) -> int:
    product = 1
    for side in shape:
        product *= side
    return product


def test_vgg16_has_the_twelve_swappable_tensors_of_cswap() -> None:
    # CSWAP: inputs of the convolutions after the first, eight from ReLU layers and four from MAX layers. At batch 128
    # the largest is 1568 MiB, the smallest 49 MiB.
    trace = lowered(build("vgg16", "imagenet"), 128)
    graph = TaskGraph.of(trace)
    blocks = trace.block_by_id
    inputs = [kernel.reads[0] for kernel in trace.kernels if kernel.op == "conv2d"][1:]
    relu = [blocks[name].bytes / MIB for name in inputs if name.startswith("conv")]
    maximum = [blocks[name].bytes / MIB for name in inputs if name.startswith("pool")]
    assert relu == [1568, 784, 392, 392, 196, 196, 49, 49]
    assert maximum == [392, 196, 98, 49]
    # Each has a gap between forward and backward, which is what a policy can use.
    for name in inputs:
        last = max(k for k in graph.uses[graph.block(name)] if graph.kernels[k].phase == "forward")
        assert (graph.next_use(graph.block(name), last) or 0) > last + 1


def test_only_blocks_with_samples_scale_with_the_batch() -> None:
    small, large = (lowered(vgg11_cifar(), batch) for batch in (16, 32))
    for one, two in zip(small.blocks, large.blocks, strict=True):
        scales = one.kind in (BlockKind.INPUT, BlockKind.LABEL, BlockKind.ACTIVATION, BlockKind.GRADIENT)
        if one.shape == () or not (scales or one.kind is BlockKind.OTHER):
            assert one.bytes == two.bytes
        else:
            assert 2 * one.bytes == two.bytes
