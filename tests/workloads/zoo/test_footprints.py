"""Memory in closed form, compared with the reports of two papers and a user of Caffe."""

from __future__ import annotations

from functools import cache
from statistics import mean

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.workloads.catalogue import build
from simgpu.workloads.footprint import all_at_once_bytes, bound_bytes, caffe_bytes, fitted_batch, result_bytes
from simgpu.workloads.network import LayerKind, Network
from simgpu.workloads.timemodel.model import time_model
from tests.sets import slow_rows_except
from tests.workloads.zoo.networks import conv, linear, network, plain, relu, residual
from tests.workloads.zoo.networks import inception as branches

GB, GIB = 10**9, 2**30

#: Buddy Compression (ISCA 2020), table 1: GB. Image networks ran under Caffe; the table gives no batch.
BUDDY = {
    "alexnet": 8.85,
    "inception-v2": 3.21,
    "squeezenet1.1": 2.03,
    "vgg16": 11.08,
    "resnet50": 4.50,
    "biglstm": 2.71,
}
COUNTS = {"results": result_bytes, "caffe": caffe_bytes}

#: Pinned, not published: the batch each count fits to table 1, and how far off the count is at the batch that divides
#: by 1, 8, 16 and 32 and lies nearest to it.
FITTED = """
alexnet        results  760: +0.1%    760: +0.1%    768: +1.0%    768: +1.0%
alexnet        caffe    621: -0.0%    624: +0.4%    624: +0.4%    608: -1.9%
inception-v2   results   61: +0.7%     64: +5.5%     64: +5.5%     64: +5.5%
inception-v2   caffe     23: -0.2%     24: +3.9%     16: -29.3%    32: +37.2%
squeezenet1.1  results   57: +0.6%     56: -1.1%     64: +12.9%    64: +12.9%
squeezenet1.1  caffe     50: +0.5%     48: -3.5%     48: -3.5%     64: +28.4%
vgg16          results   78: +0.4%     80: +2.6%     80: +2.6%     64: -15.0%
vgg16          caffe     73: +0.1%     72: -1.0%     80: +8.3%     64: -10.4%
resnet50       results   32: +0.0%     32: +0.0%     32: +0.0%     32: +0.0%
resnet50       caffe     12: -0.4%     16: +30.6%    16: +30.6%    32: +154.3%
biglstm        results  123: -0.1%    120: -0.9%    128: +1.3%    128: +1.3%
"""

#: moDNN (TPDS 2019), section 7: the six networks and their batches. It gives no image size for its FCN: 224 x 224 here.
MODNN = {"vgg16": 256, "vgg19": 256, "vgg101": 128, "resnet34": 256, "resnet152": 256, "fcn32s": 128}


@cache
def modnn(name: str) -> Network:
    return build(name, "imagenet")


@cache
def ideal_gb(name: str) -> float:
    """Ideal memory in GB with the largest workspace on the paper's GPU, by the time model."""
    return all_at_once_bytes(modnn(name), MODNN[name], time_model(load_node("k40").gpu)) / GB


def errors(name: str, count: str) -> list[tuple[int, float]]:
    size, net = round(BUDDY[name] * GB), build(name)
    best = fitted_batch(net, size, COUNTS[count])
    batches = [step * max(1, round(best / step)) for step in (1, 8, 16, 32)]
    return [(batch, 100 * (COUNTS[count](net, batch) / size - 1)) for batch in batches]


def test_fitted_batches_and_footprint_errors_match_the_stored_table() -> None:
    rows = [line.split()[:2] for line in FITTED.strip().splitlines()]
    lines = []
    for name, count in rows:
        cells = "".join(f"{batch:5}: {f'{error:+.1f}%':7}" for batch, error in errors(name, count))
        lines.append(f"{name:14} {count:7}{cells}".rstrip())
    assert lines == FITTED.strip().splitlines()


@pytest.mark.parametrize(("count", "explained"), [("results", ["resnet50"]), ("caffe", ["alexnet"])])
def test_neither_memory_count_explains_all_footprints_with_batches_divisible_by_16(
    count: str, explained: list[str]
) -> None:
    # A count could be called the table's own if it were within a percent there for every network. Which networks are is
    # pinned; AlexNet's steps of 16 lie so close to each other that any size is within 1.3% of one.
    assert [name for name in BUDDY if abs(errors(name, count)[2][1]) <= 1.0] == explained


@pytest.mark.parametrize(
    ("name", "count"),
    slow_rows_except(((n, count) for n in BUDDY for count in COUNTS), ("alexnet", "results"), ("resnet50", "caffe")),
)
def test_the_fitted_batch_has_the_nearest_footprint(name: str, count: str) -> None:
    net, size = build(name), round(BUDDY[name] * GB)
    off = {batch: abs(COUNTS[count](net, batch) - size) for batch in range(1, 1025)}
    assert fitted_batch(net, size, COUNTS[count]) == min(off, key=off.__getitem__)


def test_footprints_contradict_section_4_4_of_buddy_with_either_memory_count() -> None:
    # Section 4.4: VGG16 and BigLSTM cannot fit a mini-batch of 64 in 12 GB. Here they do.
    assert max(count(build("vgg16"), 64) for count in COUNTS.values()) < 12 * GB
    assert result_bytes(build("biglstm"), 64) < 12 * GB


