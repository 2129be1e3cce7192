"""`NetworkBuilder` infers shapes, weights and arithmetic, and refuses mistakes."""

from __future__ import annotations

import pytest

from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.network import LayerKind, Weight
from simgpu.workloads.shapes import concatenated, matmul_shape, transposed_window_sides, window_sides


@pytest.fixture
def net() -> NetworkBuilder:
    return NetworkBuilder("net", "a test")


@pytest.fixture
def image(net: NetworkBuilder) -> LayerOutput:
    return net.input("image", (6, 10, 12))


def test_a_convolution_has_the_expected_shape_weights_and_macs(net: NetworkBuilder, image: LayerOutput) -> None:
    x = net.convolution("conv", image, 8, (3, 5), stride=(2, 1), padding=(1, 2), groups=2)
    layer = net.finish(x).layers[0]
    assert layer.shape == (8, 5, 12)
    assert layer.weights == (Weight("weight", (8, 3, 3, 5)), Weight("bias", (8,)))
    assert layer.macs == 8 * 5 * 12 * 3 * 3 * 5
    assert dict(layer.attributes) == {
        "kernel": (3, 5),
        "stride": (2, 1),
        "padding": (1, 2),
        "dilation": (1, 1),
        "groups": 2,
        "transposed": False,
    }


def test_a_transposed_convolution_restores_the_image_size(net: NetworkBuilder, image: LayerOutput) -> None:
    small = net.convolution("down", image, 8, 4, stride=2, padding=1, bias=False)
    large = net.transposed_convolution("up", small, 6, 4, stride=2, padding=1, bias=False)
    down, up, _ = net.finish(large).layers
    assert large.shape == image.shape
    assert (up.macs, up.weights[0].shape) == (down.macs, down.weights[0].shape)


def test_a_linear_layer_applies_to_the_last_dimension(net: NetworkBuilder) -> None:
    x = net.linear("fc", net.input("rows", (7, 16)), 4)
    layer = net.finish(x).layers[0]
    assert (x.shape, layer.macs, layer.weights[0].shape) == ((7, 4), 7 * 16 * 4, (4, 16))


def test_a_shared_weight_counts_once(net: NetworkBuilder) -> None:
    x = net.embedding("table", net.input("words", (5,), "int64"), 100, 8)
    network = net.finish(net.linear("output", x, 100, shares="table"))
    assert network.parameters == 100 * 8 + 100
    assert network.label_shape == (5,)


def test_a_sampled_layer_has_all_weights_and_multiplies_only_sampled_rows(net: NetworkBuilder) -> None:
    network = net.finish(net.sampled_linear("softmax", net.input("rows", (5, 8)), 1000, 10))
    layer = network.layers[0]
    assert (layer.shape, layer.macs, network.parameters) == ((5, 10), 5 * 8 * 10, 1000 * 8 + 1000)
    assert layer.attributes["sampled_rows"] == 10


def test_a_product_of_two_values_has_no_weights(net: NetworkBuilder) -> None:
    first, second = net.input("first", (2, 3, 4)), net.input("second", (2, 5, 4))
    network = net.finish(net.matmul("scores", first, second, transpose_second=True))
    assert (network.layers[0].shape, network.macs, network.parameters) == ((2, 3, 5), 2 * 3 * 5 * 4, 0)


def test_an_lstm_step_gives_its_output_and_its_state(net: NetworkBuilder) -> None:
    x, h, c = net.input("x", (3,)), net.input("h", (4,)), net.input("c", (8,))
    output, state = net.lstm_cell("cell", x, h, c)
    network = net.finish(net.concatenate("both", (output, state)))
    cell = network.layers[0]
    assert (output.shape, state.shape, cell.shape) == ((8,), (8,), (2, 8))
    assert network.parameters == 4 * 8 * (3 + 4 + 1)
    assert cell.macs == 4 * 8 * (3 + 4)


def test_names_and_layer_tags_include_their_scopes(net: NetworkBuilder, image: LayerOutput) -> None:
    with net.scope("block"):
        x = net.relu("relu", image, in_place=False)
        with net.stage("rest"):
            x = net.scale("scale", x)
    first, second, last = net.finish(x).layers
    assert [first.name, second.name, last.name] == ["block.relu", "block.scale", "loss"]
    assert [first.stage, second.stage, last.stage] == [None, "block.rest", None]
    assert (first.kind, first.attributes["in_place"]) == (LayerKind.RELU, False)


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "padding", "ceil", "result"),
    [
        (224, 7, 2, 3, False, 112),
        (112, 3, 2, 0, False, 55),
        (112, 3, 2, 0, True, 56),
        (13, 3, 2, 0, True, 6),
        (5, 2, 2, 0, True, 3),
        (2, 1, 2, 0, True, 1),  # a second window would begin outside
        (4, 2, 4, 1, True, 2),
        (3, 3, 1, 0, False, 1),
    ],
)
def test_image_sizes_after_a_window(side: int, kernel: int, stride: int, padding: int, ceil: bool, result: int) -> None:
    results_seen = window_sides((side, side), (kernel, kernel), (stride, stride), (padding, padding), ceil=ceil)
    assert results_seen == (result, result)


def test_incompatible_shapes_have_no_result_shape() -> None:
    assert window_sides((4, 4), (5, 5), (1, 1), (0, 0)) is None
    assert transposed_window_sides((1, 1), (2, 2), (2, 2), (1, 1)) is None
    assert matmul_shape((2, 3, 4), (2, 3, 4), False) is None
    assert matmul_shape((2, 3, 4), (3, 4, 5), False) is None
    assert concatenated([(2, 3), (2, 4)], 0) is None
    assert concatenated([(2, 3), (2, 3)], 2) is None


def test_a_window_larger_than_the_image_is_refused_by_name(net: NetworkBuilder, image: LayerOutput) -> None:
    with (
        net.scope("block"),
        pytest.raises(ValueError, match=r"network 'net', layer 'block\.conv': the window is larger"),
    ):
        net.convolution("conv", image, 8, 11)


def test_groups_must_divide_the_channels(net: NetworkBuilder, image: LayerOutput) -> None:
    with pytest.raises(ValueError, match="layer 'conv': 6 channels in and 8 out do not divide into 4 groups"):
        net.convolution("conv", image, 8, 3, groups=4)


def test_a_sum_of_different_shapes_is_refused(net: NetworkBuilder, image: LayerOutput) -> None:
    with pytest.raises(ValueError, match="layer 'sum': cannot add"):
        net.add("sum", image, net.convolution("conv", image, 6, 3))


def test_a_duplicate_name_is_refused(net: NetworkBuilder, image: LayerOutput) -> None:
    net.relu("relu", image, in_place=False)
    with pytest.raises(ValueError, match="two layers or inputs named 'relu'"):
        net.relu("relu", image, in_place=False)


def test_a_value_of_another_network_is_refused(net: NetworkBuilder, image: LayerOutput) -> None:
    other = NetworkBuilder("other", "a test")
    with pytest.raises(ValueError, match="network 'other', layer 'relu': reads 'image', which is not in this network"):
        other.relu("relu", image)


def test_weights_can_be_shared_only_with_an_earlier_layer(net: NetworkBuilder, image: LayerOutput) -> None:
    with pytest.raises(ValueError, match="layer 'fc': shares the weights of 'none', which is not in this network"):
        net.linear("fc", image, 3, shares="none")
