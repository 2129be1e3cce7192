"""The networks of the zoo compared with published parameters, multiply-accumulates, feature maps and sizes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import NamedTuple, cast

import pytest

from simgpu.errors import InputError
from simgpu.workloads.catalogue import NETWORKS, Value, build
from simgpu.workloads.network import Layer, LayerKind, Network


class Published(NamedTuple):
    """Published millions of parameters and multiply-accumulates of a network; None if not published."""

    name: str
    parameters: float | None
    macs: float | None
    source: str
    input: str | None = None
    variant: Mapping[str, Value] = MappingProxyType({})


TORCHVISION = "torchvision 0.28 documentation, num_params and GFLOPS of the weights"
SURVEY = "Sze et al., Efficient processing of deep neural networks, Proc. IEEE 2017, table II"
PYTORCHCV = "imgclsmob (pytorchcv) README, params and FLOPs/2"

PYTORCH_CIFAR = "kuangliu's pytorch-cifar, parameters as torchsummary counts them"

PUBLISHED = (
    Published("alexnet", 61, 724, SURVEY),
    Published("alexnet", 61.100840, 714, TORCHVISION, None, {"grouped": False}),
    Published("alexnet", 2.47, None, "Wei Yang's pytorch-classification, README", "cifar10"),
    Published("overfeat", 145, 2810, "Sermanet et al., ICLR 2014, table 4: fast model, millions of connections"),
    Published("overfeat", 146, 2800, SURVEY),
    Published("nin", 29 * 2**20 / 4e6, None, "Caffe model zoo: NIN-ImageNet is 29 MB of float32"),
    Published("nin", 0.966986, 222.97, PYTORCHCV, "cifar10"),
    Published("vgg11", 132.863336, 7609, TORCHVISION),
    Published("vgg13", 133.047848, 11308, TORCHVISION),
    Published("vgg16", 138.357544, 15470, TORCHVISION),
    Published("vgg16", 138, 15500, SURVEY),
    Published("vgg16", 138.365992, 15470, f"{TORCHVISION} (vgg16_bn)", None, {"batch_norm": True}),
    Published("vgg16", None, 313, "Li et al., Pruning filters for efficient ConvNets, ICLR 2017, table 1", "cifar10"),
    Published("vgg19", 143.667240, 19632, TORCHVISION),
    Published("vgg19", 144, None, "Simonyan and Zisserman, ICLR 2015, table 2"),
    Published("googlenet", 7, None, SURVEY),
    Published("googlenet", 6.624904, 1498, TORCHVISION, None, {"batch_norm": True}),
    Published("inception-v2", 11.295240, 2048, f"{PYTORCHCV} (bninception)"),
    Published("inception-v3", 23.834568, 5713, f"{TORCHVISION}; without the 3326696 of its auxiliary classifier"),
    Published("squeezenet", 1.248424, 819, TORCHVISION),
    Published("squeezenet1.1", 1.235496, 349, TORCHVISION),
    Published("mobilenet", 4.2, 569, "Howard et al., arXiv:1704.04861, table 8"),
    Published("mobilenet", 2.6, 325, "Howard et al., arXiv:1704.04861, table 6", None, {"width": 0.75}),
    Published("mobilenet", None, 149, "Howard et al., arXiv:1704.04861, table 6", None, {"width": 0.5}),
    Published("densenet121", 7.978856, 2834, TORCHVISION),
    Published("resnet18", 11.689512, 1814, TORCHVISION),
    Published("resnet34", 21.797672, 3664, TORCHVISION),
    Published("resnet50", 25.557032, 4089, TORCHVISION, None, {"stride_in_3x3": True}),
    Published("resnet101", 44.549160, 7801, TORCHVISION, None, {"stride_in_3x3": True}),
    Published("resnet152", 60.192808, 11514, TORCHVISION, None, {"stride_in_3x3": True}),
    Published("resnet50", 25.557032, 3878, PYTORCHCV),
    Published("resnet101", None, 7600, "He et al., CVPR 2016, table 1"),
    Published("resnet152", None, 11300, "He et al., CVPR 2016, table 1"),
    Published("resnet20", 0.27, 40.6, "He et al., table 6; He et al., Soft filter pruning, IJCAI 2018, table 1"),
    Published("resnet32", 0.46, 68.9, "He et al., table 6; He et al., Soft filter pruning, IJCAI 2018, table 1"),
    Published("resnet56", 0.85, 125, "He et al., table 6; Li et al., ICLR 2017, table 1"),
    Published("plain20", 0.27, 40.6, "He et al., section 4.2: as ResNet-20, whose shortcuts have no parameters"),
    Published("mobilenet", 3.217226, None, PYTORCH_CIFAR, "cifar10"),
    Published("densenet121", 6.956298, None, PYTORCH_CIFAR, "cifar10"),
    Published("resnet18", 11.173962, None, PYTORCH_CIFAR, "cifar10"),
    Published("resnet34", 21.282122, None, PYTORCH_CIFAR, "cifar10"),
    Published("resnet50", 23.520842, None, PYTORCH_CIFAR, "cifar10"),
    Published("resnet101", 42.512970, None, PYTORCH_CIFAR, "cifar10"),
    Published("resnet152", 58.156618, None, PYTORCH_CIFAR, "cifar10"),
    Published("fcn16s", 134, None, "Long et al., CVPR 2015, table 1: FCN-VGG16"),
    Published("fcn8s", 134, None, "Long et al., CVPR 2015, table 1: FCN-VGG16"),
    Published("bert-base", 110, None, "Devlin et al., NAACL 2019, section 3"),
    Published("bert-large", 336, None, "Hugging Face transformers 3.5 documentation, pretrained models"),
    Published("vit-base", 86.567656, 17564, f"{TORCHVISION} (vit_b_16)"),
    Published("vit-large", 304.326632, 61555, f"{TORCHVISION} (vit_l_16)"),
)


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: f"{published.name}: {published.source}")
def test_parameters_and_macs_match_the_published_ones(published: Published) -> None:
    network = build(published.name, published.input, **published.variant)
    if published.parameters is not None:
        assert network.parameters / 1e6 == pytest.approx(published.parameters, rel=0.01)
    if published.macs is not None:
        assert network.macs / 1e6 == pytest.approx(published.macs, rel=0.01)


def test_biglstm_has_the_published_rounded_parameter_count() -> None:
    """Jozefowicz et al. 2016, table 1: the 2-layer LSTM-8192-1024 has 1.8 billion."""
    assert round(build("biglstm").parameters / 1e9, 1) == 1.8


#: Szegedy et al. 2015, table 1: millions of operations.
GOOGLENET = {
    "conv2": 360,
    "inception_3a": 128,
    "inception_3b": 304,
    "inception_4a": 73,
    "inception_4b": 88,
    "inception_4c": 100,
    "inception_4d": 119,
    "inception_4e": 170,
    "inception_5b": 71,
    "fc": 1,
}


@pytest.mark.parametrize("row", GOOGLENET)
def test_googlenet_matches_the_table_of_its_paper(row: str) -> None:
    """Left out are the two rows whose operations are not those of the filters in the same row.

    conv1: 34 M where 7 x 7 filters make 118 M; module 5a: 54 M where its filters make 51 M.
    """
    layers = [layer for layer in build("googlenet").layers if layer.name.split(".")[0] == row]
    assert abs(sum(layer.macs for layer in layers) / 1e6 - GOOGLENET[row]) < 1


def shapes(network: Network, *kinds: LayerKind) -> list[tuple[int, ...]]:
    return [layer.shape for layer in network.layers if layer.kind in kinds]


def test_vgg16_activations_at_batch_128_range_from_1568_to_49_mib() -> None:
    """CSWAP, section II-B: the eight ReLU and four MAX results that are inputs of convolutions."""
    layers = build("vgg16").layers
    by_name = {layer.name: layer for layer in layers}
    inputs = [
        by_name[layer.inputs[0]]
        for layer in layers
        if layer.kind is LayerKind.CONVOLUTION and layer.inputs != ("image",)
    ]
    mib = [prod(layer.shape) * 4 * 128 / 2**20 for layer in inputs]
    assert [layer.kind for layer in inputs].count(LayerKind.RELU) == 8
    assert [layer.kind for layer in inputs].count(LayerKind.MAX_POOL) == 4
    assert (mib[0], mib[-1]) == (max(mib), 49) == (1568, 49)


def test_alexnet_activations_have_the_shapes_in_the_cdma_paper() -> None:
    """cDMA (HPCA 2018), figure 5: (channels, height, width) of results followed by ReLU, and of poolings."""
    network = build("alexnet")
    convolutions = [(96, 55, 55), (256, 27, 27), (384, 13, 13), (384, 13, 13), (256, 13, 13)]
    assert shapes(network, LayerKind.CONVOLUTION) == convolutions
    assert shapes(network, LayerKind.MAX_POOL) == [(96, 27, 27), (256, 13, 13), (256, 6, 6)]


def test_overfeat_activations_have_the_sizes_in_its_paper() -> None:
    """Sermanet et al. 2014, table 1: spatial input size of each stage."""
    network = build("overfeat")
    stages = [shape[-1] for shape in shapes(network, LayerKind.MAX_POOL)]
    assert [layer.shape[-1] for layer in network.layers if layer.name in ("conv1", "conv2", "conv3")] == [56, 24, 12]
    assert stages == [28, 12, 6]


def ideal_gigabytes(network: Network, batch: int) -> float:
    """moDNN's ideal memory without workspaces: results of fused layers, weights, and the gradients of both."""
    fused = (LayerKind.CONVOLUTION, LayerKind.LINEAR, LayerKind.MAX_POOL, LayerKind.ADD)
    values = sum(prod(shape) for shape in shapes(network, *fused))
    return (values * batch + network.parameters) * 2 * 4 / 1e9