def test_the_published_biglstm_footprint_leaves_out_one_of_its_tables() -> None:
    net = build("biglstm")
    tables = [4 * weight.count for layer in net.layers for weight in layer.weights if weight.shape == (793471, 1024)]
    assert len(tables) == 2
    assert min(tables) > BUDDY["biglstm"] * GB
    assert result_bytes(net, 0) < BUDDY["biglstm"] * GB < result_bytes(net, 0) + min(tables)


def test_caffe_buffers_explain_a_users_measurement_and_results_alone_do_not() -> None:
    # ResNet-50 at batch 16: 6707 MB (antingshen/resnet-protofiles, issue 13), of which CUDA's context, workspaces and
    # the network for tests are not counted. If nvidia-smi's MiB are meant, it is 5% more.
    net, seen = build("resnet50"), 6707 * 10**6
    assert result_bytes(net, 16) < 0.4 * seen
    assert 0.8 * seen < caffe_bytes(net, 16) < seen


@pytest.mark.parametrize("name", ["vgg16", "vgg19"])
def test_ideal_memory_of_vgg_is_32_to_35_gb_before_workspaces(name: str) -> None:
    assert 32 <= all_at_once_bytes(modnn(name), 256) / GB <= 35


def test_ideal_memory_of_resnet_34_is_8_4_gb() -> None:
    # With sums or normalizations as layers of their own it would be 11 or more.
    assert all_at_once_bytes(modnn("resnet34"), 256) / GB == pytest.approx(8.4, abs=0.05)


def test_only_resnet_34_fits_the_k40_and_four_do_not_fit_24_gb() -> None:
    # Section 7.1; "nearly 100 GB" for VGG-101, whose added convolutions the paper does not list.
    assert [name for name in MODNN if ideal_gb(name) <= 12] == ["resnet34"]
    assert [name for name in MODNN if ideal_gb(name) > 24] == ["vgg16", "vgg19", "vgg101", "resnet152"]
    assert 95 <= ideal_gb("vgg101") * GB / GIB <= 100
    # Why its FCN is taken to read 224 x 224: on the 500 x 500 of FCN's authors it would be a fifth that does not.
    assert all_at_once_bytes(build("fcn32s", "voc"), 128) > 24 * GB


def test_lower_bound_of_vgg_101_is_1_4_gb() -> None:
    # Section 7.1, in units of 2**30: all its weights and their gradients, and the gradient of a first convolution's
    # result from that of the second's.
    largest = 3 * 64 * 224 * 224
    assert bound_bytes(modnn("vgg101")) == 4 * (2 * modnn("vgg101").parameters + largest)
    assert round(bound_bytes(modnn("vgg101")) / GIB, 1) == 1.4


def test_larger_networks_have_a_larger_memory_reduction() -> None:
    # Section 7.1, within a family. Its mean over the six is 59; ours, pinned, is 50 (46 without workspaces), as its FCN
    # and VGG-101 are not described.
    ratio = {name: ideal_gb(name) * GB / bound_bytes(modnn(name)) for name in MODNN}
    assert ratio["vgg16"] < ratio["vgg19"] < ratio["vgg101"]
    assert ratio["resnet34"] < ratio["resnet152"]
    assert round(mean(ratio.values())) == 50


def test_memory_counts_of_a_small_network_match_a_count_by_hand() -> None:
    net = network(
        conv("conv", "input", 3, (4, 8, 8)),
        relu("relu", "conv", (4, 8, 8)),
        linear("fc", "relu", 256, 10),
    )
    weights = 4 * 3 * 9 + 4 + 10 * 256 + 10
    image, results = 3 * 64, 256 + 10 + 1  # relu shares the convolution's; the loss is one number
    assert result_bytes(net, 5) == 4 * (3 * weights + 5 * (image + 2 * results))
    assert caffe_bytes(net, 5) == 4 * (3 * weights + 5 * (4 * image + 2 * results + 10))  # 10: probabilities
    assert all_at_once_bytes(net, 5) == 4 * (2 * weights + 5 * (image + 2 * results))
    assert bound_bytes(net) == 4 * (2 * weights + 256 + 10 + 256)  # fc: its input, and from gradient to gradient
    assert fitted_batch(net, result_bytes(net, 5)) == 5
    assert fitted_batch(net, 0) == 1


def test_caffe_allocates_buffers_for_normalization_and_for_results_with_two_readers() -> None:
    net, each = residual(), 4 * 8 * 8
    more = caffe_bytes(net, 1) - result_bytes(net, 1)
    # Two normalizations hold four each; relu1, read twice, has two more gradients.
    assert more == 4 * (3 * 3 * 64 + 2 * 4 * each + 2 * each + 10)


def test_caffe_allocates_masks_for_pooling_and_dropout() -> None:
    net, each = branches(), 4 * 8 * 8
    assert caffe_bytes(net, 1) - result_bytes(net, 1) == 4 * (3 * 3 * 64 + each + 2 * each + 10)
    dropped = network(
        plain(LayerKind.DROPOUT, "drop", "input", shape=(3, 8, 8), rate=0.5), linear("fc", "drop", 192, 10)
    )
    assert caffe_bytes(dropped, 1) - result_bytes(dropped, 1) == 4 * (3 * 192 + 192 + 10)


def test_a_sum_has_its_own_result_in_caffe_and_none_in_modnn() -> None:
    net = residual()
    pooled = 4 + 10 + 1
    assert result_bytes(net, 1) - result_bytes(net, 0) == 4 * (192 + 2 * (3 * 256 + pooled))
    assert all_at_once_bytes(net, 1) - all_at_once_bytes(net, 0) == 4 * (192 + 2 * (2 * 256 + pooled))
