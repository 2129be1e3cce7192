"""Footprints published without a batch: the batch is fitted, and what it comes to is told."""

from __future__ import annotations

import pytest

from simgpu.trace.zoo.catalogue import build
from simgpu.trace.zoo.footprint import blob_bytes, fitted_batch
from tests.zoo.networks import conv, linear, network, relu

GB = 10**9

#: Buddy (ISCA 2020) table 1: networks run under Caffe on ImageNet, and a language model. The table gives no batch.
#: Bytes, the batch that comes nearest (fitted to them), and a usual one beside it.
BUDDY = {
    "alexnet": (8.85, 760, 768),
    "biglstm": (2.71, 123, 128),
    "inception-v2": (3.21, 61, 64),
    "squeezenet1.1": (2.03, 57, 56),
    "vgg16": (11.08, 78, 80),
    "resnet50": (4.50, 32, 32),
}


@pytest.mark.parametrize("name", BUDDY)
def test_one_batch_comes_nearest_to_the_published_footprint(name: str) -> None:
    published, fitted, _ = BUDDY[name]
    net, size = build(name), round(published * GB)
    assert fitted_batch(net, size) == fitted
    off = abs(blob_bytes(net, fitted) - size)
    assert off <= min(abs(blob_bytes(net, other) - size) for other in range(1, 1025) if other != fitted)


@pytest.mark.parametrize("name", ["alexnet", "biglstm", "vgg16", "resnet50"])
def test_a_usual_batch_gives_the_published_footprint_within_3_percent(name: str) -> None:
    # ResNet-50 at 32 within 0.1%, AlexNet at 768 within 1.1%, BigLSTM at 128 within 1.3%, VGG-16 at 80 within 2.6%.
    published, _, usual = BUDDY[name]
    assert blob_bytes(build(name), usual) / GB == pytest.approx(published, rel=0.03)


def test_the_same_count_gives_modnn_its_ideal_memory() -> None:
    # moDNN, section 7.1: VGG-16 and VGG-19 need 32 to 35 GB at batch 256. It counts no momentum.
    for name in ("vgg16", "vgg19"):
        net = build(name)
        assert 32 <= (blob_bytes(net, 256) - 4 * net.parameters) / GB <= 35


def test_blobs_of_a_small_network_by_hand() -> None:
    net = network(conv("conv", "input", 3, (4, 8, 8)), relu("relu", "conv", (4, 8, 8)), linear("fc", "relu", 256, 10))
    weights = 4 * 3 * 9 + 4 + 10 * 256 + 10
    image, results = 3 * 64, 256 + 10 + 1  # relu shares the convolution's; the loss is one number
    assert blob_bytes(net, 5) == 4 * (3 * weights + 5 * (image + 2 * results))
    assert fitted_batch(net, blob_bytes(net, 5)) == 5
    assert fitted_batch(net, 0) == 1