def test_vgg101_needs_nearly_100_gb_at_batch_128() -> None:
    """moDNN (TPDS 2019), section 7.1, in units of 2**30; it has 98 convolutions and three linear layers."""
    network = build("vgg101")
    assert len(shapes(network, LayerKind.CONVOLUTION, LayerKind.LINEAR)) == 101
    assert 95 < ideal_gigabytes(network, 128) * 10**9 / 2**30 < 100


def test_an_fcn_needs_more_than_12_and_less_than_24_gb_at_batch_128() -> None:
    """moDNN (TPDS 2019), section 7.1; an FCN at ImageNet's size matches the statement there."""
    assert 12 < ideal_gigabytes(build("fcn8s", "imagenet"), 128) < 24


def test_the_result_of_fcn_has_the_size_of_its_image() -> None:
    for name in ("fcn32s", "fcn16s", "fcn8s"):
        assert build(name, "voc").label_shape == (500, 500)
        assert build(name, "imagenet").label_shape == (224, 224)


def test_bottlenecks_have_their_stride_in_the_documented_convolution() -> None:
    def strides(network: Network) -> dict[str, object]:
        return {layer.name: layer.attributes.get("stride") for layer in network.layers}

    paper, torchvision = strides(build("resnet50")), strides(build("resnet50", stride_in_3x3=True))
    assert (paper["layer2.0.conv1"], paper["layer2.0.conv2"]) == ((2, 2), (1, 1))
    assert (torchvision["layer2.0.conv1"], torchvision["layer2.0.conv2"]) == ((1, 1), (2, 2))


