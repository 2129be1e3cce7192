"""Layers from tags or derived from blocks, and operator names sorted into classes."""

from __future__ import annotations

import pytest

from simgpu.trace.model import Phase
from simgpu.trace.operators import OpClass, op_class
from tests.graph.test_taskgraph import RESIDUAL
from tests.semantics.hand_made import BACKWARD, OPTIMIZER, block, graph, held, kernel


def by_layer(tasks) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for k, one in enumerate(tasks.kernels):
        result.setdefault(tasks.layers.name_of(k), []).append(one.id)
    return result


def test_recorded_layer_tags_are_used_unchanged():
    tasks = graph([kernel("f", layer="L"), kernel("b", layer="L", phase=BACKWARD)], [])
    assert by_layer(tasks) == {"L": ["f", "b"]}
    assert not tasks.layers.derived


def test_a_kernel_without_a_tag_in_a_tagged_trace_belongs_to_its_phase():
    tasks = graph([kernel("f", layer="L"), kernel("g"), kernel("o", phase=OPTIMIZER)], [])
    assert by_layer(tasks) == {"L": ["f"], "(forward)": ["g"], "(optimizer)": ["o"]}


def test_adjacent_forward_and_backward_of_a_layer_are_two_steps():
    tasks = graph([kernel("f", layer="L"), kernel("b", layer="L", phase=BACKWARD)], [])
    assert [(s.first, s.stop, s.phase) for s in tasks.layers.steps] == [(0, 1, Phase.FORWARD), (1, 2, BACKWARD)]


def test_steps_cover_all_kernels_and_every_kernel_has_its_step():
    steps = RESIDUAL.layers.steps
    assert [s.first for s in steps[1:]] == [s.stop for s in steps[:-1]]
    assert (steps[0].first, steps[-1].stop) == (0, len(RESIDUAL.kernels))
    for k, step in enumerate(RESIDUAL.layers.step_of):
        assert steps[step].first <= k < steps[step].stop


def test_without_tags_layers_are_derived_and_marked_as_derived():
    assert RESIDUAL.layers.derived


def test_an_in_place_kernel_belongs_to_the_current_layer():
    assert by_layer(RESIDUAL)["001-conv2d"][:2] == ["conv", "relu_"]


def test_a_kernel_with_outputs_that_others_read_begins_a_layer():
    assert list(by_layer(RESIDUAL))[:3] == ["001-conv2d", "002-add", "003-nll_loss"]


def test_a_kernel_that_only_updates_existing_blocks_begins_no_layer():
    tasks = graph(
        [
            kernel("conv", 1, "x", "y", op="conv2d"),
            kernel("stats", 1, "y", "mean"),
            kernel("next", 1, "y mean", "z"),
            kernel("l", 1, "z"),
        ],
        [held("x", 1), held("mean", 1), block("y", 1), block("z", 1)],
    )
    assert by_layer(tasks)["001-conv2d"] == ["conv", "stats"]


def test_a_kernel_whose_outputs_are_never_read_begins_no_layer():
    tasks = graph(
        [
            kernel("conv", 1, "x", "y", op="conv2d"),
            kernel("stats", 1, "y", "unread"),
            kernel("next", 1, "y", "z"),
            kernel("l", 1, "z"),
        ],
        [held("x", 1), block("y", 1), block("unread", 1), block("z", 1)],
    )
    assert by_layer(tasks) == {"001-conv2d": ["conv", "stats"], "002-op": ["next", "l"]}


def test_backward_joins_the_forward_layer_whose_blocks_it_reads():
    assert "conv_b" in by_layer(RESIDUAL)["001-conv2d"]
    assert "relu_b" in by_layer(RESIDUAL)["001-conv2d"]


def test_operators_of_unknown_class_do_not_count_as_the_same_class():
    """`mix_b` shares y and u with the convolution, but only z with the addition, whose class is unknown too."""
    tasks = graph(
        [
            kernel("conv", 1, "x", "y u", op="conv2d"),
            kernel("add", 1, "x", "z", op="add"),
            kernel("mix_b", 1, "y u z", "g", op="mix", phase=BACKWARD),
        ],
        [held("x", 1), *(block(name, 1) for name in "yuzg")],
    )
    assert by_layer(tasks)["001-conv2d"] == ["conv", "mix_b"]


def test_backward_that_reads_no_saved_block_belongs_to_the_current_layer():
    tasks = graph(
        [
            kernel("conv", 1, "x", "y", op="conv2d"),
            kernel("loss", 1, "y", "l", op="nll_loss"),
            kernel("loss_b", 1, "y l", "g h", op="nll_loss_backward", phase=BACKWARD),
            kernel("sum", 1, "g h", "g", op="add", phase=BACKWARD),
            kernel("conv_b", 1, "g x", "", op="conv2d_backward", phase=BACKWARD),
        ],
        [held("x", 1), block("y", 1), block("l", 1), block("g", 1), block("h", 1)],
    )
    assert by_layer(tasks) == {"001-conv2d": ["conv", "conv_b"], "002-nll_loss": ["loss", "loss_b", "sum"]}


def test_the_optimizer_is_one_layer():
    assert by_layer(RESIDUAL)["(optimizer)"] == ["sgd"]


def test_a_layer_with_a_convolution_in_it_is_convolutional():
    layers = RESIDUAL.layers
    assert [name for name, yes in zip(layers.names, layers.convolution, strict=True) if yes] == ["001-conv2d"]


def test_a_trace_that_begins_with_backward_still_has_layers():
    tasks = graph([kernel("b", 1, phase=BACKWARD), kernel("o", 1, phase=OPTIMIZER)], [])
    assert by_layer(tasks) == {"(backward)": ["b"], "(optimizer)": ["o"]}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("aten::conv2d", OpClass.CONVOLUTION),
        ("ConvolutionBackward0", OpClass.CONVOLUTION),
        ("aten::max_pool2d_with_indices_backward", OpClass.POOLING),
        ("adaptive_avg_pool2d", OpClass.POOLING),
        ("threshold_backward", OpClass.ACTIVATION),
        ("relu_", OpClass.ACTIVATION),
        ("GELU", OpClass.ACTIVATION),
        ("native_batch_norm", OpClass.NORMALIZATION),
        ("cudnn_batchnorm", OpClass.NORMALIZATION),
        ("lrn", OpClass.NORMALIZATION),
        ("addmm", OpClass.LINEAR),
        ("aten::mm", OpClass.LINEAR),
        ("LinearBackward", OpClass.LINEAR),
        ("native_dropout", OpClass.DROPOUT),
        ("log_softmax", OpClass.SOFTMAX_LOSS),
        ("nll_loss_backward", OpClass.SOFTMAX_LOSS),
        ("cat", OpClass.OTHER),
        ("add_", OpClass.OTHER),
        ("", OpClass.OTHER),
    ],
)
def test_operator_classes_are_found_for_many_names(op: str, expected: OpClass):
    assert op_class(op) is expected


@pytest.mark.parametrize("op", ["relu", "Relu", "aten::RELU", "ReLU"])
def test_letter_case_and_prefix_of_operator_names_do_not_matter(op: str):
    assert op_class(op) is OpClass.ACTIVATION
