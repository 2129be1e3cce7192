"""Layers fused in memory, as in moDNN's framework: one result and one gradient for each."""

from __future__ import annotations

from collections import Counter

import pytest

import simgpu
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Kernel, Phase, Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.catalogue import build
from simgpu.workloads.footprint import all_at_once_bytes, bound_bytes
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.network import LayerKind, Network
from tests.sets import slow_except
from tests.workloads.zoo.networks import MAP, batch_norm, conv, linear, lowered, network, plain, relu

K40 = simgpu.load_node("k40").gpu
#: moDNN (TPDS 2019), section 7, with the batch of each.
MODNN = {"vgg16": 256, "vgg19": 256, "vgg101": 128, "resnet34": 256, "resnet152": 256, "fcn32s": 128}
HELD = (BlockKind.ACTIVATION, BlockKind.GRADIENT)


def built(name: str, batch: int = 8, framework: str = "fused") -> Trace:
    kind = "imagenet" if name.startswith("fcn") else None
    return build_trace(name, batch=batch, gpu=K40, input=kind, framework=framework, optimizer="plain-sgd")


def fused(*layers: object) -> Trace:
    return lowered(network(*layers), 4, framework=Framework.FUSED)  # type: ignore[arg-type]


def block(name: str = "block", source: str = "relu0") -> tuple[object, ...]:
    """conv, norm, relu, conv, norm, and the in-place sum with the input of the block."""
    one, two = f"{name}.conv1", f"{name}.conv2"
    return (
        conv(one, source, 4, MAP, bias=False),
        batch_norm(f"{one}.norm", one, MAP),
        relu(f"{one}.relu", f"{one}.norm", MAP),
        conv(two, f"{one}.relu", 4, MAP, bias=False),
        batch_norm(f"{two}.norm", two, MAP),
        plain(LayerKind.ADD, f"{name}.add", f"{two}.norm", source, shape=MAP, in_place=True),
        relu(f"{name}.relu", f"{name}.add", MAP),
    )


FIRST = (conv("conv0", "input", 3, MAP), batch_norm("norm0", "conv0", MAP), relu("relu0", "norm0", MAP))
END = (plain(LayerKind.VIEW, "flatten", "block.relu", shape=(256,)), linear("fc", "flatten", 256, 10))
RESIDUAL = (*FIRST, *block(), *END)


def kernel(trace: Trace, layer: str, op: str, phase: Phase = Phase.BACKWARD) -> Kernel:
    (result,) = [each for each in trace.kernels if (each.layer, each.op, each.phase) == (layer, op, phase)]
    return result


def maps(trace: Trace, kind: BlockKind) -> list[str]:
    """Blocks of that kind with the size of a feature map of the example."""
    return [each.id for each in trace.blocks if each.kind is kind and each.bytes == 4 * 4 * 256]


# --- by hand --------------------------------------------------------------------------------------------------


def test_each_layer_has_one_result_and_one_gradient() -> None:
    trace = fused(*RESIDUAL)
    assert maps(trace, BlockKind.ACTIVATION) == ["conv0", "block.conv1", "block.conv2"]
    # Of the sum and then of conv0, in one; of conv2 before its normalization; of conv1.
    assert maps(trace, BlockKind.GRADIENT) == ["flatten.grad", "block.conv2.grad", "block.conv1.relu.grad"]


def test_a_fused_normalization_runs_in_place_in_both_directions() -> None:
    trace = fused(*RESIDUAL)
    forward = kernel(trace, "block.conv1", "batch_norm_", Phase.FORWARD)
    assert "block.conv1" in forward.reads and "block.conv1" in forward.writes
    backward = kernel(trace, "block.conv1", "batch_norm_backward_")
    gradient = "block.conv1.relu.grad"
    assert backward.writes[0] == gradient
    statistics = ("block.conv1.norm.saved_mean", "block.conv1.norm.saved_invstd")
    weights = ("block.conv1.norm.weight", "block.conv1.norm.bias")
    assert backward.reads == (gradient, "block.conv1", *weights, *statistics)


def test_a_gradient_used_by_the_shortcut_is_not_overwritten() -> None:
    trace = fused(*RESIDUAL)
    backward = kernel(trace, "block.conv2", "batch_norm_backward")
    assert (backward.reads[0], backward.writes[0]) == ("flatten.grad", "block.conv2.grad")


def test_a_convolution_accumulates_into_the_gradient_of_the_shortcut() -> None:
    trace = fused(*RESIDUAL)
    backward = kernel(trace, "block.conv1", "conv2d_backward_data")
    assert backward.reads == ("block.conv1.relu.grad", "block.conv1.weight", "flatten.grad")
    assert backward.writes == ("flatten.grad",)
    assert backward.dram_bytes == 4 * (4 * 256 * 3 + 4 * 4 * 9)  # with what it adds to read once more
    assert not [each.id for each in trace.kernels if each.op == "add_" and each.phase is Phase.BACKWARD]