def test_plain20_is_resnet20_without_residual_sums() -> None:
    plain, residual = build("plain20"), build("resnet20")
    assert not shapes(plain, LayerKind.ADD)
    assert len(shapes(residual, LayerKind.ADD)) == 9
    assert shapes(plain, LayerKind.CONVOLUTION) == shapes(residual, LayerKind.CONVOLUTION)


def test_the_width_variant_multiplies_channels() -> None:
    usual = shapes(build("plain20"), LayerKind.CONVOLUTION)
    wide = shapes(build("plain20", width=4), LayerKind.CONVOLUTION)
    assert wide == [(4 * channels, *sides) for channels, *sides in usual]


def test_steps_of_an_lstm_share_the_weights_of_the_first() -> None:
    layers = build("biglstm", steps=3).layers
    cells = [layer for layer in layers if layer.kind is LayerKind.LSTM_CELL and layer.name.startswith("lstm2")]
    assert [cell.shares for cell in cells] == [None, "lstm2.step0.cell", "lstm2.step0.cell"]
    assert [len(cell.weights) for cell in cells] == [3, 0, 0]
    assert cells[1].inputs[1:] == ("lstm2.step0.projection", "lstm2.step0.cell.state")


def test_the_tied_output_layer_of_bert_has_only_its_own_bias() -> None:
    decoder = next(layer for layer in build("bert-base").layers if layer.name == "head.decoder")
    assert (decoder.shares, [weight.name for weight in decoder.weights]) == ("embeddings.word", ["bias"])


