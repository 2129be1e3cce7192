"""A network as one training iteration: kernels, reads, purity and counts of small networks, checked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Kernel, Phase, Trace
from simgpu.trace.operators import OpClass, op_class, purity
from simgpu.workloads.catalogue import NETWORKS, build
from simgpu.workloads.lowering.entry import operations_of
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.network import Layer, LayerKind, Network, Weight
from tests.sets import slow_except
from tests.workloads.zoo.networks import (
    EXAMPLES,
    MAP,
    Choice,
    Flat,
    attention,
    conv,
    inception,
    linear,
    lowered,
    network,
    plain,
    recurrent,
    relu,
    residual,
    vgg11_cifar,
)


def kernels(trace: Trace, op: str, phase: Phase | None = None) -> list[Kernel]:
    return [kernel for kernel in trace.kernels if kernel.op == op and phase in (None, kernel.phase)]


def kernel(trace: Trace, op: str, phase: Phase | None = None) -> Kernel:
    (result,) = kernels(trace, op, phase)
    return result


@pytest.fixture(params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> Network:
    return EXAMPLES[request.param]()


#: Their layers are those of smaller networks of the same family.
DEEP = ("bert-large", "resnet101", "resnet152", "vgg101", "vit-large")


# --- any network --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", Framework)
def test_every_lowered_trace_is_valid_and_has_known_lifetimes(example: Network, framework: Framework) -> None:
    trace = lowered(example, 4, Flat((Choice("direct", 5, 100),)), framework=framework)
    assert check_trace(trace) == []
    assert TaskGraph.of(trace).open_lifetimes[0] == 0


@pytest.mark.parametrize("framework", [Framework.PYTORCH, Framework.FUSED])
@pytest.mark.parametrize("name", slow_except(NETWORKS, *(name for name in NETWORKS if name not in DEEP)))
def test_every_network_of_the_zoo_lowers_to_a_valid_trace(name: str, framework: Framework) -> None:
    net, batch = build(name), 2
    trace = lowered(net, batch, Flat((Choice("direct", 5, 100),)), framework=framework)
    assert check_trace(trace) == []
    assert TaskGraph.of(trace).open_lifetimes[0] == 0
    products = ("conv2d", "conv_transpose2d", "linear", "bmm")
    assert sum(each.flops or 0 for each in trace.kernels if each.op in products) == 2 * batch * net.macs
    # Every weight is updated, so the gradient of the loss reaches all of the network.
    gradients = sum(block.kind is BlockKind.WEIGHT_GRADIENT and "#" not in block.id for block in trace.blocks)
    assert gradients == sum(len(layer.weights) for layer in net.layers)


def test_the_same_network_gives_the_same_trace(example: Network) -> None:
    assert lowered(example, 4) == lowered(example, 4)


@pytest.mark.parametrize("optimizer", Optimizer)
def test_listed_operations_equal_the_kernels_of_the_trace(example: Network, optimizer: Optimizer) -> None:
    trace = lowered(example, 4, optimizer=optimizer)
    result = list(operations_of(example, 4, optimizer))
    assert [(kernel.id, kernel.op) for kernel in trace.kernels] == [(name, op) for name, op, _ in result]
    assert [kernel.flops for kernel in trace.kernels] == [operation.flops for _, _, operation in result]
    assert [kernel.dram_bytes for kernel in trace.kernels] == [operation.bytes for _, _, operation in result]


def test_purity_agrees_with_the_table_of_operators(example: Network) -> None:
    for each in lowered(example, 4).kernels:
        if each.phase is Phase.FORWARD and not each.op.startswith("add"):
            assert purity(each.op) in (None, each.pure), each.op
        assert each.pure is not None and (each.phase is not Phase.OPTIMIZER or not each.pure)


def test_products_count_two_flops_per_multiply_accumulate_in_each_direction(example: Network) -> None:
    batch = 4
    trace = lowered(example, batch)
    products = ("conv2d", "linear", "bmm")
    forward = sum(each.flops or 0 for each in trace.kernels if each.op in products)
    weights = sum(each.flops or 0 for each in trace.kernels if each.op.endswith("_backward_weights"))
    assert forward == 2 * batch * example.macs
    assert weights == forward - sum(each.flops or 0 for each in kernels(trace, "bmm"))


def test_every_weight_gets_one_gradient_that_the_optimizer_reads(example: Network) -> None:
    trace = lowered(example, 4)
    by_id = trace.block_by_id
    weights = [block.id for block in trace.blocks if block.kind is BlockKind.WEIGHT]
    step = kernels(trace, "_foreach_add_")[0]
    assert {name for name in step.reads if by_id[name].kind is BlockKind.WEIGHT_GRADIENT} == {
        f"{name}.grad" for name in weights
    }
    for name in weights:
        gradient = by_id[f"{name}.grad"]
        assert (gradient.shape, gradient.release) == (by_id[name].shape, trace.kernels[-1].id)


def test_every_operator_name_has_a_known_class() -> None:
    classes = {each.op: op_class(each.op) for make in EXAMPLES.values() for each in lowered(make(), 1).kernels}
    expected = {
        "conv2d": OpClass.CONVOLUTION,
        "conv2d_backward_data": OpClass.CONVOLUTION,
        "conv2d_backward_weights": OpClass.CONVOLUTION,
        "relu_": OpClass.ACTIVATION,
        "threshold_backward": OpClass.ACTIVATION,
        "gelu_backward": OpClass.ACTIVATION,
        "max_pool2d_with_indices": OpClass.POOLING,
        "max_pool2d_with_indices_backward": OpClass.POOLING,
        "adaptive_avg_pool2d": OpClass.POOLING,
        "batch_norm": OpClass.NORMALIZATION,
        "layer_norm_backward": OpClass.NORMALIZATION,
        "linear": OpClass.LINEAR,
        "linear_backward_weights": OpClass.LINEAR,
        "bmm": OpClass.LINEAR,
        "native_dropout": OpClass.DROPOUT,
        "log_softmax": OpClass.SOFTMAX_LOSS,
        "nll_loss_backward": OpClass.SOFTMAX_LOSS,
        "add": OpClass.OTHER,
        "cat": OpClass.OTHER,
    }
    assert {op: classes[op] for op in expected} == expected


# --- by hand ------------------------------------------------------------------------------------------------


def test_the_first_layer_computes_no_input_gradient() -> None:
    trace = lowered(residual(), 4)
    assert [each.layer for each in kernels(trace, "conv2d_backward_data")] == ["conv2"]
    assert [each.layer for each in kernels(trace, "conv2d_backward_weights")] == ["conv2", "conv1"]
    assert "input.grad" not in trace.block_by_id


def test_an_in_place_relu_overwrites_the_block_of_its_layer() -> None:
    trace = lowered(residual(), 4)
    first = kernels(trace, "relu_")[0]
    assert (first.layer, first.reads, first.writes) == ("bn1", ("bn1",), ("bn1",))
    assert "relu1" not in trace.block_by_id


def test_a_relu_out_of_place_writes_its_own_block_and_releases_its_input() -> None:
    trace = lowered(network(conv("conv", "input", 3, MAP), relu("relu", "conv", MAP, in_place=False)), 2)
    assert kernel(trace, "relu").writes == ("relu",)
    assert trace.block_by_id["conv"].release == kernel(trace, "relu").id
    assert trace.block_by_id["relu"].release == "end"  # the network's output here


def test_at_a_fork_the_second_gradient_is_added_to_the_first() -> None:
    trace = lowered(residual(), 4)
    total = kernel(trace, "add_", Phase.BACKWARD)
    # The sum's gradient serves both branches; conv2's is added to it once batch norm has read it.
    assert (total.reads, total.writes, total.layer) == (("add.grad", "relu1.grad"), ("add.grad",), "conv2")
    assert kernels(trace, "threshold_backward")[-1].reads == ("add.grad", "bn1")


def test_no_gradient_is_accumulated_into_one_that_is_still_needed() -> None:
    # Both branches of the sum flow into one value at once, so the one gradient is in two hands.
    double = network(
        conv("conv", "input", 3, MAP),
        plain(LayerKind.ADD, "double", "conv", "conv", shape=MAP),
        plain(LayerKind.VIEW, "flatten", "double", shape=(256,)),
        linear("fc", "flatten", 256, 10),
    )
    total = kernel(lowered(double, 1), "add", Phase.BACKWARD)
    assert (total.reads, total.writes) == (("flatten.grad",), ("conv.grad",))


def test_input_gradients_of_a_concatenation_are_views_of_its_gradient() -> None:
    trace = lowered(inception(), 2)
    joined = kernel(trace, "cat")
    assert joined.reads == ("left", "right") and joined.writes == ("join",)
    assert trace.block_by_id["join"].bytes == 2 * 8 * 8 * 8 * 4
    readers = [each.layer for each in trace.kernels if "flatten.grad" in each.reads]
    assert readers == ["right", "left"]
    assert trace.block_by_id["flatten.grad"].release == kernels(trace, "threshold_backward")[1].id


def test_batch_norm_updates_running_statistics_and_saves_batch_statistics() -> None:
    trace = lowered(residual(), 4)
    first = kernels(trace, "batch_norm")[0]
    assert first.pure is False
    assert {"bn1.running_mean", "bn1.running_var"} <= set(first.reads) & set(first.writes)
    saved = {"bn1.saved_mean", "bn1.saved_invstd"}
    backward = kernels(trace, "batch_norm_backward")[-1]
    assert saved <= set(first.writes) and saved <= set(backward.reads)
    assert {trace.block_by_id[name].release for name in saved} == {backward.id}
    assert trace.block_by_id["bn1.running_mean"].persistent
    assert "conv1" in backward.reads and trace.block_by_id["conv1"].release == backward.id


def test_dropout_and_pooling_save_masks_and_indices() -> None:
    trace = lowered(vgg11_cifar(), 32)
    blocks = trace.block_by_id
    assert (blocks["drop6.mask"].bytes, blocks["drop6.mask"].dtype) == (32 * 512, "bool")
    assert (blocks["pool1.indices"].bytes, blocks["pool1.indices"].dtype) == (32 * 64 * 16 * 16 * 8, "int64")
    assert all(each.pure is False for each in kernels(trace, "native_dropout"))
    first = kernels(trace, "max_pool2d_with_indices_backward")[-1]
    assert first.reads == ("pool1.grad", "conv1_1", "pool1.indices")


def test_a_convolution_uses_its_fastest_algorithm_and_lists_all() -> None:
    prices = Flat((Choice("winograd", 5, 100), Choice("implicit_gemm", 9, 0)))
    trace = lowered(network(conv("conv", "input", 3, MAP)), 1, prices)
    first = kernel(trace, "conv2d")
    assert (first.duration_ns, first.writes) == (5, ("conv", "workspace:conv.conv2d"))
    workspace = trace.block_by_id["workspace:conv.conv2d"]
    assert (workspace.bytes, workspace.kind, workspace.release) == (100, BlockKind.WORKSPACE, "conv.conv2d")
    choices = [(each.algorithm, each.workspace_bytes) for each in trace.algorithms if each.kernel == "conv.conv2d"]
    assert choices == [("winograd", 100), ("implicit_gemm", 0)]
    assert {each.kernel for each in trace.algorithms} == {each.id for each in trace.kernels if "conv2d" in each.op} - {
        each.id for each in kernels(trace, "conv2d_backward_bias")
    }


def test_a_shared_table_accumulates_both_gradients() -> None:
    trace = lowered(attention(), 2)
    total = [each for each in kernels(trace, "add_", Phase.BACKWARD) if "embedding.weight.grad" in each.writes]
    assert [each.reads for each in total] == [("embedding.weight.grad", "embedding.weight.grad#2")]
    assert "decoder.weight" not in trace.block_by_id


def test_time_steps_share_weights_and_pass_on_their_state() -> None:
    steps = 3
    trace = lowered(recurrent(steps), 2)
    sums = [each for each in kernels(trace, "add_", Phase.BACKWARD) if each.writes == ("cell0.weight_input.grad",)]
    assert len(sums) == steps - 1
    second = kernels(trace, "lstm_cell")[1]
    assert {"cell0", "cell1.gates_input", "cell1.gates_recurrent"} <= set(second.reads)
    assert trace.block_by_id["cell1.gates_input"].release == second.id
    # The embedding's gradient comes back a time step at a time, into one block.
    pieces = kernels(trace, "slice_backward")
    assert [each.writes for each in pieces] == [("embedding.grad",)] * steps
    assert trace.block_by_id["embedding.grad"].shape == (2, steps, 5)


def test_a_transposed_convolution_is_priced_as_the_data_gradient_of_a_convolution() -> None:
    attributes = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "transposed": True}
    weights = (Weight("weight", (4, 6, 2, 2)),)
    up = Layer("up", LayerKind.CONVOLUTION, ("conv",), (6, 16, 16), weights, 4 * 64 * 24, attributes)
    net = network(conv("conv", "input", 3, MAP), up)
    by_op = {op: operation for _, op, operation in operations_of(net, 1)}
    shape = by_op["conv_transpose2d"].convolution
    assert shape is not None
    assert (shape.in_channels, shape.in_size, shape.out_channels, shape.out_size) == (6, (16, 16), 4, (8, 8))
    assert by_op["conv_transpose2d"].direction.value == "backward_data"
    assert by_op["conv_transpose2d_backward_data"].direction.value == "forward"
    assert by_op["conv_transpose2d"].flops == 2 * up.macs


def test_adam_has_two_states_per_weight_and_temporary_denominators() -> None:
    trace = lowered(residual(), 4, optimizer=Optimizer.ADAM)
    size = {kind: sum(block.bytes for block in trace.blocks if block.kind is kind) for kind in BlockKind}
    assert size[BlockKind.OPTIMIZER_STATE] == 2 * size[BlockKind.WEIGHT]
    assert trace.block_by_id["fc.weight.denominator"].release == trace.kernels[-1].id
    assert [each.op for each in trace.kernels if each.phase is Phase.OPTIMIZER][-1] == "_foreach_addcdiv_"


def test_sgd_without_momentum_has_no_state_and_one_kernel() -> None:
    trace = lowered(residual(), 4, optimizer=Optimizer.PLAIN_SGD)
    assert not [block.id for block in trace.blocks if block.kind is BlockKind.OPTIMIZER_STATE]
    (step,) = [each for each in trace.kernels if each.phase is Phase.OPTIMIZER]
    weights = sum(block.bytes for block in trace.blocks if block.kind is BlockKind.WEIGHT)
    assert step.dram_bytes == 3 * weights  # weights there and back, their gradients once


def test_only_gathered_rows_of_a_large_table_get_a_gradient() -> None:
    rows = Layer(
        "scores",
        LayerKind.LINEAR,
        ("flatten",),
        (20,),
        (Weight("weight", (1000, 256)), Weight("bias", (1000,))),
        256 * 20,
        {"sampled_rows": 20},
    )
    trace = lowered(
        network(conv("conv", "input", 3, MAP), plain(LayerKind.VIEW, "flatten", "conv", shape=(256,)), rows), 2
    )
    gathered = kernels(trace, "index_select")
    assert [(each.writes, each.pure) for each in gathered] == [
        (("scores.sampled_weight",), False),
        (("scores.sampled_bias",), False),
    ]
    assert trace.block_by_id["scores.weight.grad"].shape == (20, 256)
    update = kernels(trace, "sparse_update_")[0]
    assert update.writes == ("scores.weight", "scores.weight.momentum_buffer")
    assert update.dram_bytes == 5 * 20 * 256 * 4  # the gradient once, weight and momentum there and back
    assert "scores.weight" not in kernels(trace, "_foreach_add_")[1].writes


def test_a_layer_may_share_a_weight_and_have_its_own_bias() -> None:
    net = attention()
    tied = [replace(each, weights=(Weight("bias", (50,)),)) if each.name == "decoder" else each for each in net.layers]
    trace = lowered(replace(net, layers=tuple(tied)), 2)
    assert kernels(trace, "linear")[-1].reads == ("gelu", "embedding.weight", "decoder.bias")
    assert "decoder.bias.grad" in trace.block_by_id


def test_a_concatenation_may_start_with_a_weight() -> None:
    token = Layer("token", LayerKind.CONCATENATE, ("rows",), (5, 64), (Weight("weight", (1, 64)),), 0, {"axis": 0})
    net = network(
        conv("conv", "input", 3, MAP),
        plain(LayerKind.VIEW, "rows", "conv", shape=(4, 64)),
        token,
        plain(LayerKind.VIEW, "first", "token", shape=(64,)),
        linear("fc", "first", 64, 10),
    )
    trace = lowered(net, 2)
    assert kernel(trace, "cat").reads == ("token.weight", "conv")
    assert kernel(trace, "sum").reads == ("token.grad",)
    # The first row alone is read, so its gradient is put into one of full size, of which the batch's is a view.
    assert kernel(trace, "slice_backward").writes == ("token.grad",)
    assert "token.grad" in kernel(trace, "conv2d_backward_weights").reads