def test_no_kernel_accumulates_into_the_gradient_that_it_reads() -> None:
    """Without a normalization, the sum's gradient is the input of the convolution's backward and of the shortcut."""
    bare = (
        conv("conv1", "relu0", 4, MAP),
        plain(LayerKind.ADD, "block.relu", "conv1", "relu0", shape=MAP, in_place=True),
    )
    trace = fused(*FIRST, *bare, *END)
    backward = kernel(trace, "conv1", "conv2d_backward_data")
    assert backward.reads[0] == "flatten.grad" and backward.writes == ("relu0.grad",)
    position = trace.kernels.index(backward)
    readers = [each.op for each in trace.kernels[position + 1 :] if "flatten.grad" in each.reads]
    assert readers[:3] == ["conv2d_backward_weights", "conv2d_backward_bias", "add_"]


def test_a_result_with_another_reader_is_not_overwritten() -> None:
    layers = (
        conv("conv1", "input", 3, MAP),
        batch_norm("norm1", "conv1", MAP),
        plain(LayerKind.ADD, "block.relu", "norm1", "conv1", shape=MAP, in_place=True),
    )
    trace = fused(*layers, *END)
    assert maps(trace, BlockKind.ACTIVATION) == ["conv1", "norm1"]
    assert kernel(trace, "norm1", "batch_norm", Phase.FORWARD).reads[0] == "conv1"


def test_a_pooling_before_a_normalization_keeps_its_result() -> None:
    """Its backward reads it."""
    layers = (
        conv("conv1", "input", 3, MAP),
        plain(LayerKind.MAX_POOL, "pool", "conv1", shape=MAP, kernel=(3, 3), stride=(1, 1), padding=(1, 1)),
        batch_norm("block.relu", "pool", MAP),
    )
    assert maps(fused(*layers, *END), BlockKind.ACTIVATION) == ["conv1", "pool", "block.relu"]


def test_in_place_kernels_belong_to_the_layer_of_their_block() -> None:
    trace = fused(*RESIDUAL)
    forward = [f"{each.layer} {each.op}" for each in trace.kernels if each.phase is Phase.FORWARD]
    assert forward[:3] == ["conv0 conv2d", "conv0 batch_norm_", "conv0 relu_"]
    ops = ("conv2d", "batch_norm_", "add_", "relu_")
    assert forward[6:10] == [f"block.conv2 {op}" for op in ops]


# --- the networks ---------------------------------------------------------------------------------------------


EACH = [*MODNN, "googlenet", "densenet121", "inception-v3", "mobilenet", "unet"]


@pytest.mark.parametrize("name", slow_except(EACH, "vgg16", "resnet34", "googlenet", "mobilenet", "unet"))
def test_a_fused_trace_is_valid_runs_and_needs_no_more_memory_than_a_cudnn_trace(name: str) -> None:
    simulated, expected = built(name, 2), built(name, 2, "cudnn")
    assert check_trace(simulated) == []
    peaks = [trace_stats(each).peak_recorded for each in (simulated, expected)]
    assert peaks[0] is not None and peaks[1] is not None and peaks[0].bytes <= peaks[1].bytes
    result = simgpu.simulate(simulated, simgpu.load_node("k40"), "vdnn")
    assert result.metrics.breakdown.compute == simulated.compute_ns


@pytest.mark.parametrize("name", MODNN)
def test_each_layer_is_one_forward_step(name: str) -> None:
    steps = TaskGraph.of(built(name, 2)).layers.steps
    assert max(Counter(step.layer for step in steps if step.phase is Phase.FORWARD).values()) == 1


@pytest.mark.parametrize("name", [name for name in MODNN if name != "fcn32s"])
def test_blocks_add_up_to_modnns_ideal_memory(name: str) -> None:
    """The closed form has a result and a gradient per layer; the trace also has a mask, labels and statistics."""
    batch = MODNN[name]
    held = sum(each.bytes for each in built(name, batch).blocks if each.kind is not BlockKind.WORKSPACE)
    assert held == pytest.approx(all_at_once_bytes(build(name), batch), rel=0.002)


def test_the_fcn_fits_24_gb_and_not_12() -> None:
    """Section 7.1, with the largest workspace; dropout and the softmax are separate layers."""
    blocks = built("fcn32s", 128).blocks
    workspace = max(each.bytes for each in blocks if each.kind is BlockKind.WORKSPACE)
    held = sum(each.bytes for each in blocks if each.kind is not BlockKind.WORKSPACE)
    assert 12e9 < held < held + workspace < 24e9


@pytest.mark.parametrize("name", MODNN)
def test_the_largest_task_at_batch_1_matches_the_lower_bound(name: str) -> None:
    """Equation 7. Tasks with separate in-place kernels are smaller here than in the paper."""
    trace = built(name, 1)
    weights = sum(each.bytes for each in trace.blocks if "weight" in each.kind)
    size = {each.id: each.bytes for each in trace.blocks if each.kind in (*HELD, BlockKind.INPUT, BlockKind.LABEL)}
    largest = max(sum(size.get(each, 0) for each in {*step.reads, *step.writes}) for step in trace.kernels)
    net: Network = build(name, "imagenet")
    assert 0.98 * bound_bytes(net) < weights + largest <= 1.01 * bound_bytes(net)