ALL = [(name, input) for name in NETWORKS for input in NETWORKS[name].inputs]


@pytest.mark.parametrize(("name", "input"), ALL)
def test_every_layer_is_connected_and_the_loss_is_last(name: str, input: str) -> None:
    """Layers read earlier results, every result is read (except an LSTM's last state), the loss is last.

    What is overwritten in place has no other reader.
    """
    network = build(name, input)
    given: dict[str, Layer | None] = {each.name: None for each in network.inputs}
    readers: dict[str, int] = {}
    for layer in network.layers:
        assert all(source in given for source in layer.inputs), layer
        assert layer.shares is None or given[layer.shares] is not None, layer
        assert layer.name not in given
        given[layer.name] = layer
        for source in layer.inputs:
            readers[source] = readers.get(source, 0) + 1
    unread = {each for each in set(given) - set(readers) if not each.endswith("cell.state")}
    assert unread == {"loss"}
    assert [layer.kind for layer in network.layers].count(LayerKind.LOSS) == 1
    assert network.layers[-1].kind is LayerKind.LOSS
    overwritten = [layer.inputs[0] for layer in network.layers if layer.attributes.get("in_place")]
    assert all(readers[source] == 1 for source in overwritten)


@pytest.mark.parametrize(("name", "input"), [pair for pair in ALL if pair[1] in ("imagenet", "cifar10")])
def test_image_networks_have_the_class_count_of_their_data_set(name: str, input: str) -> None:
    if name.startswith("fcn"):
        return
    network = build(name, input)
    classes = 10 if input == "cifar10" else 1000
    assert network.inputs[0].shape[1:] == ((32, 32) if input == "cifar10" else network.inputs[0].shape[1:])
    assert next(layer.shape for layer in network.layers if layer.name == network.layers[-1].inputs[0]) == (classes,)


@pytest.mark.parametrize("name", [name for name, input in ALL if input == "cifar10"])
def test_a_network_for_cifar10_describes_its_variant(name: str) -> None:
    """The adaptation and its source: the paper or a public training script."""
    network = build(name, "cifar10")
    assert network.form.startswith("for 32 x 32 images")
    assert re.search(
        r"\bas in (\w+ )*\S+'s pytorch-|\bhas it in kuangliu's pytorch-|\bas (in )?the paper", network.form
    )
    assert network.form != build(name, "imagenet").form
    assert network.provenance == f"{network.source}; {network.form}"


def test_an_unchanged_network_cites_only_its_paper() -> None:
    network = build("vgg16", "imagenet")
    assert (network.form, network.provenance) == ("", network.source)


#: Variants that can be taken only with another one.
ONLY_WITH: dict[tuple[str, str], dict[str, Value]] = {("alexnet", "conv4_channels"): {"grouped": False}}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_variant_can_be_built_and_defaults_change_nothing(name: str) -> None:
    """Explicit default values give the same network; each variant can be chosen."""
    entry = NETWORKS[name]
    assert entry.description
    at_usual_input = (None, entry.inputs[0])
    usual = {key: variant.default for key, variant in entry.variants.items() if variant.input in at_usual_input}
    assert build(name, **usual) == build(name)
    for key, variant in entry.variants.items():
        other: Value = variant.words[-1] if variant.words else not variant.default
        if not isinstance(variant.default, bool | str):
            other = 2 * variant.default
        rest = ONLY_WITH.get((name, key), {})
        assert build(name, variant.input, **{**rest, key: other}) != build(name, variant.input, **rest)


def test_alexnet_has_a_variant_of_the_tensorflow_benchmarks() -> None:
    """tf_cnn_benchmarks, alexnet_model.py: the fourth convolution has 384 channels."""
    network = build("alexnet", grouped=False, conv4_channels=384)
    assert [layer.shape[0] for layer in network.layers if layer.name.startswith("conv")] == [64, 192, 384, 384, 256]
    with pytest.raises(InputError, match="conv4_channels: applies only to the single column; choose grouped=false"):
        build("alexnet", conv4_channels=384)


def test_the_normalized_squeezenet_has_its_published_parameter_count() -> None:
    """weiaicunzai's pytorch-cifar100, README: 0.78 million, with 90 more classes than CIFAR-10."""
    network = build("squeezenet", "cifar10", batch_norm=True)
    assert round((network.parameters + 90 * (512 + 1)) / 1e6, 2) == 0.78
    assert [layer.name for layer in network.layers if layer.kind is LayerKind.ADD] == [
        "fire3.bypass",
        "fire5.bypass",
        "fire7.bypass",
    ]
    assert sum(layer.kind is LayerKind.BATCH_NORM for layer in network.layers) == 1 + 3 * 8


def test_googlenet_without_response_normalization_has_otherwise_the_same_layers() -> None:
    plain, paper = build("googlenet", local_response_norm=False), build("googlenet")
    assert (plain.parameters, plain.macs) == (paper.parameters, paper.macs)
    assert len(plain.layers) == len(paper.layers) - 2


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(InputError) as error:
        build("bert-base", "imagenet", head="nsp", sequence=0, sequnce=128)
    assert error.value.lines() == [
        "network bert-base, input: 'imagenet' is not one of its inputs; known: text",
        "network bert-base, variant head: 'nsp' is not one of mlm, classifier; its default is 'mlm'",
        "network bert-base, variant sequence: 0 is not a whole number above zero and at most 512; its default is 128",
        "network bert-base, variant sequnce: is not one of its variants; "
        "did you mean 'sequence'? known: head, sequence",
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_impossible_variant_values_are_refused_by_name(name: str) -> None:
    for key, variant in NETWORKS[name].variants.items():
        silly: list[object] = [[1], None, float("nan"), float("inf"), -1, 0, 10**30]
        if not isinstance(variant.default, bool | str):
            silly += [True, variant.most + 1]
        for value in silly:
            with pytest.raises(InputError, match=f"variant {key}: .* is not "):
                build(name, variant.input, **{key: cast("Value", value)})


def test_more_tokens_than_bert_has_positions_are_refused() -> None:
    with pytest.raises(InputError, match="variant sequence: 513 is not a whole number above zero and at most 512"):
        build("bert-base", sequence=513)


def test_more_loss_tokens_than_the_vocabulary_are_refused() -> None:
    with pytest.raises(InputError, match="cannot sample 8192 words of a vocabulary of 100; choose a larger"):
        build("biglstm", vocabulary=100)


def test_an_unknown_network_is_reported_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="'vgg_16' is not in the zoo; did you mean 'vgg16'"):
        build("vgg_16")


def test_a_variant_for_another_input_is_refused() -> None:
    with pytest.raises(InputError, match="variant grouped: applies only to imagenet, not to 'cifar10'"):
        build("alexnet", "cifar10", grouped=False)


def test_importing_simgpu_does_not_import_the_zoo() -> None:
    program = "import sys, simgpu; print([name for name in sys.modules if name.startswith('simgpu.workloads')])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_the_encoder_has_the_parameters_of_pytorchs_encoder() -> None:
    """The same encoder in torch.nn has the same parameters."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with torch.device("meta"):
        layer = torch.nn.TransformerEncoderLayer(512, 8, 2048)
        encoder = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    table = 37000 * 512
    assert build("transformer").parameters == table + sum(weight.numel() for weight in encoder.parameters())
